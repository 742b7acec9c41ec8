"""The run folder: made, found again, kept to one process, and taken back if nothing came of it.

A folder is a run folder when its job.toml begins with the mark below, and that file is written in one step. So a
crash at any moment leaves a folder to resume, or none that matters.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedspan._files import write_whole
from fedspan.errors import InputError
from fedspan.jobs.model import Job, load

try:
    import fcntl
except ImportError:  # a system without it has no lock; all else works
    fcntl = None  # type: ignore[assignment]

MARK = "# A fedspan run folder: `fedspan resume` goes on, `fedspan report` writes report.html anew."
DEMO_MARK = "# Made by `fedspan demo`, which may replace it."


class RunFolder:
    """The names in a run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job = path / "job.toml"
        self.model = path / "model.safetensors"
        self.ledger = path / "ledger.jsonl"
        self.checkpoint = path / "checkpoint"
        self.report = path / "report.html"
        self.scores = path / "scores.safetensors"  # rows for the report's scatter, if they may be drawn
        self.transcript = path / "transcript"  # only if the job asks for it
        self.audit = path / "audit.html"
        self.federation = path / "federation.json"  # where the run is, if not here
        self.audited = path / "audit.txt"  # what it found, in a few lines
        self._made: list[Path] = []  # folders that were not there before, the innermost first

    @classmethod
    def create(cls, path: Path, job: Job, *, demo: bool = False) -> RunFolder:
        """A new run folder with its job in it. A folder that holds anything else is refused and stays as it is."""
        folder = cls(path)
        if demo and DEMO_MARK in folder._marks():
            with folder.locked():
                folder._clear()
        elif path.is_dir() and any(not _temporary(entry) for entry in path.iterdir()):
            hint = "go on with `fedspan resume`, or give" if folder._marks() else "give"
            raise InputError(f"need a new or empty folder for the run, {path} is not empty; {hint} another --out")
        folder._made = [p for p in (path, *path.parents) if not p.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_whole(folder.job, "\n".join([MARK, *([DEMO_MARK] if demo else []), job.to_toml()]))
        except OSError as error:
            folder.undo()
            raise InputError(f"cannot make a run folder at {path}: {error.strerror}; give another --out") from None
        return folder

    @classmethod
    def find(cls, path: Path) -> tuple[RunFolder, Job]:
        """The run folder at that path, and its job."""
        folder = cls(path)
        if not folder._marks():
            raise InputError(
                f"need a run folder, as `fedspan run` makes it; {path} is none (no job.toml with its mark)"
            )
        return folder, load(folder.job)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time works in the folder; the lock goes with the process, however it ends."""
        with self.job.open("rb") as file:
            try:
                if fcntl:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"another process is at work in {self.path}; wait until it has ended") from None
            for place in (self.path, self.checkpoint, self.transcript):  # what a crash left half-written
                for entry in place.iterdir() if place.is_dir() else ():
                    if _temporary(entry):
                        entry.unlink()
            yield

    def undo(self) -> None:
        """Take back what `create` made: this folder's own files, and folders that were not there before."""
        with contextlib.suppress(OSError):  # what cannot be taken back was not ours: a full folder, a file in its place
            self._clear()
            self.job.unlink(missing_ok=True)
            for made in self._made:
                made.rmdir()

    def _marks(self) -> list[str]:
        """The comment lines that say what this is; none if it is no run folder."""
        try:
            with self.job.open(encoding="utf-8") as file:
                lines = [file.readline().rstrip("\n") for _ in range(2)]
        except (OSError, ValueError):
            return []
        return lines if lines[0] == MARK else []

    def _clear(self) -> None:
        """All that a run writes, but for the job: a folder without it would belong to nobody."""
        for file in (self.model, self.ledger, self.scores, self.report, self.audit, self.audited, self.federation):
            file.unlink(missing_ok=True)
        for place in (self.checkpoint, self.transcript):
            shutil.rmtree(place, ignore_errors=True)


def _temporary(entry: Path) -> bool:
    """Whether a crash of `write_whole` left this."""
    ours = (
        ".job.toml.",
        ".model.",
        ".ledger.",
        ".report.",
        ".scores.",
        ".round.",
        ".audit.",
        ".message-",
        ".federation.",
    )
    return entry.is_file() and entry.name.startswith(ours)
