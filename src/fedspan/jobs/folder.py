"""The run folder: created, found again, kept to one process, and taken back if no exchange was completed.

A folder is a run folder when its job.toml begins with the mark below, and that file is written in one step. So a
crash at any moment leaves a folder to resume, or none that matters.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import parse_toml, printable
from fedspan.core.ledger import Ledger
from fedspan.errors import InputError

try:
    import fcntl
except ImportError:  # a system without it has no lock; all else works
    fcntl = None  # type: ignore[assignment]

_LOCKS = Path("/proc/locks")  # Linux: who holds which lock
MARK = "# A fedspan run folder: `fedspan resume` goes on, `fedspan report` writes report.html anew."
DEMO_MARK = "# Made by `fedspan demo`, which may replace it."


class RunFolder:
    """The files of a run, by their names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job = path / "job.toml"
        self.model = path / "model.safetensors"
        self.ledger = path / "ledger.jsonl"
        self.checkpoint = path / "checkpoint"
        self.report = path / "report.html"
        self.scores = path / "scores.safetensors"  # rows for the report's scatter, if they may be drawn
        self.genotypes = path / "genotypes"  # loadings and scores, if the clients have genotypes
        self.transcript = path / "transcript"  # only if the job asks for it
        self.audit = path / "audit.html"
        self.federation = path / "federation.json"  # where the run is, if not here
        self.watched = path / "watched.jsonl"  # what is seen here of a run on a federation, until its ledger comes
        self.audited = path / "audit.txt"  # what it found, in a few lines
        self._made: list[Path] = []  # folders that were not there before, the innermost first

    @classmethod
    def create(cls, path: Path, job_text: str, *, demo: bool = False) -> RunFolder:
        """Make a run folder with its job in it. A folder that holds anything else is refused and stays as it is."""
        folder = cls(path)
        if demo and DEMO_MARK in folder._marks():
            with folder.lock():
                folder._clear()
        elif path.is_dir() and any(not _is_temporary(entry) for entry in path.iterdir()):
            resume = f"go on with `{folder.command('resume')}`, or " if folder._marks() else ""
            raise InputError(f"The run folder {path} is not empty; {resume}choose another folder.")
        folder._made = [p for p in (path, *path.parents) if not p.exists()]
        marks = [MARK, DEMO_MARK] if demo else [MARK]
        try:
            make_private_folder(path)
            write_whole(folder.job, "\n".join([*marks, job_text]))
        except OSError as error:
            folder.undo()
            raise InputError(f"Cannot create run folder {path}: {error.strerror}; choose another folder.") from None
        return folder

    @classmethod
    def find(cls, path: Path) -> RunFolder:
        """Open the run folder at that path."""
        folder = cls(path)
        if not folder._marks():
            raise InputError(
                f"'{path}' is not a run folder. A run folder is what `fedspan run` creates; its job.toml begins with "
                "a mark."
            )
        return folder

    def command(self, name: str) -> str:
        """Spell a command for this folder, to copy."""
        return f"fedspan {name} {shlex.quote(str(self.path))}"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out of the folder; the lock goes with the process, however it ends."""
        with self.job.open("rb") as file:
            try:
                if fcntl:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"Another process is at work in {self.path}; wait until it has ended.") from None
            for place in (self.path, self.checkpoint, self.transcript):  # what a crash left half-written
                for entry in place.iterdir() if place.is_dir() else ():
                    if _is_temporary(entry):
                        entry.unlink()
            yield

    def is_at_work(self) -> bool:
        """Whether a process holds the folder's lock. It is only looked at: to take it would keep others out."""
        try:
            number = self.job.stat().st_ino
            lines = _LOCKS.read_text(encoding="ascii").splitlines()
        except OSError:  # a system that does not tell
            return False
        return any(" FLOCK " in line and f":{number} " in line for line in lines)

    def undo(self) -> None:
        """Take back what `create` made: this folder's own files, and folders that were not there before."""
        with contextlib.suppress(OSError):  # what cannot be taken back was not ours: a full folder, a file in its place
            self._clear()
            self.job.unlink(missing_ok=True)
            for made in self._made:
                made.rmdir()

    def _marks(self) -> list[str]:
        """Read the comment lines that say what this is; none if it is no run folder."""
        try:
            with self.job.open(encoding="utf-8") as file:
                lines = [file.readline().rstrip("\n") for _ in range(2)]
        except (OSError, ValueError):
            return []
        return lines if lines[0] == MARK else []

    def _clear(self) -> None:
        """Delete all that a run writes, but for the job: a folder without it would belong to nobody."""
        own = (self.model, self.ledger, self.scores, self.report, self.audit, self.audited)
        for file in (*own, self.federation, self.watched):
            file.unlink(missing_ok=True)
        for place in (self.checkpoint, self.transcript, self.genotypes):
            shutil.rmtree(place, ignore_errors=True)


@dataclass(frozen=True)
class ListedRun:
    """One run folder, as a list shows it. `result`: done, interrupted, or not started."""

    path: Path
    task: str
    changed: datetime
    result: str

    def to_dict(self) -> dict[str, str]:
        """The same as plain data."""
        return {
            "folder": str(self.path),
            "task": self.task,
            "date": self.changed.isoformat(timespec="seconds"),
            "result": self.result,
        }


def list_runs(place: Path) -> list[ListedRun]:
    """The run folders in a folder, or the folder itself if it is one, the latest first."""
    if not place.is_dir():
        raise InputError(f"There is no folder {place}. Run folders are where `fedspan run --out` made them.")
    found = []
    for path in [place, *sorted(place.iterdir())]:
        folder = RunFolder(path)
        if not folder._marks():
            continue
        try:
            task = str(parse_toml(folder.job.read_text(encoding="utf-8"))["job"]["task"])
        except (OSError, ValueError, KeyError, TypeError):
            task = "unknown"
        files = [file for file in (folder.model, folder.ledger, folder.job) if file.exists()]
        result = "done" if folder.model.exists() else "interrupted" if folder.ledger.exists() else "not started"
        changed = datetime.fromtimestamp(max(file.stat().st_mtime for file in files))
        found.append(ListedRun(path, printable(task), changed, result))
    return sorted(found, key=lambda run: run.changed, reverse=True)


def received_nothing(ledger: Ledger, *, private: bool) -> bool:
    """Whether a run may be forgotten, and its folder taken back, because no client has sent anything.

    With privacy a question is in the ledger before it is sent: from then on a client may have answered it.
    """
    return not ledger.questions and not (private and ledger.started)


_TEMPORARY = (
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


def _is_temporary(entry: Path) -> bool:
    """Whether a crash of `write_whole` left this."""
    return entry.is_file() and entry.name.startswith(_TEMPORARY)
