"""What was asked of a site in a run that is not verified, in a file of the run that only grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedspan._files import append_line, make_private_folder
from fedspan.engines.questions import AskedOnce

_HEX_DIGITS = 64  # of a digest


class QuestionsOnDisk:
    """The questions of a run, so that whoever opens it again cannot ask others."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "asked"

    def load(self) -> Iterator[AskedOnce]:
        """All of them, in the order in which they came."""
        if not self.path.is_file():
            return
        for words in (line.split() for line in self.path.read_text(encoding="ascii").splitlines()):
            if len(words) == 3 and len(words[2]) == _HEX_DIGITS:  # a line that a crash cut off was never answered
                yield AskedOnce(int(words[0]), words[1], bytes.fromhex(words[2]))

    def add(self, asked: AskedOnce) -> None:
        """Write it down, before it is answered."""
        make_private_folder(self.path.parent)
        append_line(self.path, f"{asked.round} {asked.task} {asked.digest.hex()}")
