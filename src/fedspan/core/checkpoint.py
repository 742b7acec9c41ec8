"""Plain data to a file and back: dataclasses, dicts, lists, tuples, numbers, strings and arrays; never code.

One checkpoint is one safetensors file: the arrays, and a JSON skeleton that says where they belong. It is replaced in
one step after every round, so a crash repeats at most one round. It holds the name of its run, and a digest.
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict
from zlib import crc32

import numpy as np

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import parse_json
from fedspan._types import Array, Arrays, Json
from fedspan.channel import wire
from fedspan.core.snapshot import SessionSnapshot
from fedspan.errors import CheckpointError, FedspanError

T = TypeVar("T")
_REMEDY = "Restore it, or delete it and run again."
_WORTH_A_SEARCH = 1 << 14  # bytes of an array of which a second copy is looked for


def flatten(tree: object) -> tuple[Json, dict[str, Array]]:
    """A JSON skeleton, and the arrays it refers to by name; what occurs twice, even as a copy, is stored once.

    An array that is not in C order comes back in the order it had ("lies"), because BLAS rounds differently in another.
    """
    arrays: dict[str, Array] = {}
    seen: dict[int, str] = {}

    def walk(node: object) -> Json:
        if isinstance(node, np.ndarray):
            axes = _axes_in_memory(node)
            if id(node) not in seen:
                twin = _find_copy(node.transpose(axes), arrays)
                seen[id(node)] = str(len(arrays)) if twin is None else twin
                arrays.setdefault(seen[id(node)], node.transpose(axes))
            name = seen[id(node)]
            return {"array": name} if axes == sorted(axes) else {"lies": {"array": name, "axes": axes}}
        if is_dataclass(node) and not isinstance(node, type):
            return {"dict": {name: walk(value) for name, value in field_values(node).items()}}
        if isinstance(node, Mapping):
            return {"dict": {str(key): walk(value) for key, value in node.items()}}
        if isinstance(node, tuple | list) and type(node) in (tuple, list):  # a NamedTuple would come back as a tuple
            return {type(node).__name__: [walk(value) for value in node]}
        if isinstance(node, np.generic):
            return cast(Json, node.item())
        if node is None or isinstance(node, bool | int | float | str):
            return node
        raise CheckpointError(
            f"A state must be plain data (arrays, numbers, text), but this one contains a {type(node).__name__}."
        )

    return walk(tree), arrays


def _find_copy(array: Array, among: Arrays) -> str | None:
    """The name of an array with the same bytes, if there is one; small arrays are not worth the search."""
    if array.nbytes < _WORTH_A_SEARCH or not array.flags.c_contiguous:
        return None
    for name, other in among.items():
        alike = (other.dtype, other.shape) == (array.dtype, array.shape) and other.flags.c_contiguous
        if alike and np.array_equal(_see_bytes(array), _see_bytes(other)):
            return name
    return None


def _see_bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _axes_in_memory(array: Array) -> list[int]:
    """The axes of an array from the one with the longest stride to the shortest: 0, 1, … in C order."""
    if array.flags.c_contiguous:
        return list(range(array.ndim))
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def field_values(record: object) -> dict[str, object]:
    """The fields of a dataclass by name, as they are (`asdict` would copy the arrays in them)."""
    if not is_dataclass(record):
        return {}
    return {f.name: getattr(record, f.name) for f in fields(record)}


def to_c_order(tree: T) -> T:
    """The same data with all arrays in C order, as a resumed run holds them."""
    return cast(T, _map_arrays(tree, lambda array: np.asarray(array, order="C")))


def to_writable(tree: T) -> T:
    """The same data with copies of the arrays that cannot be written, such as those that were read from a file."""
    return cast(T, _map_arrays(tree, lambda array: array if array.flags.writeable else np.array(array)))


def _map_arrays(tree: object, change: Callable[[Array], Array]) -> object:
    if isinstance(tree, np.ndarray):
        return change(tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{name: _map_arrays(value, change) for name, value in field_values(tree).items()})
    if isinstance(tree, Mapping):
        return {key: _map_arrays(value, change) for key, value in tree.items()}
    if isinstance(tree, tuple | list) and type(tree) in (tuple, list):
        return type(tree)(_map_arrays(value, change) for value in tree)
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


def build(kind: type[T], tree: object, *, defaults: bool = False) -> T:
    """A dataclass or TypedDict from plain data, with all that is nested in it, as the annotations say.

    Data that does not fit its annotation is refused with a `CheckpointError`. So is an annotation from which nothing
    can be built: a `Protocol`, or a union of two dataclasses with the same fields. `Any` and `object` take the data as
    it is. With `defaults`, fields that have a default may be missing.
    """
    return cast(T, _build(kind, tree, _name(kind), defaults))


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _misfit(kind: object, tree: object, where: str) -> CheckpointError:
    return CheckpointError(f"{where} must be {_name(kind)}, but the data holds {type(tree).__name__}.")


def _build(kind: Any, tree: object, where: str, defaults: bool) -> object:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or kind is object:
        return tree
    if origin in (Union, types.UnionType):
        return _build_union(kind, tree, where, defaults)
    if origin is Literal:
        if not any(type(tree) is type(option) and tree == option for option in inner):  # 1 is not True
            raise _misfit(kind, tree, where)
        return tree
    if is_dataclass(kind) or is_typeddict(kind):
        return _build_record(kind, tree, where, defaults)
    if origin is tuple and inner[-1:] != (...,):
        if not isinstance(tree, tuple | list) or len(tree) != len(inner):
            raise _misfit(kind, tree, where)
        pairs = zip(inner, tree, strict=True)
        return tuple(_build(part, node, f"{where}[{i}]", defaults) for i, (part, node) in enumerate(pairs))
    if origin in (tuple, list, Sequence):
        if not isinstance(tree, tuple | list):
            raise _misfit(kind, tree, where)
        parts = [_build(inner[0], node, f"{where}[{i}]", defaults) for i, node in enumerate(tree)]
        return parts if origin is list else tuple(parts)
    if origin in (dict, Mapping):
        if not isinstance(tree, Mapping):
            raise _misfit(kind, tree, where)
        return {
            _build_key(inner[0], key, where): _build(inner[1], node, f"{where}[{key!r}]", defaults)
            for key, node in tree.items()
        }
    return _build_plain(origin or kind, tree, where)


def _build_plain(kind: Any, tree: object, where: str) -> object:
    """A number, a text, an array or nothing; a whole number will do for a float."""
    if kind is None or kind is type(None):
        fits = tree is None
    elif kind is float:
        fits = isinstance(tree, float | int) and not isinstance(tree, bool)
    elif kind is int:
        fits = isinstance(tree, int) and not isinstance(tree, bool)
    elif kind in (bool, str, np.ndarray, dict, list, tuple):
        fits = isinstance(tree, kind)
    else:
        raise CheckpointError(f"{where} cannot be built from plain data, because its type is {_name(kind)}.")
    if not fits:
        raise _misfit(kind, tree, where)
    return tree


def _build_key(kind: object, key: object, where: str) -> object:
    """A key of a mapping; a file holds numbers as text."""
    if kind is int and isinstance(key, str) and key.removeprefix("-").isdecimal():
        return int(key)
    return _build(kind, key, f"{where}, a key,", False)


def _build_union(kind: Any, tree: object, where: str, defaults: bool) -> object:
    """Built as the member of the union that fits; two dataclasses that both fit cannot be told apart."""
    members = get_args(kind)
    if type(None) in members and tree is None:
        return None
    others = [member for member in members if member not in (Any, object, type(None))]
    if len(others) == 1 and Any not in members and object not in members:
        return _build(others[0], tree, where, defaults)
    built: list[object] = []
    for member in others:
        with suppress(CheckpointError):
            built.append(_build(member, tree, where, defaults))
    records = {type(value): value for value in built if is_dataclass(value)}
    if len(records) > 1:
        raise CheckpointError(f"{where} could be any of {', '.join(sorted(r.__name__ for r in records))}.")
    if records:
        return next(iter(records.values()))
    if built:
        return next((value for value in built if type(value) is type(tree)), built[0])
    if Any in members or object in members:
        return tree
    raise _misfit(kind, tree, where)


def _build_record(kind: Any, tree: object, where: str, defaults: bool) -> object:
    """A dataclass or a TypedDict, whose fields must be those of the data."""
    if is_typeddict(kind):
        extras = get_type_hints(kind, include_extras=True)
        known = set(extras)
        required = {name for name in kind.__required_keys__ if get_origin(extras[name]) is not NotRequired}
    else:
        known = {f.name for f in fields(kind)}
        free = {f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING}
        required = known - free if defaults else known
    if not isinstance(tree, Mapping) or not required <= set(tree) <= known:
        found = ", ".join(sorted(map(str, tree))) if isinstance(tree, Mapping) else type(tree).__name__
        raise CheckpointError(f"{where} must have the fields {', '.join(sorted(known))}, but the data holds {found}.")
    hints = get_type_hints(kind)
    values = {name: _build(hints[name], node, f"{where}.{name}", defaults) for name, node in tree.items()}
    return values if is_typeddict(kind) else kind(**values)


class _Crc:
    """A checksum of 32 bits, with what is used of a hash."""

    def __init__(self, data: bytes) -> None:
        self.sum = crc32(data)

    def update(self, data: bytes | memoryview) -> None:
        self.sum = crc32(data, self.sum)

    def hexdigest(self) -> str:
        return f"{self.sum:08x}"


def _digest(kind: str, skeleton: str, arrays: Arrays) -> str:
    """Tells whether a file is damaged. What a site writes with each of its answers has a quicker one."""
    text = skeleton.encode()
    digest = _Crc(text) if kind == "client" else blake2b(text, digest_size=16)
    for name, array in arrays.items():
        little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        digest.update(f"{name} {little.dtype.str} {little.shape}".encode())
        digest.update(little.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def save_tree(path: str | os.PathLike[str], kind: str, tree: object, *, public: bool = False) -> None:
    """Write plain data as one safetensors file of that kind ("checkpoint", "model"); see `write_whole` for `public`."""
    skeleton, arrays = flatten(tree)
    text = json.dumps(skeleton, separators=(",", ":"))
    pieces = wire.dump_pieces({"fedspan": kind, "tree": text, "digest": _digest(kind, text, arrays)}, arrays)
    write_whole(path, pieces, public=public)


def load_tree(path: str | os.PathLike[str], kind: str) -> Any:
    """Read it back, and refuse a file that is damaged or of another kind."""
    try:
        meta, arrays = wire.load(Path(path).read_bytes())
    except (OSError, FedspanError) as error:
        raise CheckpointError(f"Cannot read the {kind} in {path}: {str(error).rstrip('.')}. {_REMEDY}") from None
    if meta.get("fedspan") != kind:
        found = meta.get("fedspan", "a foreign safetensors file")
        raise CheckpointError(f"{path} must hold a fedspan {kind}, but is {found!r}. {_REMEDY}")
    ordered = {name: arrays[name] for name in map(str, range(len(arrays))) if name in arrays}
    if _digest(kind, meta.get("tree", ""), ordered) != meta.get("digest") or len(ordered) != len(arrays):
        raise CheckpointError(f"{path} is damaged: its digest does not match. {_REMEDY}")
    try:
        return unflatten(parse_json(meta["tree"], constants=True), arrays)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise CheckpointError(f"{path} is damaged: its parts do not fit together. {_REMEDY}") from None


@dataclass(frozen=True)
class _Saved:
    """What a checkpoint holds; `run` names the run it belongs to."""

    run: dict[str, object]
    round: int
    state: object
    engine: SessionSnapshot


class Checkpoint:
    """The folder in which a run leaves its last complete round."""

    def __init__(self, folder: str | os.PathLike[str], every: int = 1) -> None:
        if every < 1:
            raise CheckpointError(f"A checkpoint must be saved every 1 or more rounds, not every {every!r}.")
        self.path = Path(folder) / "round.safetensors"
        self.every = every
        self.saved = 0  # the last round that was saved here

    def save(self, run: Mapping[str, object], round: int, state: object, engine: SessionSnapshot) -> None:
        """Replace the last one. `run` names the run it belongs to; `engine` is what the clients remember."""
        make_private_folder(self.path.parent)
        save_tree(self.path, "checkpoint", _Saved(dict(run), round, state, engine))
        self.saved = round

    def load(self, run: Mapping[str, object], state: type[T]) -> tuple[int, T, SessionSnapshot] | None:
        """(round, server state, what the clients remember) of the last complete round; None if there is none yet."""
        if not self.path.exists():
            return None
        saved = self._build(_Saved, load_tree(self.path, "checkpoint"))
        for key in [*run, *saved.run]:
            need, has = run.get(key), saved.run.get(key)
            if need != has:
                raise CheckpointError(
                    f"{self.path} belongs to another run: {key} is {need!r} here, but {has!r} in the checkpoint. "
                    "Choose another checkpoint folder, or delete this one to start anew."
                )
        return saved.round, self._build(state, saved.state), saved.engine

    def _build(self, kind: type[T], tree: object) -> T:
        try:
            return build(kind, tree)
        except CheckpointError as error:
            raise CheckpointError(
                f"{self.path} does not fit this version of fedspan: {error} Resume with the version that wrote it, or "
                "delete it to start anew."
            ) from None
