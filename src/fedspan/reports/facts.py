"""What a report is told about a run besides its model and its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedspan._types import Array
from fedspan.privacy.request import RowDP


@dataclass(frozen=True)
class RunFacts:
    """What was asked for.

    Parameters:
        task: "pca", "svd", "gcca", "deep-gcca", "personalized", "classifier", "vertical-classifier", "regressor",
            "vertical-pca" or "vertical-svd".
        job_text: The job file, to print at the end of the report; empty if there was none.
        privacy: The differential privacy that was asked for.
        secure: Whether the server was to see sums over the clients only.
        seed: The seed that repeats the run; None: the model's own.
        folder: The run folder, for links to an audit and for commands to copy.
    """

    task: str
    job_text: str = ""
    privacy: RowDP | None = None
    secure: bool = False
    seed: int | None = None
    folder: Path | None = None

    @property
    def hides_rows(self) -> bool:
        """Whether nobody is to see single rows, or a single client's part."""
        return self.privacy is not None or self.secure


@dataclass(frozen=True)
class Scores:
    """Where some rows lie in the first two components, in groups that are drawn in different colours.

    Parameters:
        by: What a group is: "client", or the name of the column of labels.
        groups: The coordinates (n, 2) of each group's rows.
    """

    by: str
    groups: Mapping[str, Array]
