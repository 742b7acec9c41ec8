"""The demo and the doctor: what a newcomer types first."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_world import tree

from fedspan import FederatedPCA, __version__
from fedspan.cli.doctor import GIVES

Fedspan = Callable[..., Any]


def test_the_demo_and_what_it_says_to_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedspan: Fedspan) -> None:
    monkeypatch.chdir(tmp_path)
    result = fedspan("demo")
    assert result.exit_code == 0, result.output
    table = {words[0]: words for line in result.stdout.splitlines() if (words := line.split()) and len(words) > 9}
    for solver in ("gram", "ssi", "krylov"):
        angle, variance = (float(word) for word in table[solver][-4:-2])
        assert angle < 1e-6
        assert variance < 1e-8
    assert int(table["gram"][1]) == 1 < int(table["krylov"][1]) < int(table["ssi"][1])

    run = tmp_path / "demo-run"
    assert FederatedPCA.load(run / "model.safetensors").n_samples_ == 1797
    page = (run / "report.html").read_text()
    assert page.count('class="picture"') == 10
    assert "demo: ssi took" in page
    lines = result.stdout.splitlines()
    assert "report: demo-run/report.html" in lines
    first, second = lines[-2].split(), lines[-1].split()
    assert first[:2] == ["fedspan", "run"]
    assert fedspan(*first[1:], "--out", "next").exit_code == 0
    assert fedspan(*second[1:]).exit_code == 0


def test_the_demo_replaces_a_demo_and_nothing_else(world: Path, fedspan: Fedspan) -> None:
    assert fedspan("demo", "--out", "show").exit_code == 0
    model = (world / "show" / "model.safetensors").read_bytes()
    (world / "show" / "notes.txt").write_text("mine")
    (world / "show" / "report.html").write_text("old")
    assert fedspan("demo", "--out", "show").exit_code == 0
    assert (world / "show" / "model.safetensors").read_bytes() == model
    assert (world / "show" / "report.html").read_text() != "old"
    assert (world / "show" / "notes.txt").read_text() == "mine"

    assert fedspan("run", "job.toml", "--out", "run").exit_code == 0
    before = tree(world)
    for folder in ("run", "."):
        refused = fedspan("demo", "--out", folder)
        assert refused.exit_code == 2
        assert f"The run folder {folder} is not empty" in refused.stderr
    assert tree(world) == before


def test_doctor_knows_what_is_missing_and_how_to_add_it(fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError, version

    asked: list[str] = []
    gone = {"torch", "onnx"}

    def some(name: str) -> str:
        asked.append(name)
        if name in gone:
            raise PackageNotFoundError(name)
        return version(name) if name in ("numpy", "scipy", "scikit-learn", "safetensors") else "1.0"

    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    lines = [f"{need}; extra == '{extra}'" for extra, needs in extras.items() for need in needs]
    monkeypatch.setattr("fedspan.cli.doctor.requires", lambda name: lines)  # as a new installation would have them
    monkeypatch.setattr("fedspan.cli.doctor.version", some)
    page = fedspan("doctor").stdout
    for text in (__version__, version("numpy"), version("scikit-learn"), "thread", "cores"):
        assert text in page
    assert "pip install 'fedspan[deep,onnx]'" in page
    assert "no (torch)" in page
    assert "no (onnx)" in page
    assert set(GIVES) == set(extras) - {"all", "dev", "docs", "test"}  # each extra has words
    assert {"pyarrow", "skops", "mlflow-skinny", "tensorboard", "nvflare", "dp-accounting"} <= set(asked)
    gone.clear()
    assert "Nothing is missing." in fedspan("doctor").stdout
