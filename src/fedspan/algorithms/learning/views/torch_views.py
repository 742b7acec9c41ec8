"""Torch modules for features that are spread over clients: one for each client's columns, and a head that joins them.

    model = TorchViews({"bank": module, "shop": module}, head, Problem(objective, constraints))

This is the general form of Algorithms 3 and 4 of the paper (vertical.py): h_i(ω_i, x_i) is what client i's module puts
out for a row, and every function F_m of the problem is of ω_0 and of the h_i of all clients. The head is given
combine="sum": Σ h_i, so all modules put out as many numbers; combine="concat": the h_i side by side, in the order of
the clients' names. For the second a client sends its h_i among zeros, so that it is a sum, too; but then the sum
shows every h_i.

A client is given its own weights only. Parameters travel as one vector ω: the head's, then the clients' in the order of
their names. torch is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Matrix
from fedspan.algorithms._pytorch import import_torch
from fedspan.algorithms.learning._labelled_rows import check_finite_rows, check_labels
from fedspan.algorithms.learning.scaling import Scaling
from fedspan.algorithms.learning.torch import (
    Problem,
    call_module,
    call_part,
    copy_module,
    find_width,
    flatten_parameters,
)
from fedspan.errors import InputError
from fedspan.numerics.operators import HeldMatrix

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_OF_VIEWS = "torch modules of views"


class TorchViews:
    """The modules, the head and the problem. What is given is left as it is."""

    def __init__(
        self,
        modules: Mapping[str, Module],
        head: Module,
        problem: Problem | None = None,
        combine: Literal["sum", "concat"] = "sum",
    ) -> None:
        if not isinstance(modules, Mapping) or not modules:
            raise InputError("modules must be a mapping from the name of each view to its torch.nn.Module.")
        if combine not in ("sum", "concat"):
            raise InputError(f"combine must be 'sum' or 'concat', but is {combine!r}.")
        own = {str(name): copy_module(modules[name], f"The module of view {str(name)!r}") for name in modules}
        self.modules = {name: own[name] for name in sorted(own)}
        self.head, self.problem, self.combine = copy_module(head, "The head"), problem or Problem(), combine
        self._starts = {name: flatten_parameters(module) for name, module in self.modules.items()}
        self._head_start = flatten_parameters(self.head)
        for name, start in self._starts.items():
            if not len(start):
                raise InputError(f"The module of view {name!r} has no parameters, so there is nothing to learn.")
        self.dtype = next(next(iter(self.modules.values())).parameters()).dtype
        odd = [p.dtype for module in (*self.modules.values(), self.head) for p in module.parameters()]
        if any(dtype != self.dtype for dtype in odd):
            raise InputError("The head and all modules must have the same dtype; call .double() or .float() on each.")
        self.widths: dict[str, int | None] = {}  # of what each module puts out, once it is known

    def __repr__(self) -> str:
        start = np.concatenate([self._head_start, *self._starts.values()])
        digest = blake2b(start.tobytes(), digest_size=8).hexdigest()
        return f"TorchViews({len(self.modules)} views, {len(self.problem.parts)} functions, start {digest})"

    def check_widths(self, features: Mapping[str, int], classes: int | None = None) -> None:
        """Refuse modules that do not fit the views' columns, the head or, if known, the classes."""
        if set(features) != set(self.modules):
            raise InputError(
                f"There must be a module for each of the views {', '.join(map(repr, sorted(features)))}, but there are "
                f"modules for {', '.join(map(repr, self.modules))}."
            )
        for name, module in self.modules.items():
            columns = features[name]
            why = f"the view has {columns} columns"
            self.widths[name] = find_width(module, columns, f"the module of view {name!r}", why)
        known = {name: width for name, width in self.widths.items() if width is not None}
        if self.combine == "sum":
            first = next(iter(known), None)
            for name, width in known.items():
                if first is not None and width != known[first]:
                    raise InputError(
                        f"The modules' outputs are added up, but that of view {first!r} puts out {known[first]} "
                        f"numbers and that of view {name!r} {width}. Give both the same width, or set "
                        "combine='concat'."
                    )
            given = None if first is None else known[first]
        elif len(known) < len(self.modules):
            lost = next(name for name in self.modules if name not in known)
            raise InputError(
                f"With combine='concat' every module must put out one row of numbers for each row, but that of view "
                f"{lost!r} does not (it was tried on a row of zeros)."
            )
        else:
            given = sum(known.values())
        if given is not None:
            why = "that is what the views' modules put out" + (" together" if self.combine == "concat" else "")
            out = find_width(self.head, given, "the head", why)
            if classes is not None:
                self.problem.check_outputs(out, classes, "The head")

    def start(self, features: Mapping[str, int]) -> Array:
        """ω¹: the modules' own parameters."""
        self.check_widths(features)
        return np.concatenate([self._head_start, *(self._starts[name] for name in features)])

    def split(self, omega: Array) -> tuple[Array, Array]:
        """ω_0 (d_0,), and all ω_i as one column (d - d_0, 1), in the order of the clients."""
        k = len(self._head_start)
        return omega[:k], omega[k:].reshape(-1, 1)

    def count_weights(self, client: str) -> int:
        """d_i."""
        return len(self._starts[client])

    def place(self, client: str) -> tuple[int, int] | None:
        """Where h_i stands among the numbers that the head is given, and how many these are; None: it is added."""
        if self.combine == "sum":
            return None
        widths = [width for width in self.widths.values() if width is not None]
        if len(widths) < len(self.modules):
            raise InputError("The widths of the modules are not known yet: check_widths must be called first.")
        return sum(widths[: list(self.modules).index(client)]), sum(widths)

    def contribute(self, client: str, omega: Tensor, X: Tensor) -> Tensor:
        """h_i of rows, as it is added to those of the others."""
        h, place = call_module(self.modules[client], omega, X), self.place(client)
        if h.ndim != 2 or len(h) != len(X):
            raise InputError(
                f"The module of view {client!r} must put out a row of numbers for each of the {len(X)} rows, but put "
                f"out an array of shape {tuple(h.shape)}."
            )
        if place is None:
            return h
        after = place[1] - place[0] - h.shape[1]
        return import_torch(_OF_VIEWS).nn.functional.pad(h, (place[0], after))

    def proba(self, omega: Array, views: Mapping[str, Matrix]) -> Array:
        """softmax of the outputs, from the columns of every view."""
        torch = import_torch(_OF_VIEWS)
        head, rest = self.split(omega)
        cuts = np.cumsum([self.count_weights(name) for name in views])[:-1]
        with torch.no_grad():
            parts = zip(views.items(), np.split(rest[:, 0], cuts), strict=True)
            h = [self.contribute(name, self.to_tensor(own), self.to_tensor(X)) for (name, X), own in parts]
            outputs = call_module(self.head, self.to_tensor(head), torch.stack(h).sum(dim=0))
            return np.asarray(torch.softmax(outputs, dim=1).numpy(), dtype=np.float64)

    def to_tensor(self, values: Matrix) -> Tensor:
        """Numbers as a dense tensor of the modules' dtype."""
        dense = values.toarray() if sp.issparse(values) else values
        return import_torch(_OF_VIEWS).as_tensor(np.ascontiguousarray(dense)).to(self.dtype)


