"""What a site has not seen of earlier exchanges, as bytes that travel with the next question.

Of a sum each integer takes as many bytes as the largest of its lane needs: the sums of whole parts are small, and the
rests have no more bits than the step and the number of clients. Matrices of integers take as many bits as their rows
and columns need (packing.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.channel import wire
from fedspan.errors import ProtocolError
from fedspan.secure.fixed import COUNTS
from fedspan.secure.masking import Place
from fedspan.secure.packing import shrink, unshrink
from fedspan.secure.tags import TAGS


@dataclass(frozen=True)
class Exchanged:
    """One exchange of a verified run, as the server holds it: the question, and what came of it.

    `lanes` is the sum with its tag, still as integers; `each` are replies that are public. `to` None: all were asked.
    `wrapped` marks columns of narrow arrays that are asked for again: then there is no sum yet.
    """

    place: Place
    task: str
    names: tuple[str, ...]  # of the arrays that were summed
    to: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ()
    epoch: str = ""  # under whose keys the sum was taken
    question: dict[str, Array] = field(default_factory=dict)
    lanes: dict[str, Array] = field(default_factory=dict)
    each: dict[str, dict[str, Array]] = field(default_factory=dict)
    wrapped: dict[str, Array] = field(default_factory=dict)


def to_blob(past: Exchanged, *, asked: bool) -> Array:
    """The exchange for a site that has seen its question (`asked`), or has not."""
    arrays: dict[str, Array] = {}
    shapes: dict[str, list[int]] = {}
    for name, lanes in past.lanes.items():
        shapes[name] = list(lanes.shape)
        if len(lanes) == 1 and lanes.ndim == 3:
            arrays[f"p {name}"], arrays[f"r {name}"], arrays[f"c {name}"] = shrink(lanes)
            continue
        for i, lane in enumerate(lanes):
            flat = lane.reshape(-1)
            # These are random, so their widths would be, too; and messages are to have the same length in each run.
            arrays[f"s{i} {name}"] = _to_bytes(flat, 8 if name in (TAGS, COUNTS) else _find_width(flat))
    for i, (_, reply) in enumerate(past.each.items()):
        arrays |= {f"e{i} {name}": x for name, x in reply.items()}
    if not asked:
        arrays |= {f"q {name}": x for name, x in past.question.items()}
    arrays |= {f"w {name}": np.packbits(x) for name, x in past.wrapped.items()}
    meta = {
        "place": past.place,
        "task": past.task,
        "names": past.names,
        "to": past.to,
        "missing": past.missing,
        "epoch": past.epoch,
        "lanes": shapes,
        "each": list(past.each),
        "wrapped": {name: len(x) for name, x in past.wrapped.items()},
        "asked": asked,
    }
    return np.frombuffer(wire.dump({"past": json.dumps(meta)}, arrays), dtype=np.uint8)


def from_blob(blob: Array) -> tuple[Exchanged, bool]:
    """The exchange in those bytes, and whether it comes without its question."""
    try:
        meta, arrays = wire.load(np.asarray(blob, dtype=np.uint8).tobytes())
        told = json.loads(meta["past"])
        lanes = {str(name): _read_lanes(arrays, name, shape) for name, shape in told["lanes"].items()}
        wrapped = {str(name): _read_marks(arrays[f"w {name}"], size) for name, size in told["wrapped"].items()}
        each = {str(client): _cut_names(arrays, f"e{i} ") for i, client in enumerate(told["each"])}
        round, exchange = map(int, told["place"])
        past = Exchanged(
            (round, exchange),
            str(told["task"]),
            tuple(map(str, told["names"])),
            None if told["to"] is None else tuple(map(str, told["to"])),
            tuple(map(str, told["missing"])),
            str(told["epoch"]),
            _cut_names(arrays, "q "),
            lanes,
            each,
            wrapped,
        )
        return past, bool(told["asked"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise ProtocolError("What a question says of earlier exchanges cannot be read.") from None


def _read_lanes(arrays: Arrays, name: str, shape: list[int]) -> Array:
    if f"p {name}" in arrays:
        return unshrink(arrays[f"p {name}"], arrays[f"r {name}"], arrays[f"c {name}"]).reshape(shape)
    return np.stack([_widen(arrays[f"s{i} {name}"]) for i in range(shape[0])]).reshape(shape)


def _read_marks(packed: Array, size: int) -> Array:
    """The marks of that many columns."""
    marks = np.unpackbits(packed)
    if not 0 <= marks.size - size < 8:
        raise ValueError("not the marks of columns")
    return marks[:size].astype(bool)


def _cut_names(arrays: Arrays, prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}


def _find_width(lane: Array) -> int:
    """The fewest bytes that hold all of these integers of 64 bits with their signs."""
    signed = lane.view(np.int64)
    largest = max(int(signed.max(initial=0)), -int(signed.min(initial=0)) - 1)
    return largest.bit_length() // 8 + 1


def _to_bytes(lane: Array, width: int) -> Array:
    """Integers of 64 bits as (n, width) bytes."""
    return np.ascontiguousarray(lane.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width])


def _widen(narrow: Array) -> Array:
    """The inverse of `_to_bytes`, as uint64."""
    if narrow.dtype != np.uint8 or narrow.ndim != 2 or not 1 <= narrow.shape[1] <= 8:
        raise ValueError("not a lane")
    count, width = narrow.shape
    behind = np.zeros(8, dtype=np.uint8)  # so that the last one can be read as 8 bytes, too
    each = np.ndarray(count, "<i8", np.concatenate([narrow.reshape(-1), behind]), 0, (width,))
    unused = np.int64(64 - 8 * width)
    return (each.astype(np.int64) << unused >> unused).view(np.uint64)
