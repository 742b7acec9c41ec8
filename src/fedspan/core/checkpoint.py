"""Plain data to a file and back: dataclasses, dicts, lists, tuples, numbers, strings and arrays; never code.

One checkpoint is one safetensors file: the arrays, and a JSON skeleton that says where they belong. It is replaced in
one step after every round, so a crash repeats at most one round. It names the run it belongs to, and a digest.
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedspan._files import write_whole
from fedspan._types import Array, Arrays
from fedspan.channel import wire
from fedspan.errors import CheckpointError, FedspanError

T = TypeVar("T")
_REMEDY = "restore it, or delete it and run again"


def flatten(tree: Any) -> tuple[Any, dict[str, Array]]:
    """A JSON skeleton, and the arrays it refers to by name; an array that occurs twice is stored once.

    An array whose axes lie otherwise in memory than in C order comes back as it lay ("lies"): BLAS rounds otherwise.
    """
    arrays: dict[str, Array] = {}
    seen: dict[int, str] = {}

    def walk(node: Any) -> Any:
        if isinstance(node, np.ndarray):
            axes = _axes_in_memory(node)
            if id(node) not in seen:
                seen[id(node)] = str(len(arrays))
                arrays[seen[id(node)]] = node.transpose(axes)
            name = seen[id(node)]
            return {"array": name} if axes == sorted(axes) else {"lies": {"array": name, "axes": axes}}
        if is_dataclass(node):
            return {"dict": {f.name: walk(getattr(node, f.name)) for f in fields(node)}}
        if isinstance(node, Mapping):
            return {"dict": {str(key): walk(value) for key, value in node.items()}}
        if type(node) in (tuple, list):  # a NamedTuple would come back as a tuple
            return {type(node).__name__: [walk(value) for value in node]}
        if isinstance(node, np.generic):
            return node.item()
        if node is None or isinstance(node, bool | int | float | str):
            return node
        raise CheckpointError(f"need plain data in a state, got {type(node).__name__}; keep arrays and numbers only")

    return walk(tree), arrays


def _axes_in_memory(array: Array) -> list[int]:
    """The axes of an array from the one with the longest stride to the shortest: 0, 1, … in C order."""
    if array.flags.c_contiguous:
        return list(range(array.ndim))
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def in_c_order(tree: Any) -> Any:
    """The same data with all arrays in C order, so that a run and its resumption hold them alike."""
    if isinstance(tree, np.ndarray):
        return np.asarray(tree, order="C")
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: in_c_order(getattr(tree, f.name)) for f in fields(tree)})
    if isinstance(tree, Mapping):
        return {key: in_c_order(value) for key, value in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)(in_c_order(value) for value in tree)
    return tree


def unflatten(skeleton: Any, arrays: Arrays) -> Any:
    """The inverse of `flatten`, with dicts in place of dataclasses."""
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, value),) = skeleton.items()
    if kind == "array":
        return arrays[value]
    if kind == "lies":
        array, axes = arrays[value["array"]], value["axes"]
        if sorted(axes) != list(range(array.ndim)):
            raise ValueError(f"{axes} are not the axes of an array of shape {array.shape}")
        return array.transpose(np.argsort(axes))
    if kind == "dict":
        return {key: unflatten(node, arrays) for key, node in value.items()}
    return {"tuple": tuple, "list": list}[kind](unflatten(node, arrays) for node in value)


def build(kind: Any, tree: Any) -> Any:
    """A dataclass (and those inside it, by its annotations) from dicts; other data as it is."""
    if get_origin(kind) in (Union, types.UnionType):
        inner = [arg for arg in get_args(kind) if is_dataclass(arg)]
        return build(inner[0], tree) if inner and tree is not None else tree
    if get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
        return tuple(build(get_args(kind)[0], node) for node in tree)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return tree
    hints = get_type_hints(kind)
    names = {f.name for f in fields(kind)}
    if not isinstance(tree, dict) or set(tree) != names:
        raise CheckpointError(f"need the fields of {kind.__name__}, {sorted(names)}; the file holds other ones")
    return kind(**{name: build(hints[name], tree[name]) for name in names})


def _digest(skeleton: str, arrays: Arrays) -> str:
    digest = blake2b(skeleton.encode(), digest_size=16)
    for name, array in arrays.items():
        little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        digest.update(f"{name} {little.dtype.str} {little.shape}".encode())
        digest.update(little.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def save_tree(path: str | os.PathLike[str], kind: str, tree: Any) -> None:
    """Write plain data as one safetensors file of that kind ("checkpoint", "model")."""
    skeleton, arrays = flatten(tree)
    text = json.dumps(skeleton, separators=(",", ":"))
    write_whole(path, wire.dump({"fedspan": kind, "tree": text, "digest": _digest(text, arrays)}, arrays))


def load_tree(path: str | os.PathLike[str], kind: str) -> Any:
    """Read it back, or say what is wrong with the file."""
    try:
        meta, arrays = wire.load(Path(path).read_bytes())
    except (OSError, FedspanError) as error:
        raise CheckpointError(f"need a fedspan {kind}, cannot read {path}: {error}; {_REMEDY}") from None
    if meta.get("fedspan") != kind:
        found = meta.get("fedspan", "a foreign safetensors file")
        raise CheckpointError(f"need a fedspan {kind}, {path} is {found!r}; {_REMEDY}")
    ordered = {name: arrays[name] for name in map(str, range(len(arrays))) if name in arrays}
    if _digest(meta.get("tree", ""), ordered) != meta.get("digest") or len(ordered) != len(arrays):
        raise CheckpointError(f"{path} is damaged (its digest does not match); {_REMEDY}")
    try:
        return unflatten(json.loads(meta["tree"]), arrays)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise CheckpointError(f"{path} is damaged (its parts do not fit together); {_REMEDY}") from None


class Checkpoint:
    """The folder in which a run leaves its last complete round."""

    def __init__(self, folder: str | os.PathLike[str], every: int = 1) -> None:
        if every < 1:
            raise CheckpointError(f"need to save every 1 or more rounds, got {every!r}")
        self.path = Path(folder) / "round.safetensors"
        self.every = every
        self.saved = 0  # the last round that was saved here

    def save(self, run: Mapping[str, Any], round: int, state: Any, engine: Any) -> None:
        """Replace the last one. `run` names what this checkpoint belongs to; `engine` is what clients remember."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_tree(self.path, "checkpoint", {"run": dict(run), "round": round, "state": state, "engine": engine})
        self.saved = round

    def load(self, run: Mapping[str, Any], state: type[T]) -> tuple[int, T, Any] | None:
        """(round, server state, what clients remember) of the last complete round; None if there is none yet."""
        if not self.path.exists():
            return None
        saved = load_tree(self.path, "checkpoint")
        for key in [*run, *saved["run"]]:
            need, has = run.get(key), saved["run"].get(key)
            if need != has:
                raise CheckpointError(
                    f"{self.path} belongs to another run: need {key} = {need!r}, it has {has!r}; "
                    "give another checkpoint folder, or delete this one to start anew"
                )
        return saved["round"], build(state, saved["state"]), saved["engine"]
