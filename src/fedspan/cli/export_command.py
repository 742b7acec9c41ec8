"""`fedspan export`: the model of a run as a scikit-learn file that runs no code when read, or as an ONNX graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fedspan._files import write_whole
from fedspan.errors import InputError, MissingExtraError, suggest
from fedspan.estimators.classifier import FederatedClassifier
from fedspan.estimators.pca import FederatedPCA
from fedspan.estimators.personalized import PersonalizedPCA
from fedspan.estimators.regressor import FederatedRegressor
from fedspan.estimators.vertical_classifier import VerticalFederatedClassifier
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job
from fedspan.jobs.tasks import TASKS


class _Kind(NamedTuple):
    """A kind of file: how its name ends, and the estimators that can write it."""

    suffix: str
    able: tuple[type, ...]


_ABLE = (FederatedPCA, PersonalizedPCA, FederatedClassifier, VerticalFederatedClassifier, FederatedRegressor)
_FORMATS = {
    "sklearn": _Kind(".skops", _ABLE),
    "onnx": _Kind(".onnx", _ABLE),
}


def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.", show_default=False)],
    to: Annotated[str, typer.Option(metavar="sklearn|onnx", help="The format to write.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="A new file; default: model.skops or model.onnx in the run folder.")
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="The client whose components to export from a personalized model; default: none.")
    ] = None,
) -> None:
    """Export a run's model for use without fedspan: as a scikit-learn estimator (skops) or an ONNX graph."""
    place = RunFolder.find(folder)
    typer.echo(f"wrote {write_model(place, Job.load(place.job), to, out, client)}")


def write_model(folder: RunFolder, job: Job, to: str, out: Path | None, client: str | None = None) -> Path:
    """Write the model to a new file, by default in the run folder."""
    if to not in _FORMATS:
        raise InputError(f"--to must be {' or '.join(_FORMATS)}, but is {to!r}. {suggest(to, _FORMATS)}")
    kind, estimator = _FORMATS[to], TASKS[job.task].estimator
    out = out if out is not None else folder.path / f"model{kind.suffix}"
    if not issubclass(estimator, kind.able):
        able = ", ".join(name for name, task in TASKS.items() if issubclass(task.estimator, kind.able))
        raise InputError(f"--to {to} is for models of {able}, but this is one of {job.task!r}; load it in Python.")
    if client is not None and job.task != "personalized":
        raise InputError(
            f"--client is for personalized models, of which each client has its own, but this is {job.task!r}."
        )
    if not folder.model.exists():
        raise InputError(f"The run in {folder.path} has no model yet; complete it with: {folder.command('resume')}")
    if out.suffix != kind.suffix:
        raise InputError(
            f"--out must end in {kind.suffix}, but is {out.name}"
            + ("; other files of scikit-learn models run code when they are read." if to == "sklearn" else ".")
        )
    if out.exists():
        raise InputError(f"{out} already exists; choose another --out.")
    model = estimator.load(folder.model)
    try:
        if isinstance(model, PersonalizedPCA):
            if to == "sklearn":
                write_whole(out, _to_skops(model.to_sklearn(client)), public=True)
            else:
                model.to_onnx(out, client)
        elif isinstance(model, FederatedPCA | FederatedClassifier | VerticalFederatedClassifier | FederatedRegressor):
            if to == "sklearn":
                write_whole(out, _to_skops(model.to_sklearn()), public=True)
            else:
                model.to_onnx(out)
    except OSError as error:
        raise InputError(f"Cannot write {out}: {error.strerror}; choose another --out.") from None
    return out


def _to_skops(model: object) -> bytes:
    try:
        from skops.io import dumps
    except ImportError:
        raise MissingExtraError("writing scikit-learn models without code in them", "skops") from None
    data: bytes = dumps(model)
    return data
