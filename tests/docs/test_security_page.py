"""docs/security.md promises nothing without a test, and every module of attacks is on it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[([\w/.]+)\]\(\.\./(tests/[\w/]+\.py)\)((?:,? `test_\w+`)+)")
NAMED = sorted({(path, name) for _, path, names in LINK.findall(PAGE) for name in re.findall(r"test_\w+", names)})


def list_tests(path: Path) -> set[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_every_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in list_tests(ROOT / path)


def test_every_promise_has_a_test() -> None:
    promises = PAGE.partition("## What is promised")[2].partition("## What it does not protect against")[0]
    rows = [row for row in promises.splitlines() if row.startswith("| ") and not row.startswith("| promise ")]
    assert len(rows) >= 20
    assert [row for row in rows if not LINK.search(row)] == []


def test_every_module_of_attacks_is_on_the_page() -> None:
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "attacks").rglob("test_*.py")}
    assert modules <= {path for path, _ in NAMED}


# ---------------------------------------------------------------------------------------- docs/privacy.md

PRIVACY = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
HOLES = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for row in PRIVACY.partition("## Holes that were found")[2].partition("\n## ")[0].splitlines()
    if row.startswith("| ") and not row.startswith("| what was possible")
]


def test_every_hole_is_closed_by_a_test_that_exists() -> None:
    """A row names its tests, and where they are if not in `tests/attacks/test_private_runs.py`."""
    assert len(HOLES) >= 15
    before = usual = "tests/attacks/test_private_runs.py"
    for what, closed_by, tests in HOLES:
        path = re.search(r"`(tests/[\w/]+\.py)`", tests)
        place = path[1] if path else before if "(same file)" in tests else usual
        names = re.findall(r"`(test_\w+)`", tests)
        assert closed_by, what
        assert names, what
        assert set(names) <= list_tests(ROOT / place), what
        before = place


def test_every_test_that_a_page_names_exists() -> None:
    everywhere = {name for path in (ROOT / "tests").rglob("test_*.py") for name in list_tests(path)}
    pages = {path.name: set(re.findall(r"`(test_\w+)`", path.read_text())) for path in (ROOT / "docs").glob("*.md")}
    assert {page: names - everywhere for page, names in pages.items() if names - everywhere} == {}
