"""Narrow lanes: what is packed comes back, sums are exact, and an entry that wraps around is always noticed."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_world import Router, session

from fedspan.core.protocol import NOT_ASKED, Array, Arrays, Ask, Narrow, Sum
from fedspan.errors import InputError, ProtocolError
from fedspan.secure import packing
from fedspan.secure.packing import (
    find_widths,
    fit_widths,
    pack_lane,
    read_exponents,
    resolve,
    shrink,
    tell_widths,
    unpack_lane,
    unshrink,
)

HERE = (1, 0)


def exponents(*values: int) -> Array:
    return np.array(values, dtype=np.int8)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(1, 5))
def test_the_low_bits_come_back(seed: int, d: int, k: int) -> None:
    """Against Python's own integers, for every width at once."""
    rng = np.random.default_rng(seed)
    widths = rng.choice([0, 1, 2, 7, 8, 13, 16, 31, 40, 64], size=(d, k)).astype(np.uint8)
    lane = rng.integers(0, 2**64, size=(1, d, k), dtype=np.uint64)
    packed = pack_lane(lane, widths)
    want = [n % 2 ** int(b) for n, b in zip(lane.ravel().tolist(), widths.ravel().tolist(), strict=True)]
    assert unpack_lane(packed, widths).ravel().tolist() == want
    assert packed.size <= sum(int(b) for b in widths.ravel()) / 8 + 10


def test_more_entries_than_fit_into_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_PIECE", 16)
    rng = np.random.default_rng(0)
    widths = rng.choice([3, 17], size=(40, 3)).astype(np.uint8)
    lane = rng.integers(0, 8, size=(1, 40, 3), dtype=np.uint64)
    np.testing.assert_array_equal(unpack_lane(pack_lane(lane, widths), widths), lane)


@pytest.mark.parametrize("wrong", [np.zeros(9, np.uint8), np.zeros((8, 1), np.uint8), np.zeros(8, np.int8)])
def test_bytes_of_another_size_or_type_are_refused(wrong: Array) -> None:
    with pytest.raises(ProtocolError, match=r"A narrow array must be 8 bytes, but is \("):
        unpack_lane(wrong, np.full((2, 4), 8, dtype=np.uint8))


def test_widths_follow_from_rows_and_columns() -> None:
    widths = find_widths(exponents(0, 3, -20, 40), exponents(10, NOT_ASKED, 2))
    assert widths.tolist() == [[10, 0, 2], [13, 0, 5], [1, 0, 1], [64, 0, 64]]  # above 40 all 64


@pytest.mark.parametrize(
    "arrays",
    [
        {"@rows Y": exponents(1)},
        {"@rows Y": exponents(1), "@columns Y": np.ones(2)},
        {"@rows Y": exponents(1)[None], "@columns Y": exponents(1)},
    ],
    ids=["no columns", "floats", "a matrix"],
)
def test_widths_that_are_none_are_refused(arrays: Arrays) -> None:
    with pytest.raises(ProtocolError, match="widths must be small integers by row and by column"):
        read_exponents(arrays)


def test_what_is_told_of_widths_is_what_is_read() -> None:
    narrow = Narrow(np.zeros((2, 3), dtype=np.int64), exponents(1, 2), exponents(3, 4, 5))
    told = tell_widths({"Y": narrow})
    assert set(told) == {"@rows Y", "@columns Y"}  # and nothing of the prediction
    np.testing.assert_array_equal(find_widths(*read_exponents(told)["Y"]), find_widths(narrow.rows, narrow.columns))


@given(st.integers(-(2**50), 2**50), st.integers(1, 40), st.data())
def test_the_sum_is_found_as_far_as_the_width_reaches(center: int, bits: int, data: st.DataObject) -> None:
    half = 2 ** (bits - 1)
    off = data.draw(st.sampled_from([-half, -1, 0, half - 1]) | st.integers(-half, half - 1))
    narrow = Narrow(np.array([[center]]), exponents(0), exponents(bits))
    lane = np.array([[[(center + off) % 2**bits]]], dtype=np.uint64)
    assert resolve(lane, narrow).tolist() == [[center + off]]


# Sums


