"""Commands typed in this process, and what must be true of what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from fedspan.cli.main import app


def call(*words: Any) -> Any:
    """`fedspan` in this process: result.exit_code, result.stdout, result.stderr."""
    return CliRunner().invoke(app, [str(word) for word in words])


def assert_refused(done: Any, code: int, *words: str) -> None:
    """The command failed with this code, and one line on stderr that contains all the words."""
    assert done.exit_code == code, done.output
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def assert_resumed_to_the_same_model(run: Path) -> None:
    """A run that lost its model makes it again, to the byte."""
    path = run / "model.safetensors"
    model = path.read_bytes()
    path.unlink()
    result = call("resume", run)
    assert result.exit_code == 0, result.output
    assert path.read_bytes() == model
