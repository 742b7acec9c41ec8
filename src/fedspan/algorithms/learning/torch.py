"""Any torch module under any differentiable objective and constraints, as a client of the learning algorithms sees it.

    model = TorchModel(module, Problem(objective, constraints))

Each function takes the module's outputs for some rows, their labels, and their groups if there are any, and gives a
number for each row: F_0 is the mean of the objective's numbers, and F_m ≤ 0 asks that of a constraint's. They are the
parts g of learning.py. Parameters travel as one vector ω, in the module's own order. torch is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.learning.samples import Limit
from fedspan.errors import InputError, MissingExtraError


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("a torch model", "deep") from None
    return torch


def cross_entropy(outputs: Any, y: Any, *_: Any) -> Any:
    """The loss of classification, for each row."""
    return _torch().nn.functional.cross_entropy(outputs, y, reduction="none")


@dataclass(frozen=True)
class Problem:
    """min F_0(ω) subject to F_m(ω) ≤ 0. Without an objective it is ‖ω‖², as in (40)."""

    objective: Callable[..., Any] | None = cross_entropy
    constraints: tuple[Callable[..., Any], ...] = ()

    @property
    def parts(self) -> tuple[Callable[..., Any], ...]:
        first = () if self.objective is None else (self.objective,)
        return (*first, *self.constraints)

    def options(self) -> dict[str, Any]:
        """What `Ssca` is told: which parts make the objective, and which are limited."""
        if self.objective is None and not self.constraints:
            raise InputError("need an objective or a constraint, got a problem with neither")
        unit = [tuple(float(g == m) for g in range(len(self.parts))) for m in range(len(self.parts))]
        if self.objective is None:
            return {"objective": "norm", "weights": (), "limits": tuple(Limit(0.0, row) for row in unit)}
        return {"objective": "loss", "weights": unit[0], "limits": tuple(Limit(0.0, row) for row in unit[1:])}


class TorchModel:
    """A module and its problem. The module itself is left as it is."""

    def __init__(self, module: Any, problem: Problem | None = None) -> None:
        torch = _torch()
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"need a torch.nn.Module, got {type(module).__name__}")
        self.module, self.problem = deepcopy(module).eval(), problem or Problem()
        self.shapes = {name: tuple(p.shape) for name, p in self.module.named_parameters()}
        if not self.shapes:
            raise InputError("need a module with parameters, got one with none")
        if any(True for _ in self.module.buffers()):
            raise InputError(
                "need a module without buffers (batch norm keeps rows' statistics); use layer norm instead"
            )
        self.dtype = next(self.module.parameters()).dtype
        self._start = np.concatenate(
            [p.detach().cpu().numpy().astype(np.float64).ravel() for p in self.module.parameters()]
        )

    def __repr__(self) -> str:
        digest = blake2b(self._start.tobytes(), digest_size=8).hexdigest()
        return f"TorchModel({type(self.module).__name__}, {len(self.problem.parts)} functions, start {digest})"

    def start(self, features: int, rng: Any) -> Array:
        """ω¹: the module's own parameters."""
        return self._start.copy()

    def named(self, omega: Any) -> dict[str, Any]:
        """ω (a tensor) as the module's parameters."""
        out, at = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape, dtype=np.int64))
            out[name] = omega[at : at + size].reshape(shape)
            at += size
        return out

    def call(self, omega: Any, X: Any) -> Any:
        """The module's outputs for rows (tensors)."""
        return _torch().func.functional_call(self.module, self.named(omega), (X,))

    def proba(self, omega: Array, X: Any) -> Array:
        """softmax of the outputs."""
        torch = _torch()
        with torch.no_grad():
            outputs = self.call(self.tensor(omega), self.tensor(X.toarray() if hasattr(X, "toarray") else X))
            return np.asarray(torch.softmax(outputs, dim=1).numpy(), dtype=np.float64)

    def tensor(self, values: Any) -> Any:
        return _torch().as_tensor(np.ascontiguousarray(values)).to(self.dtype)


class TorchRows:
    """One client's rows under a torch model: what `SampleClient` asks of its rows."""

    def __init__(self, model: TorchModel, X: Any, y: Array, extra: Array | None = None) -> None:
        self.model, self.X, self.y, self.extra = model, X, np.asarray(y), extra
        self.n, self.features = X.shape[0], X.shape[1]
        if len(self.y) != self.n:
            raise InputError(f"need a label for each of the {self.n} rows, got {len(self.y)}")

    @property
    def counts(self) -> Array:
        return np.full(len(self.model.problem.parts), self.n)

    def check(self) -> None:
        values = self.X.data if hasattr(self.X, "toarray") else np.asarray(self.X)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError("need finite numbers, got NaN or infinity in the rows; drop them or impute the values")

    def _batch(self, at: Array) -> tuple[Any, ...]:
        torch, rows = _torch(), self.X[at]
        X = self.model.tensor(rows.toarray() if hasattr(rows, "toarray") else rows)
        more = () if self.extra is None else (torch.as_tensor(self.extra[at]),)
        return X, torch.as_tensor(self.y[at]), *more

    def _totals(self, omega: Any, X: Any, *labels: Any) -> Iterator[Any]:
        outputs = self.model.call(omega, X)
        for part in self.model.problem.parts:
            numbers = part(outputs, *labels)
            if tuple(numbers.shape) != (len(X),):
                raise InputError(f"need a number for each of the {len(X)} rows, a function gave {tuple(numbers.shape)}")
            yield numbers.sum()

    def sums(self, omega: Array, at: Array) -> tuple[Array, Array]:
        """Σ f_g (G,) and Σ ∇f_g (G, d) over the rows `at`."""
        torch, w = _torch(), self.model.tensor(omega).requires_grad_()
        totals = list(self._totals(w, *self._batch(at)))
        grads = [torch.autograd.grad(total, w, retain_graph=True)[0].numpy() for total in totals]
        return np.array([total.item() for total in totals]), np.stack(grads).astype(np.float64)

    def losses(self, omega: Array, at: Array) -> Array:
        """Σ f_g (G,) alone."""
        with _torch().no_grad():
            return np.array([total.item() for total in self._totals(self.model.tensor(omega), *self._batch(at))])

    def clipped(self, omega: Array, at: Array, clip: float) -> Array:
        """Σ over the rows of ∇f_1, each shortened to norm `clip` if it is longer; (d,)."""
        torch, (X, *labels) = _torch(), self._batch(at)

        def loss(w: Any, x: Any, *label: Any) -> Any:
            rows = (one.unsqueeze(0) for one in label)
            return self.model.problem.parts[0](self.model.call(w, x.unsqueeze(0)), *rows)[0]

        axes = (None, 0, *(0 for _ in labels))
        g = torch.func.vmap(torch.func.grad(loss), in_dims=axes)(self.model.tensor(omega), X, *labels)
        factor = torch.clamp(clip / torch.clamp(g.norm(dim=1), min=1e-30), max=1.0)
        return np.asarray((factor @ g).numpy(), dtype=np.float64)
