"""What a site checks of the questions of a run that is not verified: less than a replay, but more than nothing.

Numbers are finite and of the type that the algorithm sends; a block that it declares as orthonormal is; the opening is
asked in round 0 only, and never in two ways; nobody goes back within an opening of the run. What follows from earlier
sums (the mean, the next block) a site cannot know without the sums: that is what verified runs are for.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.channel.stage import Channel
from fedspan.channel.wire import Message
from fedspan.core.protocol import AnyServer
from fedspan.core.replay import COARSE_BLOCK, ORTHONORMAL, Basis, Replay, WeightedBasis, departure
from fedspan.errors import ProtocolError
from fedspan.secure.masking import SUM, digest_request

OPENING_TASKS = frozenset({"count", "spread", "settle"})  # of algorithms/_moments.py: asked in round 0 only
_CODES = (np.dtype(np.int8), np.dtype(np.int16))


class QuestionCheck:
    """One run at one site. A block that comes through a lossy channel is orthonormal only about, and not checked."""

    def __init__(self, server: AnyServer, channel: Channel, rounds: int) -> None:
        how, lossy = server.replay(), bool(set(channel.down.kinds) - {"pack"})
        self.how: Replay = {} if isinstance(how, str) or lossy else how
        self.rounds = rounds  # 0: not known
        self.last = (-1, -1)
        self.opening: dict[str, bytes] = {}

    def check(self, message: Message, arrays: Arrays) -> None:
        """Refuse a question that no server of this algorithm would ask."""
        place, question = (message.round, message.exchange), {n: x for n, x in arrays.items() if n != SUM}
        if place < self.last or (self.rounds and message.round > self.rounds):
            raise ProtocolError(f"A question for round and exchange {place} is out of order.")
        self.last = place
        if message.task in OPENING_TASKS:
            digest = digest_request(message.task, question)
            if message.round != 0 or self.opening.setdefault(message.task, digest) != digest:
                raise ProtocolError(f"{message.task!r} belongs to the opening of a run, and is asked there in one way.")
        for name, x in question.items():
            self._check_array(name, x)
        for name, kind in self.how.get(message.task, {}).items():
            if name in question and isinstance(kind, Basis):
                _check_block(name, question[name], question.get(kind.grid) if kind.grid else None)
            if name in question and isinstance(kind, WeightedBasis):
                for block in question[name].reshape(-1, *question[name].shape[-2:]):
                    _check_block(name, block, None)

    def _check_array(self, name: str, x: Array) -> None:
        if x.dtype.kind == "f":
            if x.dtype.itemsize < 4 or not np.isfinite(x).all():
                raise ProtocolError(f"{name!r} of a question must be finite numbers of 32 or 64 bits.")
        elif x.ndim > 1 and x.dtype.itemsize > 2:
            raise ProtocolError(f"{name!r} of a question is a block of wide integers, which no algorithm sends.")


def _check_block(name: str, V: Array, step: Array | None) -> None:
    """Refuse a block that is not orthonormal, or has another type than one is sent in."""
    fits = V.dtype == np.float64 if step is None else V.dtype in _CODES
    if V.ndim != 2 or not fits:
        raise ProtocolError(f"{name!r} of a question must be a block of float64, or of codes, but is {V.dtype}.")
    most = ORTHONORMAL
    if step is not None:
        V = V * step
        most = max(COARSE_BLOCK, float(np.linalg.norm(step)) * np.sqrt(len(V)))  # what rounding to the grid can do
    if not departure(V) <= most:
        raise ProtocolError(f"The columns of {name!r} in a question are not orthonormal.")
