"""`fedspan export`: files that others read, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import skops.io
from cli_world import check_refused, rows, tree

from fedspan import FederatedPCA

Fedspan = Callable[..., Any]
NEW = rows(5, 12)


@pytest.fixture
def run(world: Path, fedspan: Fedspan) -> FederatedPCA:
    assert fedspan("run", "job.toml", "--set", "job.scale=true", "--out", "run").exit_code == 0
    return FederatedPCA.load(world / "run" / "model.safetensors")


def test_the_files_give_the_same_transform(world: Path, fedspan: Fedspan, run: FederatedPCA) -> None:
    result = fedspan("export", "run", "--to", "sklearn")
    assert (result.exit_code, result.stdout) == (0, "wrote run/model.skops\n"), result.output
    theirs = skops.io.load(world / "run" / "model.skops")
    np.testing.assert_allclose(theirs.transform(NEW), run.transform(NEW), rtol=1e-12, atol=1e-12)
    assert fedspan("export", "run", "--to", "onnx", "--out", "given.onnx").exit_code == 0
    session = onnxruntime.InferenceSession(str(world / "given.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"X": NEW})[0], run.transform(NEW), rtol=1e-6, atol=1e-6)
    assert session.get_modelmeta().custom_metadata_map["features"].split("\n") == list(run.feature_names_in_)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--to", "sklaern"], "--to must be sklearn or onnx, but is 'sklaern'. Did you mean 'sklearn'?"),
        (["run", "--to", "sklearn", "--out", "model.pkl"], "--out must end in .skops, but is model.pkl; other files"),
        (["run", "--to", "onnx", "--out", "model.skops"], "--out must end in .onnx, but is model.skops"),
        (["run", "--to", "onnx", "--out", "taken.onnx"], "taken.onnx already exists; choose another --out."),
        (["run", "--to", "onnx", "--out", "no/such.onnx"], "Cannot write no/such.onnx: No such file"),
        (["run", "--to", "onnx", "--client", "north"], "--client is for personalized models"),
        ([".", "--to", "onnx"], "'.' is not a run folder."),
        (["half", "--to", "onnx"], "half has no model yet; complete it with: fedspan resume half"),
    ],
)
def test_what_is_refused(world: Path, fedspan: Fedspan, run: FederatedPCA, words: list[str], says: str) -> None:
    (world / "taken.onnx").write_text("mine")
    (world / "half").mkdir()
    (world / "half" / "job.toml").write_bytes((world / "run" / "job.toml").read_bytes())
    before = tree(world)
    result = fedspan("export", *words)
    check_refused(result, says)
    assert tree(world) == before


def test_personalized_models_are_exported_client_by_client(world: Path, fedspan: Fedspan) -> None:
    job = (world / "job.toml").read_text().replace('"pca"', '"personalized"').replace('solver = "krylov"\n', "")
    (world / "job.toml").write_text(job)
    assert fedspan("run", "job.toml", "--out", "run").exit_code == 0
    assert fedspan("export", "run", "--to", "sklearn", "--client", "south", "--out", "s.skops").exit_code == 0
    assert skops.io.load(world / "s.skops").transform(NEW).shape == (12, 2)
    refused = fedspan("export", "run", "--to", "sklearn")
    assert refused.exit_code == 2
    assert "client=… must say whose rows these are, but is None. Known: north, south" in refused.stderr
    assert fedspan("export", "run", "--to", "onnx").exit_code == 2
