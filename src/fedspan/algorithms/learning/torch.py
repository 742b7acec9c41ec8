"""Any torch module under any differentiable objective and constraints, as a client of the learning algorithms sees it.

    model = TorchModel(module, Problem(objective, constraints))

Each function takes the module's outputs for some rows, their labels, and their groups if there are any, and gives a
number for each row: F_0 is the mean of the objective's numbers, and F_m ≤ 0 asks that of a constraint's. They are the
parts g of _samples.py. Parameters travel as one vector ω, in the module's own order. torch is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Matrix
from fedspan.algorithms._pytorch import import_torch
from fedspan.algorithms.learning._labelled_rows import check_finite_rows, check_labels
from fedspan.algorithms.learning.constraints.limits import Limit
from fedspan.algorithms.learning.scaling import Scaling
from fedspan.errors import InputError
from fedspan.numerics.operators import HeldMatrix

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    Function = Callable[..., Tensor]  # of outputs, labels and groups: a number for each row

_PURPOSE = "a torch model"


def cross_entropy(outputs: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    """The loss of classification, for each row."""
    return import_torch(_PURPOSE).nn.functional.cross_entropy(outputs, y, reduction="none")


class ProblemOptions(TypedDict):
    """The options of `Ssca` that a problem decides."""

    objective: Literal["loss", "norm"]
    weights: tuple[float, ...]
    limits: tuple[Limit, ...]


@dataclass(frozen=True)
class Problem:
    """min F_0(ω) subject to F_m(ω) ≤ 0. Without an objective it is ‖ω‖², as in (40)."""

    objective: Function | None = cross_entropy
    constraints: tuple[Function, ...] = ()

    @property
    def parts(self) -> tuple[Function, ...]:
        """The functions whose sums a client sends."""
        first = () if self.objective is None else (self.objective,)
        return (*first, *self.constraints)

    def options(self) -> ProblemOptions:
        """What `Ssca` is told: which parts make the objective, and which are limited."""
        if self.objective is None and not self.constraints:
            raise InputError("A problem needs an objective or a constraint, but this one has neither.")
        unit = [tuple(float(g == m) for g in range(len(self.parts))) for m in range(len(self.parts))]
        if self.objective is None:
            return {"objective": "norm", "weights": (), "limits": tuple(Limit(0.0, row) for row in unit)}
        return {"objective": "loss", "weights": unit[0], "limits": tuple(Limit(0.0, row) for row in unit[1:])}


class TorchModel:
    """A module and its problem. The module itself is left as it is."""

    def __init__(self, module: Module, problem: Problem | None = None) -> None:
        torch = import_torch(_PURPOSE)
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"The model must be a torch.nn.Module, but is {type(module).__name__}.")
        self.module, self.problem = deepcopy(module).eval(), problem or Problem()
        self.shapes = {name: tuple(p.shape) for name, p in self.module.named_parameters()}
        if not self.shapes:
            raise InputError("The model has no parameters, so there is nothing to learn.")
        if any(True for _ in self.module.buffers()):
            raise InputError(
                "The model has buffers (batch norm keeps statistics of rows), which are not learned by gradients. "
                "Use layer norm instead."
            )
        self.dtype = next(self.module.parameters()).dtype
        self._start = np.concatenate(
            [p.detach().cpu().numpy().astype(np.float64).ravel() for p in self.module.parameters()]
        )

    def __repr__(self) -> str:
        digest = blake2b(self._start.tobytes(), digest_size=8).hexdigest()
        return f"TorchModel({type(self.module).__name__}, {len(self.problem.parts)} functions, start {digest})"

    def check_widths(self, features: int, classes: int) -> None:
        """Refuse a module whose layers do not fit the columns, or each other, or whose outputs are not the classes."""
        torch = import_torch(_PURPOSE)
        names = {layer: name for name, layer in self.module.named_modules()}

        def compare(layer: Module, given: tuple[Tensor, ...]) -> None:
            width, wanted = int(given[0].shape[-1]), int(vars(layer)["in_features"])
            if width != wanted:
                where = f"the tables have {features} columns" if width == features else "that is what comes before it"
                raise InputError(
                    f"Layer {names[layer]!r} of the torch model takes {wanted} numbers, but is given {width}: {where}. "
                    f"Set its in_features to {width}."
                )

        layers = [layer for layer in names if isinstance(layer, torch.nn.Linear)]
        hooks = [layer.register_forward_pre_hook(compare) for layer in layers]
        try:
            with torch.no_grad():
                outputs = self.module(torch.zeros((1, features), dtype=self.dtype))
        except InputError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError):
            return  # it may need other rows than zeros: what is wrong with it will be seen when it learns
        finally:
            for hook in hooks:
                hook.remove()
        objective = self.problem.objective is cross_entropy and outputs.ndim == 2
        if objective and int(outputs.shape[1]) != classes:
            raise InputError(
                f"The torch model puts out {int(outputs.shape[1])} numbers for each row, but the labels have {classes} "
                f"classes. Give its last layer {classes} outputs."
            )

    def start(self, features: int, rng: np.random.Generator) -> Array:
        """ω¹: the module's own parameters."""
        return self._start.copy()

    def to_parameters(self, omega: Tensor) -> dict[str, Tensor]:
        """ω as the module's parameters."""
        out, at = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape, dtype=np.int64))
            out[name] = omega[at : at + size].reshape(shape)
            at += size
        return out

    def call(self, omega: Tensor, X: Tensor) -> Tensor:
        """The module's outputs for rows."""
        return import_torch(_PURPOSE).func.functional_call(self.module, self.to_parameters(omega), (X,))

    def proba(self, omega: Array, X: Matrix) -> Array:
        """softmax of the outputs."""
        torch = import_torch(_PURPOSE)
        with torch.no_grad():
            outputs = self.call(self.to_tensor(omega), self.to_tensor(X))
            return np.asarray(torch.softmax(outputs, dim=1).numpy(), dtype=np.float64)

    def to_tensor(self, values: Matrix) -> Tensor:
        """Numbers as a dense tensor of the module's dtype."""
        dense = values.toarray() if sp.issparse(values) else values
        return import_torch(_PURPOSE).as_tensor(np.ascontiguousarray(dense)).to(self.dtype)


