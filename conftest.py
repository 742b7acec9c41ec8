"""The examples in README.md, docs and docstrings are tests.

One test per document, from its top to its end and in an empty folder: later examples build on earlier ones, so they
must not be dealt out to several processes. Python is run; a toml block that begins with a comment `# NAME.toml` is
written to that file; lines of shell are run there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from hashlib import shake_256
from pathlib import Path
from typing import Any

import pytest
from sybil import Document, Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

from fedspan.privacy import keyring

ROOT = Path(__file__).resolve().parent
DRAW_SECRET = keyring.draw_secret  # the operating system's


class FixedNoise:
    """Noise of private runs in tests: it follows from the test's name, so that no test fails by chance.

    With another FEDSPAN_NOISE_SEED in the environment it is other noise: run a test with many of them to see how near
    it is to failing.
    """

    def __init__(self) -> None:
        self.begin("")

    def begin(self, test: str) -> None:
        self.name = f"{os.environ.get('FEDSPAN_NOISE_SEED', '')} {test}"
        self.numbers = itertools.count()

    def draw(self, size: int) -> bytes:
        return shake_256(f"{self.name} {next(self.numbers)}".encode()).digest(size)


_NOISE = FixedNoise()
keyring.draw_secret = _NOISE.draw


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _NOISE.begin(item.nodeid)


def _write(example: Example) -> str | None:
    first = example.parsed.partition("\n")[0]
    if first.startswith("# ") and first.endswith(".toml"):
        Path(first.removeprefix("# ")).write_text(example.parsed, encoding="utf-8")
    return None


def _shell(example: Example) -> str | None:
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["bash", "-euc", example.parsed], env=env, capture_output=True, text=True)  # noqa: S603, S607
    return None if done.returncode == 0 else f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


_SYBILS = (
    Sybil(
        [
            PythonCodeBlockParser(),
            CodeBlockParser(language="toml", evaluator=_write),
            CodeBlockParser(language="sh", evaluator=_shell),
            SkipParser(),
        ],
        patterns=["*.md"],
    ),
    Sybil([DocTestParser()], patterns=["src/fedspan/*.py", "src/fedspan/*/*.py"]),
)


class Examples(pytest.Item):
    """All examples of one document."""

    def __init__(self, *, document: Document, **more: Any) -> None:
        super().__init__(**more)
        self.document = document

    def runtest(self) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for example in self.document.examples():
                example.evaluate()


class ExamplesFile(pytest.File):
    """A document, if it has examples."""

    def collect(self) -> Iterator[pytest.Item]:
        document = next(sybil for sybil in _SYBILS if sybil.should_parse(self.path)).parse(self.path)
        if any(document.examples()):
            yield Examples.from_parent(self, name="examples", document=document)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if any(sybil.should_parse(file_path) for sybil in _SYBILS):
        return ExamplesFile.from_parent(parent, path=file_path)
    return None