def clients(m: int, d: int, k: int, seed: int = 0, large: int = 2**40) -> tuple[dict[str, Arrays], Array]:
    """Integers far beyond the widths, whose sum is small; and their sum."""
    rng = np.random.default_rng(seed)
    parts = rng.integers(-large, large, size=(m, d, k))
    total = rng.integers(-500, 500, size=(d, k))
    parts[-1] = total - parts[:-1].sum(axis=0)
    return {f"c{i:03d}": {"Y": part} for i, part in enumerate(parts)}, total


class NarrowRouter(Router):
    """A router that tells its clients the widths, as a site does."""

    def _reply(self, client: str, ask: Ask, place: tuple[int, int]) -> Arrays:
        if ask.task.startswith("@"):
            return super()._reply(client, ask, place)
        party = self.parties[client]
        return party.find_sent(place) or party.mask(self.data[client], place, b"", read_exponents(ask.arrays))


def ask_narrow(data: Any, narrow: Narrow, t: int | None = None, place: tuple[int, int] = HERE) -> Any:
    router = NarrowRouter(data, t or len(data))
    secure = session(router, t or len(data))
    replies, _ = secure.exchange(Ask("give", want=Sum("Y"), narrow={"Y": narrow}), tuple(data), *place)
    return router, replies


@pytest.mark.parametrize("t", [5, 3])
def test_parts_far_beyond_the_ring_cancel(t: int) -> None:
    data, total = clients(5, 30, 4)
    narrow = Narrow(total + 300, exponents(*[0] * 30), exponents(11, 11, 12, 64))
    router, replies = ask_narrow(data, narrow, t)
    np.testing.assert_array_equal(replies.total["Y"], total)
    assert not replies.wrapped["Y"].any()
    sent = next(arrays for task, _, arrays in router.seen if task == "give")
    assert sent["Y"].dtype == np.uint8
    assert len(sent["Y"]) < 30 * (11 + 11 + 12 + 64) / 8 + 4


def test_columns_that_are_not_asked_for_are_not_sent() -> None:
    data, total = clients(3, 8, 3)
    router, replies = ask_narrow(data, Narrow(total + 1, exponents(*[0] * 8), exponents(16, NOT_ASKED, 16)))
    assert replies.wrapped["Y"].tolist() == [False] * 3
    np.testing.assert_array_equal(replies.total["Y"][:, [0, 2]], total[:, [0, 2]])
    sent = next(arrays for task, _, arrays in router.seen if task == "give")
    assert len(sent["Y"]) == 8 * 2 * 2


def test_every_wrap_that_is_forced_is_noticed() -> None:
    """2,000 columns, half of them with some entries off by one or more turns; none may go unnoticed, none be blamed."""
    rng = np.random.default_rng(3)
    data, total = clients(3, 20, 2000, large=2**30)
    rows, columns = rng.integers(-2, 3, 20).astype(np.int8), rng.integers(3, 38, 2000).astype(np.int8)
    widths = find_widths(rows, columns).astype(np.int64)
    off, mendable = np.zeros_like(total), np.zeros(2000, dtype=bool)
    for column in range(0, 2000, 2):
        wrong = rng.choice(20, size=rng.integers(1, 4), replace=False)
        turns = rng.choice([-3, -1, 1, 2, 256], size=len(wrong))
        off[wrong, column] = turns << widths[wrong, column]
        mendable[column] = len(wrong) == 1 and abs(turns[0]) == 1 and widths[wrong[0], column] <= 32
    _, replies = ask_narrow(data, Narrow(total + off, rows, columns))
    assert mendable.sum() > 50
    np.testing.assert_array_equal(replies.wrapped["Y"], off.any(axis=0) & ~mendable)
    good = ~replies.wrapped["Y"]
    np.testing.assert_array_equal(replies.total["Y"][:, good], total[:, good])  # those that were put right, too


def test_without_check_sums_a_wrap_would_go_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_ROWS_OF_CHECK", 0)
    data, total = clients(3, 8, 2)
    narrow = Narrow(total + 2**12, exponents(*[0] * 8), exponents(12, 12))
    _, replies = ask_narrow(data, narrow)
    assert not replies.wrapped["Y"].any()
    assert (replies.total["Y"] != total).all()


def test_what_leaves_in_a_narrow_lane_is_uniform() -> None:
    data, total = clients(3, 4000, 1)
    router, _ = ask_narrow(data, Narrow(total, exponents(*[0] * 4000), exponents(8)))
    for task, _, arrays in router.seen:
        if task == "give":
            assert scipy.stats.chisquare(np.bincount(arrays["Y"], minlength=256)).pvalue > 1e-7


