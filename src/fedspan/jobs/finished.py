"""A finished run: its model and its ledger, and the folder that keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedspan.core.ledger import Ledger
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.tasks import AnyModel


@dataclass(frozen=True)
class Run:
    """What a job leaves."""

    folder: RunFolder
    model: AnyModel
    ledger: Ledger

    @property
    def report(self) -> Path:
        """The page that shows the run."""
        return self.folder.report
