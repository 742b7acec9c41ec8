"""Inputs that somebody made to break a reader: random bytes, and valid inputs changed where it hurts.

A test draws a plan of changes by hypothesis and makes them by itself, so that a failure shrinks to few changes. All is
derived from the drawn values, so that a failing input can be made again; with derandomize the same inputs come always.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedspan.errors import FedspanError

ROOM = 1 << 30  # bytes of memory that a reader may take beyond what the process has: no input is larger than 100 kB
PATIENCE = 60  # seconds after which a reader hangs; none of them takes a second
NUMBERS = [0, 1, 2, 7, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
WORDS = [
    b"[" * 3000,
    b"{" * 3000,
    b'{"a":' * 2000,
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b"-1",
    b"null",
    b"true",
    b'""',
    b"[]",
    b"{}",
    b"\x1b[2J",
    b"\n",
    b'"',
    b",",
    b"2147483647:1",
    b"~p~i8~999999999x999999999",
    b"~q3~f8~99999999999",
]


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _remove(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.choice([1, 4, 8, 64])]


def _repeat(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + rng.choice([1, 8, 40, 400])]
    data[start:start] = part * rng.choice([1, 2, 50])


def _insert_word(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(WORDS)


def _set_number(data: bytearray, rng: random.Random) -> None:
    """A length, an offset or a count, of 2, 4 or 8 bytes, in either order."""
    form = rng.choice(["<H", "<I", "<Q", ">H", ">I", ">Q"])
    size = struct.calcsize(form)
    if len(data) >= size:
        at = rng.randrange(len(data) - size + 1)
        data[at : at + size] = struct.pack(form, rng.choice(NUMBERS) % (1 << (8 * size)))


def _set_head(data: bytearray, rng: random.Random) -> None:
    """The same among the first bytes, where headers are."""
    head = data[:64]
    _set_number(head, rng)
    data[:64] = head


def _replace_digits(data: bytearray, rng: random.Random) -> None:
    """Another number in place of one that is written in digits."""
    places = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
    if places:
        start = end = rng.choice(places)
        while end < len(data) and 48 <= data[end] <= 57:
            end += 1
        data[start:end] = str(rng.choice(NUMBERS)).encode()


def _swap(data: bytearray, rng: random.Random) -> None:
    a, b = (rng.randrange(len(data) + 1) for _ in range(2))
    n = rng.choice([4, 16, 64])
    data[a : a + n], data[b : b + n] = data[b : b + n], data[a : a + n]


CHANGES: list[Callable[[bytearray, random.Random], None]] = [
    _flip,
    _set_byte,
    _cut,
    _remove,
    _repeat,
    _insert_word,
    _set_number,
    _set_head,
    _replace_digits,
    _swap,
]


def mutate(seed: bytes, plan: Sequence[tuple[int, int]]) -> bytes:
    """The seed after those changes; each has a number and draws where it strikes from its own stream."""
    data = bytearray(seed)
    for which, stream in plan:
        CHANGES[which](data, random.Random(stream))  # noqa: S311
    return bytes(data[:100_000])


ODD: list[Any] = [None, True, -1, 0, 1.5, 2**63, 10**90, "", "x", "\x1b[31m", [], {}, [[]], {"": 0}, [1, "a", None]]


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """Plain data with one part replaced, removed, doubled or wrapped."""
    if isinstance(tree, dict) and tree and rng.random() < 0.8:
        key = rng.choice(sorted(tree))
        what = rng.random()
        if what < 0.15:
            return {name: value for name, value in tree.items() if name != key}
        if what < 0.25:
            return {**tree, rng.choice(["", "extra", key + "_"]): tree[key]}
        return {**tree, key: mutate_tree(tree[key], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        i = rng.randrange(len(tree))
        what = rng.random()
        if what < 0.15:
            return tree[:i] + tree[i + 1 :]
        if what < 0.25:
            return tree + [tree[i]] * rng.choice([1, 200])
        return [*tree[:i], mutate_tree(tree[i], rng), *tree[i + 1 :]]
    if isinstance(tree, str) and rng.random() < 0.3:
        return rng.choice([tree + "x", tree[:-1], tree.upper(), (tree * 300)[:3000]])
    if isinstance(tree, int | float) and not isinstance(tree, bool) and rng.random() < 0.4:
        return rng.choice([-tree, tree + 1, tree * 10**6, float(tree), rng.choice(NUMBERS)])
    return rng.choice(ODD)


def mutate_json(seed: bytes, plan: Sequence[tuple[int, int]]) -> bytes:
    """A JSON document whose data was changed; it stays JSON."""
    tree = json.loads(seed)
    for _, stream in plan:
        tree = mutate_tree(tree, random.Random(stream))  # noqa: S311
    return json.dumps(tree).encode()


def mutate_safetensors(seed: bytes, plan: Sequence[tuple[int, int]]) -> bytes:
    """A safetensors file with changes in its header, whose length is right again."""
    length = int.from_bytes(seed[:8], "little")
    header = json.loads(seed[8 : 8 + length])
    for which, stream in plan:
        rng = random.Random(stream)  # noqa: S311
        if which % 2 or "__metadata__" not in header:
            header = mutate_tree(header, rng)
        else:
            meta = header["__metadata__"]
            key = rng.choice(sorted(meta)) if isinstance(meta, dict) and meta else ""
            if key and isinstance(meta[key], str):
                meta[key] = mutate(meta[key].encode(), [(rng.randrange(len(CHANGES)), stream)]).decode(errors="replace")
        if not isinstance(header, dict):
            break
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + seed[8 + length :]


Mutator = Callable[[bytes, Sequence[tuple[int, int]]], bytes]
streams = st.integers(0, 2**32 - 1)
plans = st.lists(st.tuples(st.integers(0, len(CHANGES) - 1), streams), min_size=1, max_size=4)


def inputs(seeds: Sequence[bytes], *mutators: Mutator) -> st.SearchStrategy[bytes]:
    """One part of random bytes, and nine of changed seeds."""
    ways = [mutate, *mutators]
    made = st.builds(
        lambda seed, way, plan: ways[way](seeds[seed], plan),
        st.integers(0, len(seeds) - 1),
        st.integers(0, len(ways) - 1),
        plans,
    )
    noise = st.builds(lambda n, stream: random.Random(stream).randbytes(n), st.integers(0, 300), streams)  # noqa: S311
    return st.integers(0, 9).flatmap(lambda die: made if die else noise)


_STATUS = Path("/proc/self/statm")


def can_limit_memory() -> bool:
    return _STATUS.exists()


@contextmanager
def limit_memory(room: int = ROOM) -> Iterator[None]:
    """Let this process take only so much more memory than it has, so that a reader which asks for more is found."""
    if not can_limit_memory():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(_STATUS.read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _hang(*_: Any) -> None:
    raise AssertionError(f"the reader was still at work after {PATIENCE} s")


def check_reader(read: Callable[[bytes], object], data: bytes) -> None:
    """A reader gives a value or one of our errors, and does not run out of memory on the way to it."""
    before = signal.signal(signal.SIGALRM, _hang)
    signal.alarm(PATIENCE)
    refusal: FedspanError | None = None
    try:
        read(data)
    except FedspanError as error:
        refusal = error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if refusal is not None:
        cause = refusal.__cause__ or refusal.__context__
        assert not isinstance(cause, MemoryError), "the input asked for memory that it does not need"
        assert 0 < len(str(refusal)) < 20_000 + len(data), "the error says nothing, or more than there is to say"


def fuzz(read: Callable[[bytes], object], seeds: Sequence[bytes], *mutators: Mutator, examples: int) -> None:
    """Give a reader that many inputs. Seeds themselves must be read without an error."""
    for seed in seeds:
        read(seed)
    source = inputs(seeds, *mutators)

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(source)
    def run(data: bytes) -> None:
        check_reader(read, data)

    with limit_memory(), np.errstate(all="ignore"):
        run()


SIZES = [pytest.param(1, id="short"), pytest.param(10, id="long", marks=pytest.mark.long)]
"""How many times the usual number of inputs: `make test` runs the first, `make test-long` both."""
