"""Runs that end before their time: in a callback after a round, or within a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedspan.engines import InProcess


class Cut(Exception):
    """A run ends here, and not by its own will."""


def cut_after(round: int) -> Callable[[Any], None]:
    """A callback that ends the run after this round."""

    def cut(info: Any) -> None:
        if info.round == round:
            raise Cut

    return cut


def cut_within(last: int) -> type[InProcess]:
    """An engine that ends the run in this round, when its clients have answered."""

    class Cutting(InProcess):
        def start(self, *args: Any) -> Any:
            session = super().start(*args)
            exchange = session.exchange

            def cut(ask: Any, cohort: Any, round: int, number: int) -> Any:
                answer = exchange(ask, cohort, round, number)
                if round == last:
                    raise Cut
                return answer

            session.exchange = cut  # type: ignore[method-assign]
            return session

    return Cutting
