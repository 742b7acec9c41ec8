"""`fedspan export`: the model of a run for others, as a scikit-learn file that runs no code, or as an ONNX graph."""

from __future__ import annotations

from pathlib import Path

from fedspan._files import write_whole
from fedspan.errors import InputError, MissingExtraError, nearest
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job
from fedspan.jobs.tasks import TASKS, estimator

# The method that makes it, and how the file's name ends.
_KINDS = {"sklearn": ("to_sklearn", ".skops"), "onnx": ("to_onnx", ".onnx")}


def export(folder: RunFolder, job: Job, kind: str, out: Path | None, client: str | None = None) -> Path:
    """Write the model to a new file; default: into the run folder."""
    if kind not in _KINDS:
        raise InputError(f"need --to {' or '.join(_KINDS)}, got {kind!r}; {nearest(kind, _KINDS)}")
    method, suffix = _KINDS[kind]
    out = out if out is not None else folder.path / f"model{suffix}"
    able = [task for task in TASKS if hasattr(estimator(task), method)]
    if job.task not in able:
        raise InputError(f"need a model of {', '.join(able)} for --to {kind}, got {job.task!r}; load it in Python")
    if client is not None and job.task != "personalized":
        raise InputError(f"--client is for personalized models, of which each client has its own; this is {job.task!r}")
    if not folder.model.exists():
        raise InputError(f"need a complete run, {folder.path} has no model yet; do: fedspan resume {folder.path}")
    if out.suffix != suffix:
        raise InputError(
            f"need --out to end in {suffix}, got {out.name}"
            + ("; other files of scikit-learn models run code when they are read" if kind == "sklearn" else "")
        )
    if out.exists():
        raise InputError(f"{out} is there already, and is not overwritten; give another --out")
    model = estimator(job.task).load(folder.model)
    try:
        if kind == "sklearn":
            write_whole(out, _skops(model.to_sklearn(client) if job.task == "personalized" else model.to_sklearn()))
        else:
            model.to_onnx(out)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}; give another --out") from None
    return out


def _skops(model: object) -> bytes:
    try:
        from skops.io import dumps
    except ImportError:
        raise MissingExtraError("writing scikit-learn models without code in them", "skops") from None
    data: bytes = dumps(model)
    return data
