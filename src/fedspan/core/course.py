"""The course of a run: which tasks its server asks, in which order, and in how many ways at most.

An algorithm says it beside `asks()`, and a site of a run that is not verified holds the server to it
(engines/questions.py). All of it are upper bounds: a client that is not asked in some round, or not at all, sees less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SHIFT = ("mean", "scale")  # what a server may tell to be subtracted from rows, and to divide them by
UNIT = ("unit",)  # and what it may tell with these to divide them by besides


@dataclass(frozen=True, init=False)
class Turn:
    """Tasks whose turn it is at one point of a round; several are asked in any order, or in turn.

    `most`: in how many ways each may be asked in a round; the same question once more is a retry. `rounds`: in how many
    rounds; None: in all. `after`: what must have been asked in the run before. `tells`: arrays of their questions that
    are the same in the whole run, and which of mean and scale they bring; None: neither is read.
    """

    tasks: tuple[str, ...]
    most: int
    rounds: int | None
    after: tuple[str, ...]
    tells: tuple[str, ...] | None

    def __init__(
        self,
        *tasks: str,
        most: int = 1,
        rounds: int | None = None,
        after: Iterable[str] = (),
        tells: Iterable[str] | None = None,
    ) -> None:
        object.__setattr__(self, "tasks", tasks)
        object.__setattr__(self, "most", most)
        object.__setattr__(self, "rounds", rounds)
        object.__setattr__(self, "after", tuple(after))
        object.__setattr__(self, "tells", None if tells is None else tuple(tells))


@dataclass(frozen=True)
class Course:
    """The turns of the opening (round 0), and of every further round, in their order. A task is in one turn of each."""

    opening: tuple[Turn, ...]
    round: tuple[Turn, ...] = ()

    def turns(self, round: int) -> tuple[Turn, ...]:
        """Those of that round."""
        return self.round if round else self.opening


def course_of(tasks: Iterable[str]) -> Course:
    """Each task at most once in the opening and in every round, in any order: for who says nothing else."""
    each = (Turn(*sorted(tasks)),)
    return Course(each, each)