def test_numbers_that_are_too_large_are_counted_in_narrow_lanes_too() -> None:
    data, total = clients(3, 4, 2)
    data["c001"]["Y"] = np.full((4, 2), 2**62)  # type: ignore[index]
    with pytest.raises(InputError, match=r"^Some numbers of one or more of the 3 clients were too large"):
        ask_narrow(data, Narrow(total, exponents(*[0] * 4), exponents(20, 20)))


@pytest.mark.parametrize("change", [{"rows": exponents(1, 2)}, {"columns": exponents(8)}])
def test_widths_that_do_not_fit_the_array_are_refused(change: dict[str, Array]) -> None:
    data, total = clients(3, 4, 2)
    narrow = replace(Narrow(total, exponents(*[0] * 4), exponents(20, 20)), **change)
    router = NarrowRouter(data, 3)
    secure = session(router, 3)
    replies, _ = secure.exchange(Ask("give", want=Sum("Y"), narrow={"Y": narrow}), tuple(data), *HERE)
    assert not replies.total
    assert "the widths do not fit 'Y'" in str(replies.failures)


# Sums that are shown


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(0, 5), st.sampled_from([1, 2, 9, 40, 63]))
def test_a_sum_that_is_shown_comes_back(seed: int, d: int, k: int, bits: int) -> None:
    """Rows and columns of all sizes, with the ends of each range."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(rng.integers(0, bits, size=(d, 1)) + rng.integers(0, 3, size=(1, k)), 62)
    ends = np.where(rng.random((d, k)) < 0.5, 2**sizes - 1, -(2**sizes))
    total = np.where(rng.random((d, k)) < 0.3, ends, np.rint(rng.uniform(-1, 1, (d, k)) * 2.0**sizes).astype(np.int64))
    lane = total.view(np.uint64)[None]
    packed, rows, columns = shrink(lane)
    np.testing.assert_array_equal(unshrink(packed, rows, columns), lane)
    assert packed.size <= 8 * lane.size


def test_a_sum_that_is_shown_takes_the_bits_of_its_rows_and_columns() -> None:
    rng = np.random.default_rng(0)
    sizes = 2.0 ** (rng.integers(4, 16, size=(500, 1)) + rng.integers(0, 6, size=(1, 10)))
    lane = np.rint(rng.uniform(-1, 1, (500, 10)) * sizes).astype(np.int64).view(np.uint64)[None]
    assert 8 * shrink(lane)[0].size < (1.5 + np.log2(sizes)).sum()


@pytest.mark.parametrize(
    ("packed", "rows", "columns"),
    [
        (np.zeros(9, np.uint8), np.zeros(60_000, np.int8), np.zeros(60_000, np.int8)),
        (np.zeros(9, np.uint8), exponents(8, 8), exponents(0, NOT_ASKED)),
        (np.zeros(9, np.uint8), np.zeros(2), np.zeros(2)),
        (np.zeros((2, 2), np.uint8), exponents(8, 8), exponents(0, 0)),
        (np.zeros(3, np.uint8), exponents(8, 8), exponents(0, 0)),
    ],
    ids=["28 GB", "no bits", "floats", "a matrix", "too short"],
)
def test_a_sum_that_is_shown_does_not_ask_for_more_memory_than_its_bytes(
    packed: Array, rows: Array, columns: Array
) -> None:
    with pytest.raises(ProtocolError, match=r"does not have the bytes|must be 4 bytes"):
        unshrink(packed, rows, columns)


def test_many_exponents_ask_for_no_memory() -> None:
    """A server can send a few thousand of them at little cost; as widths they would be a matrix of gigabytes."""
    many = np.zeros(60_000, dtype=np.int8)
    told = read_exponents({"@rows Y": many, "@columns Y": many})
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="the widths do not fit 'Y'"):
            fit_widths(np.zeros((1, 6, 2), dtype=np.uint64), told["Y"], "Y")
        assert tracemalloc.get_traced_memory()[1] < 10**6
        small = find_widths(many[:1000], many[:1000])  # what it would take without the check, for a 3600th of them
        assert tracemalloc.get_traced_memory()[1] > 10**6
    finally:
        tracemalloc.stop()
    assert small.shape == (1000, 1000)