class TorchViewRows:
    """One client's columns of all rows under its module: what `FeatureClient` asks of them."""

    def __init__(self, model: TorchViews, name: str, X: Matrix, y: Array, groups: Array | None = None) -> None:
        if name not in model.modules:
            raise InputError(f"There is no module for view {name!r}.")
        self.model, self.name, self.X, self.y, self.groups = model, name, X, np.asarray(y), groups
        self.n, self.features = X.shape[0], X.shape[1]
        self.parts = len(model.problem.parts)
        check_labels(self.n, len(self.y))

    def count(self, at: Array | slice) -> Array:
        """Every function is of all rows."""
        return np.full(self.parts, len(self.y[at]))

    def check(self) -> None:
        """Refuse rows that are not finite."""
        if self.X.dtype.kind == "f":
            check_finite_rows(self.X)

    def take(self, at: Array | slice) -> HeldMatrix:
        """The rows as they are."""
        return self.X[at]

    def use(self, scaling: Scaling | None) -> None:
        """Torch modules see the columns as they are."""
        if scaling is not None:
            raise InputError("Torch modules see the columns as they are; set standardize=False, or scale them first.")

    def forward(self, own: Array, at: Array) -> Array:
        """h_i of the rows."""
        with import_torch(_OF_VIEWS).no_grad():
            h = self.model.contribute(self.name, self._weights(own), self.model.to_tensor(self.X[at]))
        return np.asarray(h.numpy(), dtype=np.float64)

    def _weights(self, own: Array) -> Tensor:
        return self.model.to_tensor(own.ravel())

    def _totals(self, head: Tensor, H: Tensor, at: Array) -> list[Tensor]:
        torch, outputs = import_torch(_OF_VIEWS), call_module(self.model.head, head, H)
        beside: Sequence[Array] = [self.y] if self.groups is None else [self.y, self.groups]
        labels = [torch.as_tensor(values[at]) for values in beside]
        return [call_part(part, outputs, *labels).sum() for part in self.model.problem.parts]

    def _differentiate(self, head: Array, H: Array, at: Array, *, inside: bool) -> tuple[Array, list[Tensor]]:
        """Σ f_g, and Σ ∇f_g in ω_0 or, inside, in H."""
        torch = import_torch(_OF_VIEWS)
        w, cells = self.model.to_tensor(head).requires_grad_(), self.model.to_tensor(H).requires_grad_()
        totals, of = self._totals(w, cells, at), cells if inside else w
        grads = [torch.autograd.grad(total, of, retain_graph=True, allow_unused=True)[0] for total in totals]
        slopes = [torch.zeros_like(of) if grad is None else grad for grad in grads]
        return np.array([total.item() for total in totals]), slopes

    def head(self, head: Array, H: Array, at: Array) -> tuple[Array, Array]:
        """Σ f_g and Σ ∇ω_0 f_g: line 5, (20)."""
        loss, grads = self._differentiate(head, H, at, inside=False)
        return loss, np.stack([grad.numpy() for grad in grads]).astype(np.float64)

    def zeros_of_head(self) -> tuple[Array, Array]:
        """What `head` gives, if nothing is to be added."""
        size = len(flatten_parameters(self.model.head))
        return np.zeros(self.parts), np.zeros((self.parts, size))

    def backward(self, own: Array, head: Array, H: Array, at: Array) -> Array:
        """Σ ∇ω_i f_g: line 6, (21)."""
        torch, slopes = import_torch(_OF_VIEWS), self._differentiate(head, H, at, inside=True)[1]
        w = self._weights(own).requires_grad_()
        h = self.model.contribute(self.name, w, self.model.to_tensor(self.X[at]))
        grads = [torch.autograd.grad(h, w, slope, retain_graph=True)[0].numpy() for slope in slopes]
        return np.stack(grads).astype(np.float64)[:, :, None]

    def measure(self, head: Array, H: Array, at: Array) -> dict[str, Array]:
        """Rows that are held out are for limits on groups and classes, which are of the built-in network."""
        raise InputError("Held-out rows need the built-in network; set validation=0 for torch modules.")
