"""From plain data to dataclasses: exactly what the annotations say, or a refusal that names the place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
import pytest

from fedspan._types import Array
from fedspan.core.checkpoint import build, flatten, unflatten
from fedspan.errors import CheckpointError


@dataclass(frozen=True)
class Leaf:
    n: int
    w: float = 0.5


@dataclass(frozen=True)
class Other:
    word: str


@dataclass(frozen=True)
class Twin:
    n: int
    w: float = 0.5


@dataclass(frozen=True)
class Tree:
    perhaps_many: tuple[Leaf, ...] | None
    by_name: dict[str, Leaf]
    listed: list[Leaf]
    nested: tuple[tuple[Leaf, ...] | None, ...]
    either: Leaf | Other | None
    deep: dict[str, list[Leaf | None]]
    pair: tuple[Leaf, str]
    numbered: Mapping[int, tuple[float, ...]]
    row: Sequence[Other]
    kind: Literal["a", "b"]
    anything: Any
    loose: Leaf | Any
    Z: Array = field(default_factory=lambda: np.zeros(2))


def tree(**changes: Any) -> Tree:
    values: dict[str, Any] = {
        "perhaps_many": (Leaf(1), Leaf(2)),
        "by_name": {"x": Leaf(3), "y": Leaf(4)},
        "listed": [Leaf(5)],
        "nested": ((Leaf(6),), None),
        "either": Other("w"),
        "deep": {"z": [Leaf(7), None]},
        "pair": (Leaf(8), "p"),
        "numbered": {1: (0.5,), -2: ()},
        "row": (Other("r"),),
        "kind": "b",
        "anything": {"k": [1, None]},
        "loose": Leaf(9),
    }
    return Tree(**values | changes)


def plain(record: Any) -> Any:
    return unflatten(*flatten(record))


@pytest.mark.parametrize(
    "changes",
    [{}, {"perhaps_many": None}, {"either": Leaf(1)}, {"either": None}, {"loose": "text"}, {"by_name": {}, "row": ()}],
    ids=str,
)
def test_every_dataclass_comes_back_wherever_it_is(changes: Any) -> None:
    want = tree(**changes)
    got = build(Tree, plain(want))
    assert repr(got) == repr(want)
    assert type(got.perhaps_many) is type(want.perhaps_many)


WRONG: dict[str, tuple[Any, str]] = {
    "perhaps_many": ([{"n": 1}], r"Tree.perhaps_many\[0\] must have the fields n, w, but the data holds n\."),
    "by_name": ({"x": {"n": "one", "w": 0.5}}, r"Tree.by_name\['x'\].n must be int, but the data holds str\."),
    "listed": ({"n": 1}, r"Tree.listed must be list.* but the data holds dict\."),
    "nested": ([[{"n": 1.5, "w": 0.5}]], r"Tree.nested\[0\]\[0\].n must be int, but the data holds float\."),
    "either": ({"n": 1, "word": "w"}, r"Tree.either must be .*Leaf \| .*Other \| None, but the data holds dict\."),
    "deep": ({"z": [3]}, r"Tree.deep\['z'\]\[0\] must have the fields n, w"),
    "pair": ([{"n": 1, "w": 0.5}], r"Tree.pair must be tuple"),
    "numbered": ({"--1": [0.5]}, r"Tree.numbered, a key, must be int, but the data holds str\."),
    "kind": ("c", r"Tree.kind must be Literal\['a', 'b'\], but the data holds str\."),
    "Z": ([0.0], r"Tree.Z must be ndarray, but the data holds list\."),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_by_its_place(name: str) -> None:
    value, why = WRONG[name]
    with pytest.raises(CheckpointError, match=f"^{why}"):
        build(Tree, {**plain(tree()), name: value})


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        (float, 1, True),
        (float, True, False),
        (int, True, False),
        (int, 1.0, False),
        (bool, 1, False),
        (str, None, False),
        (type(None), None, True),
        (type(None), 0, False),
    ],
)
def test_numbers_are_not_mixed_up(kind: Any, value: Any, fits: bool) -> None:
    if fits:
        assert build(kind, value) is value
    else:
        with pytest.raises(CheckpointError, match="must be"):
            build(kind, value)


@dataclass(frozen=True)
class Ambiguous:
    leaf: Leaf | Twin


@dataclass(frozen=True)
class Unbuildable:
    when: complex


def test_what_cannot_be_told_apart_or_built_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"Ambiguous.leaf could be any of Leaf, Twin\."):
        build(Ambiguous, {"leaf": {"n": 1, "w": 0.5}})
    with pytest.raises(CheckpointError, match=r"Unbuildable.when cannot be built from plain data, because its ty"):
        build(Unbuildable, {"when": 1.0})


@pytest.mark.parametrize("wrong", [np.ones(2), np.array(1), True, 1.0, "1", None])
def test_a_literal_is_not_mixed_up(wrong: Any) -> None:
    assert build(Literal[1, 2], 2) == 2  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="must be Literal"):
        build(Literal[1, 2], wrong)  # type: ignore[arg-type]


def test_fields_with_defaults_may_be_missing_if_so_asked() -> None:
    assert build(Leaf, {"n": 1}, defaults=True) == Leaf(1)
    with pytest.raises(CheckpointError, match="must have the fields n, w, but the data holds w"):
        build(Leaf, {"w": 1.0}, defaults=True)
    with pytest.raises(CheckpointError, match="the data holds n, v"):
        build(Leaf, {"n": 1, "v": 2}, defaults=True)


class Note(TypedDict):
    text: str
    leaf: Leaf
    seen: NotRequired[int]


class Loose(TypedDict, total=False):
    a: int


class Looser(Note, total=False):
    b: int


def test_typed_dicts_are_checked_too() -> None:
    assert build(Note, {"text": "t", "leaf": asdict(Leaf(1))}) == {"text": "t", "leaf": Leaf(1)}
    assert build(Note, {"text": "t", "leaf": asdict(Leaf(1)), "seen": 3})["seen"] == 3
    assert build(Loose, {}) == {}
    with pytest.raises(CheckpointError, match="Looser must have the fields b, leaf, seen, text, but the data holds b"):
        build(Looser, {"b": 1})
    for wrong in ({"text": "t"}, {"text": "t", "leaf": asdict(Leaf(1)), "more": 1}, []):
        with pytest.raises(CheckpointError, match="Note must have the fields leaf, seen, text"):
            build(Note, wrong)
    with pytest.raises(CheckpointError, match=r"Loose\.a must be int"):
        build(Loose, {"a": "1"})
