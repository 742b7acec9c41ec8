"""docs/architecture.md describes the code as it is: its rooms, its files, its functions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from test_architecture import ROOMS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fedspan"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[([^\]]+)\]\(\.\./((?:src/fedspan|tests)/[\w/]+\.py)\)(?: `([\w.]+)`)?")
LINKS = sorted({(path, name) for _, path, name in LINK.findall(PAGE)})
WALKS = ["Follow one row from a CSV file to the report", "Follow one block Z through a round, in process and on FLARE"]


def part(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def defined(tree: ast.Module | ast.ClassDef) -> dict[str, ast.stmt]:
    """What is defined there, by name."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize(("path", "name"), LINKS)
def test_every_linked_file_has_the_function_that_is_named(path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    tree: ast.Module | ast.ClassDef = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    *classes, last = name.split(".") if name else [""]
    for outer in classes:
        node = defined(tree).get(outer)
        assert isinstance(node, ast.ClassDef), f"{path} has no class {outer}"
        tree = node
    assert not last or last in defined(tree), f"{path} has no {name}"


def test_a_link_says_where_it_leads() -> None:
    for text, path, _ in LINK.findall(PAGE):
        assert path.removeprefix("src/fedspan/") == text
    assert PAGE.count("](../") == len(LINK.findall(PAGE))


def test_the_tree_lists_the_folders_in_the_order_of_imports() -> None:
    block = part("The rooms").partition("```\n")[2].partition("```")[0]
    listed, parents = [], [""]
    for line in block.splitlines()[1:]:
        indent, name = re.match(r"( +)([\w_]+)/ ", line).groups()  # type: ignore[union-attr]
        parents = [*parents[: len(indent) // 2], f"{parents[len(indent) // 2 - 1]}{name}/"]
        listed.append(parents[-1].rstrip("/"))
    folders = [str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*") if p.is_dir() and p.name != "__pycache__"]
    assert sorted(listed) == sorted(folders)
    assert [name for name in listed if "/" not in name] == ROOMS


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_is_short_and_every_stop_names_a_function(walk: str) -> None:
    stops = re.findall(r"^\d+\. .*$", part(walk), re.M)
    assert 3 <= len(stops) <= 12
    for number, stop in enumerate(stops, 1):
        assert stop.startswith(f"{number}. ")
        (link,) = LINK.findall(stop)
        assert link[2], f"no function is named: {stop}"


def test_many_changes_have_a_place() -> None:
    rows = [line for line in part("Where does my change go?").splitlines() if line.startswith("| ")]
    assert len(rows) - 1 >= 12
