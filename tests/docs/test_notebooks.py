"""The notebooks run from top to end, and what each cell shows can be shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; the value of its last expression, unless a semicolon ends it."""
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if last is None or source.rstrip().endswith(";"):
        exec(compile(tree, "cell", "exec"), namespace)  # noqa: S102 - our own notebooks
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), namespace)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)  # noqa: S307


def show(value: Any) -> str:
    """What a notebook shows of a value."""
    to_html = getattr(value, "_repr_html_", None)
    return str(to_html() if to_html is not None else repr(value))


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["analyst", "researcher", "three-hospitals"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ("pandas", "matplotlib", "dp_accounting"):
        pytest.importorskip(extra, reason="notebooks need fedspan[plots,privacy] and pandas")
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert any("After this notebook" in line for line in notebook["cells"][0]["source"])
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shown = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # they are made by who runs it
            value = run_cell("".join(cell["source"]), namespace)
            if value is not None:
                assert show(value)
                shown += 1
    assert shown >= 3