class TorchRows:
    """One client's rows under a torch model: what `SampleClient` asks of its rows."""

    def __init__(self, model: TorchModel, X: Matrix, y: Array, extra: Array | None = None) -> None:
        self.model, self.X, self.y, self.extra = model, X, np.asarray(y), extra
        self.n, self.features = X.shape[0], X.shape[1]
        self.scaling: Scaling | None = None
        check_labels(self.n, len(self.y))

    @property
    def counts(self) -> Array:
        """N_g of this client: every function is of all rows."""
        return np.full(len(self.model.problem.parts), self.n)

    @property
    def class_counts(self) -> Array:
        """How many rows each class has, up to the largest that this client holds."""
        return np.bincount(self.y)

    def use(self, scaling: Scaling | None) -> None:
        """Scale the columns like this from now on."""
        self.scaling = scaling

    def take(self, at: Array | slice) -> HeldMatrix:
        """The rows `at` as they are."""
        return self.X[at]

    def check(self) -> None:
        """Refuse rows that are not finite."""
        if self.X.dtype.kind == "f":
            check_finite_rows(self.X)

    def _batch(self, at: Array | slice) -> tuple[Tensor, ...]:
        torch = import_torch(_PURPOSE)
        more = () if self.extra is None else (torch.as_tensor(self.extra[at]),)
        X = self.X[at] if self.scaling is None else self.scaling.apply(self.X[at])
        return self.model.to_tensor(X), torch.as_tensor(self.y[at]), *more

    def _totals(self, omega: Tensor, X: Tensor, *labels: Tensor) -> Iterator[Tensor]:
        outputs = self.model.call(omega, X)
        for part in self.model.problem.parts:
            numbers = part(outputs, *labels)
            if tuple(numbers.shape) != (len(X),):
                raise InputError(
                    f"A function of the problem must give a number for each of the {len(X)} rows, but gave an array of "
                    f"shape {tuple(numbers.shape)}."
                )
            yield numbers.sum()

    def sums(self, omega: Array, at: Array | slice) -> tuple[Array, Array]:
        """Σ f_g (G,) and Σ ∇f_g (G, d) over the rows `at`."""
        torch, w = import_torch(_PURPOSE), self.model.to_tensor(omega).requires_grad_()
        totals = list(self._totals(w, *self._batch(at)))
        grads = [torch.autograd.grad(total, w, retain_graph=True)[0].numpy() for total in totals]
        return np.array([total.item() for total in totals]), np.stack(grads).astype(np.float64)

    def losses(self, omega: Array, at: Array | slice) -> Array:
        """Σ f_g (G,) alone."""
        with import_torch(_PURPOSE).no_grad():
            return np.array([total.item() for total in self._totals(self.model.to_tensor(omega), *self._batch(at))])

    def clipped(self, omega: Array, at: Array, clip: float) -> Array:
        """Σ over the rows of ∇f_1, each shortened to norm `clip` if it is longer; (d,)."""
        torch, (X, *labels) = import_torch(_PURPOSE), self._batch(at)

        def loss(w: Tensor, x: Tensor, *label: Tensor) -> Tensor:
            rows = (one.unsqueeze(0) for one in label)
            return self.model.problem.parts[0](self.model.call(w, x.unsqueeze(0)), *rows)[0]

        axes = (None, 0, *(0 for _ in labels))
        g = torch.func.vmap(torch.func.grad(loss), in_dims=axes)(self.model.to_tensor(omega), X, *labels)
        factor = torch.clamp(clip / torch.clamp(g.norm(dim=1), min=1e-30), max=1.0)
        return np.asarray((factor @ g).numpy(), dtype=np.float64)
