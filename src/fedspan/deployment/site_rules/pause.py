"""A site that is paused by its administrator: no run begins or goes on there until the pause is over."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from fedspan._files import make_private_folder, write_whole
from fedspan.errors import PolicyRefusal


class Pause:
    """Whether a site is paused, in `fedspan/paused` of its kit: jobs look at it before each answer."""

    def __init__(self, kit: Path) -> None:
        self.path = kit / "fedspan" / "paused"

    def begin(self) -> None:
        """Pause the site; a run that goes on is stopped before its next answer, and can be resumed later."""
        make_private_folder(self.path.parent)
        write_whole(self.path, f"{datetime.now():%Y-%m-%d %H:%M:%S}\n")

    def end(self) -> bool:
        """Let runs begin and go on again; returns whether the site was paused."""
        was_paused = self.path.exists()
        self.path.unlink(missing_ok=True)
        return was_paused

    def check_running(self) -> None:
        """Refuse what comes while the site is paused."""
        if self.path.exists():
            raise PolicyRefusal("This site is paused by its administrator. Resume the run later.", passing=True)
