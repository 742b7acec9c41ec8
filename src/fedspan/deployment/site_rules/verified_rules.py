"""What a site demands of verified runs, and what it remembers of one beside its own state."""

from __future__ import annotations

from pathlib import Path

from fedspan._files import append_line, make_private_folder, write_whole
from fedspan.engines.start import StartMessage
from fedspan.errors import PrivacyError, ProtocolError

QUALIFYING = ("gram", "krylov", "ssi", "localpower", "faps", "ssca", "fedsgd", "fedavg")  # for a refusal's last words


def check_verified(start: StartMessage, required: bool, sites: tuple[str, ...] | None) -> None:
    """Refuse a run that is not verified where that is required, or whose sites are not those of the site's file."""
    if required and not start.verified:
        why = start.algorithm.replay()
        told = f"{type(start.algorithm).__name__.lower()} cannot be, because {why}" if isinstance(why, str) else ""
        raise PrivacyError(
            "This site accepts verified runs only, and this one is not"
            + (f" ({told})" if told else "")
            + f". Write [secure] verified = true in the job, with a solver that qualifies ({', '.join(QUALIFYING)})."
        )
    if not start.verified:
        return
    if sites is not None and set(start.clients) != set(sites):
        raise PrivacyError(
            f"This site takes part in verified runs of {', '.join(sorted(sites))} only, but this one is of "
            f"{', '.join(sorted(start.clients))}. Run it with those sites, or change sites in [require] of the site's "
            "own file."
        )
    members = sorted(name for group in start.groups for name in group)
    if members != sorted(start.clients) or len(members) != len(set(members)):
        raise ProtocolError("The groups of a verified run must hold each of its sites once.")
    if start.threshold != min(len(group) for group in start.groups):
        raise ProtocolError("The threshold of a verified run must be the size of its smallest group.")


def check_same_opening(folder: Path, digest: bytes) -> None:
    """Refuse another opening of a run that was opened before, and remember this one."""
    path = folder / "opening"
    if not path.exists():
        make_private_folder(folder)
        write_whole(path, digest.hex())
    elif path.read_text(encoding="ascii") != digest.hex():
        raise ProtocolError(
            "This run was opened before, and not like this. A run begins with one opening; start a new run."
        )


class AskedOnDisk:
    """The questions of a run, by the transcripts before them, in a file that only grows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "questions"
        self.known: dict[bytes, bytes] = {}
        if self.path.is_file():
            lines = self.path.read_text(encoding="ascii").splitlines()
            for words in (line.split() for line in lines):
                if [len(word) for word in words] == [64, 64]:  # a line that a crash cut off was never answered
                    self.known[bytes.fromhex(words[0])] = bytes.fromhex(words[1])

    def note(self, before: bytes, question: bytes) -> bool:
        """Remember the question; False if another one was asked after the same transcript."""
        if before not in self.known:
            append_line(self.path, f"{before.hex()} {question.hex()}")
            self.known[before] = question
        return self.known[before] == question
