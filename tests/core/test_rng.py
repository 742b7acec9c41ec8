"""Random streams: named by their key, and by nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedspan.core.rng import SERVER, Streams, rng_for

keys = st.tuples(st.integers(0, 2**64), st.integers(0, 2**40), st.integers(0, 99), st.text(), st.text())


def draw(key: tuple[int, int, int, str, str]) -> list[int]:
    return rng_for(*key).bit_generator.random_raw(4).tolist()


@given(keys)
def test_a_key_names_one_stream(key: tuple[int, int, int, str, str]) -> None:
    *place, purpose = key
    assert draw(key) == draw(key) == Streams(*place)(purpose).bit_generator.random_raw(4).tolist()


@given(keys, keys)
def test_different_keys_name_different_streams(one: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    assert (draw(one) == draw(other)) == (one == other)


@given(keys, st.integers(0, 4))
def test_every_part_of_the_key_counts(key: tuple, part: int) -> None:  # type: ignore[type-arg]
    value = key[part]
    other = (*key[:part], value + ("x" if isinstance(value, str) else 1), *key[part + 1 :])
    assert draw(other) != draw(key)


def test_parts_of_a_key_do_not_run_together() -> None:
    alike = [(1, 1, 11, "a", "bc"), (1, 11, 1, "a", "bc"), (11, 1, 1, "a", "bc"), (1, 1, 11, "ab", "c"),
             (1, 1, 11, "abc", ""), (1, 1, 11, "", "abc"), (1, 1, 11, "a', 'b", "c")]  # fmt: skip
    assert len({tuple(draw(key)) for key in alike}) == len(alike)


def test_a_stream_does_not_depend_on_what_was_drawn_elsewhere() -> None:
    names = [f"client {i}" for i in range(20)]
    forth = {name: draw((5, 1, 0, name, "noise")) for name in names}
    for name in names:
        rng_for(5, 1, 0, name, "other").normal(size=10)
    assert {name: draw((5, 1, 0, name, "noise")) for name in reversed(names)} == forth


def test_neighbouring_streams_are_not_correlated() -> None:
    """A correlation of independent numbers is normal with deviation 0.01 here: six of them."""
    keys = [(0, 1, 0, "a", "p"), (1, 1, 0, "a", "p"), (0, 2, 0, "a", "p"), (0, 1, 1, "a", "p"), (0, 1, 0, "b", "p"),
            (0, 1, 0, "a", "q"), (0, 1, 0, SERVER, "p")]  # fmt: skip
    correlations = np.corrcoef([rng_for(*key).normal(size=10_000) for key in keys])
    assert np.abs(correlations - np.eye(len(keys))).max() < 0.06


def test_streams_stay_what_they_are_from_version_to_version() -> None:
    """A run that was begun with an older fedspan must go on with the same numbers."""
    assert draw((7, 3, 1, "ada", "noise"))[:2] == [12696240939923712287, 11911366019460328212]
