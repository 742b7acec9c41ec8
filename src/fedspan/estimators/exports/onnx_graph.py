"""An ONNX graph of float64 that is put together node by node, and written whole after ONNX's own check."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedspan._files import write_whole
from fedspan._types import Array
from fedspan._version import __version__
from fedspan.errors import InputError, MissingExtraError
from fedspan.estimators.exports.original_columns import OriginalColumn

_OPSET, _ML_OPSET, _IR = 18, 2, 9  # old enough for runtimes of 2023, and all that is used here is in them
_ML = "ai.onnx.ml"

Onnx: TypeAlias = Any  # what the package onnx makes and takes has no types


class OnnxGraph:
    """Nodes, constants and inputs so far. Its own names begin with a slash: those of columns and views are users'."""

    def __init__(self) -> None:
        try:
            import onnx
            import onnx.helper
        except ImportError:
            raise MissingExtraError("writing ONNX", "onnx") from None
        self._onnx: Onnx = onnx
        self._nodes: list[Onnx] = []
        self._arrays: dict[str, Array] = {}
        self._inputs: dict[str, tuple[Onnx, int]] = {}
        self._uses_ml = False

    def add(self, kind: str, *inputs: str | Array | float, output: str = "", **attributes: Onnx) -> str:
        """Add a node, whose inputs are names or constants; the name of its output."""
        output = output or f"/{kind} {len(self._nodes)}"
        names = [each if isinstance(each, str) else self._hold(each) for each in inputs]
        self._nodes.append(self._onnx.helper.make_node(kind, names, [output], **attributes))
        self._uses_ml |= attributes.get("domain") == _ML
        return output

    def add_layer(self, rows: str, W: Array, *, intercept: bool, output: str = "") -> str:
        """rows · W; with intercepts, the last row of W is added."""
        if not intercept:
            return self.add("MatMul", rows, W, output=output)
        return self.add("Add", self.add("MatMul", rows, W[:-1]), W[-1], output=output)

    def read_rows(self, inputs: Mapping[str, int]) -> str:
        """The inputs (n, width) by name, side by side."""
        for name, width in inputs.items():
            self._inputs[name] = (np.dtype(np.float64), width)
        return next(iter(inputs)) if len(inputs) == 1 else self.add("Concat", *inputs, axis=1)

    def read_columns(self, columns: Sequence[OriginalColumn]) -> str:
        """The features made of an input (n, 1) for each column of a table: a number, or a word."""
        parts = []
        for column in columns:
            kind = np.dtype(np.float64) if column.words is None else np.dtype(object)
            self._inputs[column.name] = (kind, 1)
            if column.words is not None:
                parts.append(self._encode_words(column.name, column.words, column.fill))
            elif column.fill is not None:
                parts.append(self.add("Where", self.add("IsNaN", column.name), np.array(column.fill), column.name))
            else:
                parts.append(column.name)
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)

    def _encode_words(self, name: str, words: Sequence[str], fill: Sequence[float] | None) -> str:
        """0 and 1; the frequencies where the word is missing (""), and NaN where nothing is known of it."""
        codes = range(len(words) + 1)
        code = self.add(
            "LabelEncoder", name, domain=_ML, keys_strings=[*words, ""], values_int64s=[*codes], default_int64=-1
        )
        is_word = self.add("Equal", code, np.arange(len(words), dtype=np.int64)[None, :])
        features = self.add("Cast", is_word, to=self._onnx.TensorProto.DOUBLE)
        gap = np.full((1, len(words)), np.nan) if fill is None else np.array([fill])
        features = self.add("Where", self.add("Equal", code, np.array(len(words))), gap, features)
        return self.add("Where", self.add("Equal", code, np.array(-1)), np.array(np.nan), features)

    def write(
        self,
        path: str | os.PathLike[str],
        title: str,
        outputs: Mapping[str, tuple[Onnx, int | None]],
        features: Sequence[str] | None,
    ) -> None:
        """Check the graph and write it whole. `outputs`: their type, and width (None: one value for each row)."""
        taken = [name for name in self._inputs if name in outputs]
        if taken:
            raise InputError(f"A column cannot be called {taken[0]!r} in ONNX, because an output is. Rename it.")
        helper = self._onnx.helper

        def describe(name: str, kind: Onnx, width: int | None) -> Onnx:
            shape = ["n"] if width is None else ["n", width]
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)

        graph = helper.make_graph(
            self._nodes,
            title,
            [describe(name, *of_input) for name, of_input in self._inputs.items()],
            [describe(name, *of_output) for name, of_output in outputs.items()],
            [
                self._onnx.numpy_helper.from_array(np.ascontiguousarray(value), name)
                for name, value in self._arrays.items()
            ],
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        if self._uses_ml:
            opsets.append(helper.make_opsetid(_ML, _ML_OPSET))
        whole = helper.make_model(
            graph, producer_name="fedspan", producer_version=__version__, ir_version=_IR, opset_imports=opsets
        )
        if features is not None:
            helper.set_model_props(whole, {"features": "\n".join(features)})
        self._onnx.checker.check_model(whole, full_check=True)
        write_whole(path, whole.SerializeToString(), public=True)

    def _hold(self, value: Array | float) -> str:
        name = f"/constant {len(self._arrays)}"
        self._arrays[name] = np.asarray(value)
        return name
