"""Checkpoints: plain data to a file and back; what is not one, or another run's, is refused with what to do."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedspan.channel import wire
from fedspan.channel.link import ReceiverMemory, SenderMemory
from fedspan.core.checkpoint import Checkpoint, _digest, build, flatten, load_tree, save_tree, unflatten
from fedspan.core.snapshot import HubSnapshot, SessionSnapshot, SiteSnapshot
from fedspan.errors import CheckpointError


@dataclass(frozen=True)
class Inner:
    mean: np.ndarray
    n: int


@dataclass(frozen=True)
class Wider(Inner):
    t: int = 0


@dataclass(frozen=True)
class Outer:
    inner: Inner
    perhaps: Inner | None
    never: Inner | None
    Z: np.ndarray
    kkt: float
    done: bool
    word: str
    pairs: tuple[int, ...]
    by_name: dict[str, np.ndarray]
    wider: Wider


def outer() -> Outer:
    mean = np.arange(3.0)
    return Outer(
        Inner(mean, 3), Inner(np.zeros((0, 2)), 0), None, np.ones((2, 2), np.float32), np.inf, True, "«ü»", (1, 2),
        {"a": np.array(5, dtype=np.int64), "b": mean}, Wider(np.array([True, False]), 4, 9),
    )  # fmt: skip


def equal(a: Any, b: Any) -> bool:
    """The same data to the bit, of the same types."""
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and (np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes())
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or a != a)  # nan


plain_arrays = st.sampled_from(["f8", "f4", "i8", "u1", "b1"]).flatmap(
    lambda code: hnp.arrays(np.dtype(code), hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
)
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), plain_arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(tree=plain)
def test_plain_data_comes_back_from_a_file_as_it_was(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    path = tmp_path_factory.mktemp("tree") / "tree.safetensors"
    save_tree(path, "model", tree)
    assert equal(load_tree(path, "model"), tree)


def test_dataclasses_come_back_by_their_annotations() -> None:
    state = outer()
    got = build(Outer, unflatten(*flatten(state)))
    assert type(got) is Outer
    assert [type(x) for x in (got.inner, got.perhaps, got.never, got.wider)] == [Inner, Inner, type(None), Wider]
    assert equal(flatten(got)[0], flatten(state)[0])
    assert equal(flatten(got)[1], flatten(state)[1])


def test_an_array_that_occurs_often_is_stored_once() -> None:
    shared = np.arange(1000.0)
    skeleton, arrays = flatten({"a": shared, "b": [shared, shared], "c": shared.copy(), "d": Inner(shared, 1)})
    assert len(arrays) == 2
    tree = unflatten(skeleton, arrays)
    assert tree["a"] is tree["b"][0] is tree["b"][1] is tree["d"]["mean"]


def test_a_large_copy_is_stored_once_and_what_differs_by_a_bit_is_not() -> None:
    x = np.zeros(5000)
    other = x.copy()
    other[-1] = -0.0  # equal as a number
    tree = {"a": x, "copy": x.copy(), "other": other, "shaped": x.reshape(50, 100).copy(), "small": [x[:9].copy()] * 2}
    skeleton, arrays = flatten(tree)
    assert len(arrays) == 4
    back = unflatten(skeleton, arrays)
    assert all(back[name].tobytes() == tree[name].tobytes() for name in ("a", "copy", "other", "shaped"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("layout", ["big-endian", "fortran", "strided", "scalar"])
def test_layout_and_byte_order_do_not_matter(tmp_path: Path, layout: str) -> None:
    x = np.arange(12.0).reshape(4, 3)
    held = {"big-endian": x.astype(">f8"), "fortran": np.asfortranarray(x), "strided": np.repeat(x, 2, axis=1)[:, ::2],
            "scalar": np.float64(3)}[layout]  # fmt: skip
    save_tree(tmp_path / "x", "model", {"x": held})
    np.testing.assert_array_equal(load_tree(tmp_path / "x", "model")["x"], held)


class Pair(NamedTuple):
    a: int


@pytest.mark.parametrize(
    "odd", [object(), {1, 2}, lambda: 0, 1j, b"bytes", Pair(1), range(3)], ids=lambda odd: type(odd).__name__
)
def test_what_is_not_plain_data_is_refused_when_it_is_saved(tmp_path: Path, odd: Any) -> None:
    with pytest.raises(CheckpointError, match=r"A state must be plain data .*, but this one contains a "):
        save_tree(tmp_path / "x", "model", {"fine": 1, "odd": odd})
    assert os.listdir(tmp_path) == []


RUN = {"algorithm": "Gram(k=2)", "clients": "3, abc", "channel": "up: identity; down: identity", "seed": 5}


ENGINE = SessionSnapshot(
    HubSnapshot({"ada": SenderMemory(1, {"Z": np.ones(2)}, 2, ())}, {"ada": ReceiverMemory(3, {0: (), 3: {}})}),
    {"ada": SiteSnapshot({"t": 1}, released={"gram": {"a": "b"}})},
)


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoint:
    checkpoint = Checkpoint(tmp_path / "run" / "checkpoint")
    checkpoint.save(RUN, 7, outer(), ENGINE)
    return checkpoint


def test_the_last_complete_round_comes_back(saved: Checkpoint) -> None:
    assert Checkpoint(saved.path.parent / "elsewhere").load(RUN, Outer) is None
    saved.save(RUN, 8, outer(), ENGINE)
    found = saved.load(RUN, Outer)
    assert found is not None
    round, state, engine = found
    assert round == 8
    assert isinstance(engine, SessionSnapshot)
    assert equal(asdict(engine), asdict(ENGINE))
    assert equal(flatten(state)[1], flatten(outer())[1])
    assert os.listdir(saved.path.parent) == ["round.safetensors"]


def test_no_changed_byte_goes_unnoticed(tmp_path: Path) -> None:
    """Except in the padding between header and data, which says nothing."""
    path, want = tmp_path / "x", {"Z": np.arange(3.0), "n": 1, "t": (True, "a")}
    save_tree(path, "model", want)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for mask in (0x01, 0x20, 0xFF):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
            try:
                got = load_tree(path, "model")
            except CheckpointError as error:
                assert "Restore it, or delete it and run again" in str(error)  # noqa: PT017
            else:
                assert equal(got, want)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"F64"', b'"I64"'), (b'"shape":[0,2]', b'"shape":[0,9]'), (b'"shape":[2,2]', b'"shape":[4,1]'),
     (b'"digest"', b'"digits"'), (b'"tree"', b'"trie"'), (b'"0":{', b'"x":{'), (b'"1":{', b'"9":{'),
     (b'\\"round\\":7', b'\\"round\\":9')],
)  # fmt: skip
def test_a_changed_header_is_noticed(saved: Checkpoint, old: bytes, new: bytes) -> None:
    whole = saved.path.read_bytes()
    assert old in whole
    saved.path.write_bytes(whole.replace(old, new))
    with pytest.raises(CheckpointError, match="Restore it, or delete it and run again"):
        saved.load(RUN, Outer)


def test_a_cut_checkpoint_is_refused(saved: Checkpoint) -> None:
    whole = saved.path.read_bytes()
    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        saved.path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"Cannot read the checkpoint in .* Restore it, or delete"):
            saved.load(RUN, Outer)


@pytest.mark.parametrize(
    "foreign",
    [safetensors.numpy.save({"x": np.ones(2)}), wire.dump({"fedspan": "model"}, {}), b"\x80\x04 a pickle", b"{}"],
    ids=["safetensors", "model", "pickle", "json"],
)
def test_a_foreign_file_is_refused(saved: Checkpoint, foreign: bytes) -> None:
    saved.path.write_bytes(foreign)
    with pytest.raises(CheckpointError, match=r"(Cannot read the|must hold a fedspan) checkpoint.* Restore it, or"):
        saved.load(RUN, Outer)


@pytest.mark.parametrize("key", RUN)
def test_another_runs_checkpoint_is_refused(saved: Checkpoint, key: str) -> None:
    with pytest.raises(
        CheckpointError,
        match=rf"belongs to another run: {key} is 'other' here, but .* in the checkpoint\. Choose another check",
    ):
        saved.load({**RUN, key: "other"}, Outer)


def test_a_state_with_other_fields_is_refused(saved: Checkpoint) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"does not fit .*: Wider must have the fields mean, n, t, but the data holds Z, by_n",
    ):
        saved.load(RUN, Wider)


def test_a_file_with_other_parts_is_refused(saved: Checkpoint) -> None:
    save_tree(saved.path, "checkpoint", {"run": RUN, "round": "7", "state": None, "engine": ENGINE})
    with pytest.raises(CheckpointError, match=r"does not fit .*round must be int, but the data holds str\. Resume"):
        saved.load(RUN, Outer)


def test_a_failure_midway_leaves_the_old_checkpoint(saved: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        saved.save(RUN, 8, outer(), ENGINE)
    found = saved.load(RUN, Outer)
    assert found is not None
    assert found[0] == 7
    assert os.listdir(saved.path.parent) == ["round.safetensors"]


@pytest.mark.parametrize("every", [0, -1])
def test_a_checkpoint_is_written_every_so_many_rounds(tmp_path: Path, every: int) -> None:
    with pytest.raises(CheckpointError, match="must be saved every 1 or more rounds, not every"):
        Checkpoint(tmp_path, every=every)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0)])
def test_arrays_come_back_as_they_lay_in_memory(tmp_path: Path, axes: tuple[int, ...]) -> None:
    """BLAS takes other kernels for other orders: a model that was loaded must compute the same bits."""
    array = np.arange(24.0).reshape(2, 3, 4).transpose(axes)
    save_tree(tmp_path / "t", "model", {"a": array, "part": array[:, 1:, :], "row": array[0, :, 0]})
    back = load_tree(tmp_path / "t", "model")
    assert back["a"].strides == array.strides
    assert np.argsort(back["part"].strides).tolist() == np.argsort(array[:, 1:, :].strides).tolist()
    for name, want in {"a": array, "part": array[:, 1:, :], "row": array[0, :, 0]}.items():
        np.testing.assert_array_equal(back[name], want)


@pytest.mark.parametrize(
    "skeleton",
    [
        {"lies": {"array": "0", "axes": [0, 0]}},
        {"lies": {"array": "0", "axes": [0, 1, 2]}},
        {"lies": {"array": "0", "axes": "xy"}},
        {"lies": {"array": "7", "axes": [1, 0]}},
        {"lies": "0"},
        {"array": "7"},
        {"code": "0"},
        {"array": "0", "dict": {}},
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused(tmp_path: Path, skeleton: Any) -> None:
    """Whoever makes such a file can make its digest, too."""
    arrays, text = {"0": np.ones((2, 2))}, json.dumps(skeleton)
    meta = {"fedspan": "model", "tree": text, "digest": _digest("model", text, arrays)}
    (tmp_path / "hostile").write_bytes(wire.dump(meta, arrays))
    with pytest.raises(CheckpointError, match="damaged"):
        load_tree(tmp_path / "hostile", "model")
