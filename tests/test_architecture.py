"""The rules of docs/architecture.md that a reader could break without noticing, read from the sources themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fedspan"
MODULES = {
    ".".join(["fedspan", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}

# What each part may import of fedspan besides itself. The estimators and the command line stand on top: anything
# but the command line (see below).
CORE = {"fedspan.protocol", "fedspan.rng", "fedspan.errors"}
MAY_IMPORT = {
    "fedspan.errors": set(),
    "fedspan.rng": set(),
    "fedspan.files": set(),
    "fedspan.protocol": {"fedspan.errors", "fedspan.rng"},
    "fedspan.ledger": {"fedspan.errors", "fedspan.files", "fedspan.privacy"},
    "fedspan.numerics": {"fedspan.protocol", "fedspan.errors"},
    "fedspan.algorithms": {*CORE, "fedspan.numerics"},
    "fedspan.channel": CORE,
    "fedspan.federation": {*CORE, "fedspan.algorithms"},
    "fedspan.checkpoint": {*CORE, "fedspan.files", "fedspan.channel"},
    "fedspan.privacy": {*CORE, "fedspan.channel", "fedspan.files", "fedspan.numerics"},
    "fedspan.callbacks": {"fedspan.errors", "fedspan.ledger", "fedspan.run"},
    "fedspan.run": {
        *CORE,
        "fedspan.channel",
        "fedspan.checkpoint",
        "fedspan.federation",
        "fedspan.ledger",
        "fedspan.privacy",
    },
    "fedspan.engines": {
        *CORE,
        "fedspan.channel",
        "fedspan.checkpoint",
        "fedspan.federation",
        "fedspan.files",
        "fedspan.ledger",
        "fedspan.privacy",
        "fedspan.run",
    },
}


# The adapter to FLARE is an engine by its place, but stands above: it carries what the deployment says.
ABOVE = {"fedspan.engines.flare", "fedspan.engines.flare_admin"}


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imports(module: str) -> Iterator[str]:
    """Full names of all that a module imports, wherever in it."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, [base, node.module]))
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield full if full in MODULES else source


def importers(library: str) -> set[str]:
    return {module for module in MODULES if any(inside(name, library) for name in imports(module))}


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_stands_below_it(part: str) -> None:
    modules = [module for module in MODULES if inside(module, part) and module not in ABOVE]
    assert modules
    for module in modules:
        for name in imports(module):
            if inside(name, "fedspan"):
                allowed = {part, *MAY_IMPORT[part]}
                assert any(inside(name, good) for good in allowed), f"{module} may not import {name}"


def test_nothing_imports_the_command_line() -> None:
    assert {module for module in importers("fedspan.cli") if not inside(module, "fedspan.cli")} == set()


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("nvflare", {"fedspan.engines.flare", "fedspan.engines.flare_admin"}),
        ("torch", {"fedspan.algorithms.networks", "fedspan.algorithms.torch_model"}),
    ],
)
def test_a_heavy_library_has_one_door(library: str, allowed: set[str]) -> None:
    assert importers(library) <= allowed


def test_importing_fedspan_loads_nothing_that_is_optional() -> None:
    """A plain `import fedspan` must work, and be quick, with the core dependencies alone."""
    optional = [
        "torch",
        "nvflare",
        "polars",
        "dp_accounting",
        "cryptography",
        "Crypto",
        "typer",
        "rich",
        "onnx",
        "skops",
    ]
    optional += ["mlflow", "tensorboard"]
    code = f"import sys, fedspan; print([name for name in {optional} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "library",
    [
        "pandas",
        "pyarrow",
        "polars",
        "dp_accounting",
        "cryptography",
        "Crypto",
        "onnx",
        "skops",
        "mlflow",
        "tensorboard",
    ],
)
def test_an_optional_library_is_imported_where_it_is_used(library: str) -> None:
    """scikit-learn loads pandas if it is there, so the test above cannot see it."""
    for module in MODULES:
        for node in tree(module).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(inside(name, library) for name in names), f"{module} cannot be imported without {library}"


UNSAFE_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


@pytest.mark.parametrize("module", MODULES)
def test_nothing_runs_code_that_came_as_data(module: str) -> None:
    for name in imports(module):
        assert name.partition(".")[0] not in UNSAFE_MODULES, f"{module} imports {name}"
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Constant):
            assert node.value not in UNSAFE_MODULES, f"{module}:{node.lineno} names {node.value}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in UNSAFE_CALLS, f"{module}:{node.lineno} calls {node.func.id}"
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
            safe = node.arg == "weights_only"
            assert isinstance(node.value, ast.Constant), f"{module}:{node.value.lineno} must say {node.arg}={safe}"
            assert node.value.value is safe, f"{module}:{node.value.lineno} must say {node.arg}={safe}"


def test_no_source_names_a_pickle_except_to_refuse_it() -> None:
    """The same by eye: what the syntax tree might not show."""
    odd = re.compile(
        r"allow_pickle\s*=\s*True|import\s+\w*pickle|\bpickle\.|\bdill\b|\bjoblib\b|__reduce|weights_only=F"
    )
    for module, path in MODULES.items():
        found = odd.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{module}: {found}"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_can_be_read_at_one_sitting(module: str) -> None:
    lines = MODULES[module].read_text(encoding="utf-8").count("\n")
    assert lines <= 600, f"{module} has {lines} lines; give one of its parts a module of its own"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_is_for(module: str) -> None:
    assert not tree(module).body or ast.get_docstring(tree(module)), f"{module} has no docstring"


def test_no_file_knows_a_path_of_one_machine() -> None:
    """Of the files that are in the repository: what somebody left beside them is his own."""
    listed = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs a git checkout: {done.stderr.strip()}")
    files = done.stdout.split("\0")
    assert "pyproject.toml" in files
    machine = re.compile(r"(?<![\w.~}])/(?:work|root|tmp|home/\w+)/")
    for name in files:
        path = ROOT / name
        try:
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
        except UnicodeDecodeError:
            continue
        found = machine.search(text.replace(machine.pattern, ""))
        assert found is None, f"{name} names {found}"
