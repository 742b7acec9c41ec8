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

    @property
    def limited(self) -> bool:
        """Whether anything is limited: ‖ω‖² as the objective needs it."""
        return self.objective is None or bool(self.constraints)

    def check_outputs(self, width: int | None, classes: int, whose: str) -> None:
        """Refuse outputs that are not as many as the classes, where the objective needs that."""
        if self.objective is cross_entropy and width is not None and width != classes:
            raise InputError(
                f"{whose} puts out {width} numbers for each row, but the labels have {classes} classes. Give its last "
                f"layer {classes} outputs."
            )

    def options(self) -> ProblemOptions:
        """What `Ssca` is told: which parts make the objective, and which are limited."""
        if self.objective is None and not self.constraints:
            raise InputError("A problem needs an objective or a constraint, but this one has neither.")
        unit = [tuple(float(g == m) for g in range(len(self.parts))) for m in range(len(self.parts))]
        if self.objective is None:
            return {"objective": "norm", "weights": (), "limits": tuple(Limit(0.0, row) for row in unit)}
        return {"objective": "loss", "weights": unit[0], "limits": tuple(Limit(0.0, row) for row in unit[1:])}


def find_width(module: Module, given: int, whose: str, why: str) -> int | None:
    """How many numbers a module puts out for each row of `given` numbers; None: it cannot be told.

    A module whose layers do not fit what they are given is refused.
    """
    torch = import_torch(_PURPOSE)
    names = {layer: name for name, layer in module.named_modules()}

    def compare(layer: Module, inputs: tuple[Tensor, ...]) -> None:
        width, wanted = int(inputs[0].shape[-1]), int(vars(layer)["in_features"])
        if width != wanted:
            called = f"Layer {names[layer]!r}" if names[layer] else "The layer"
            raise InputError(
                f"{called} of {whose} takes {wanted} numbers, but is given {width}: "
                f"{why if width == given else 'that is what comes before it'}. Set its in_features to {width}."
            )

    layers = [layer for layer in names if isinstance(layer, torch.nn.Linear)]
    hooks = [layer.register_forward_pre_hook(compare) for layer in layers]
    dtype = next((p.dtype for p in module.parameters()), torch.get_default_dtype())
    try:
        with torch.no_grad():
            outputs = module(torch.zeros((1, given), dtype=dtype))
    except InputError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None  # it may need other rows than zeros: what is wrong with it will be seen when it learns
    finally:
        for hook in hooks:
            hook.remove()
    return int(outputs.shape[1]) if outputs.ndim == 2 else None


def copy_module(module: object, whose: str) -> Module:
    """A module of one's own that can be learned by gradients; anything else is refused."""
    torch = import_torch(_PURPOSE)
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{whose} must be a torch.nn.Module, but is {type(module).__name__}.")
    if any(True for _ in module.buffers()):
        raise InputError(
            f"{whose} has buffers (batch norm keeps statistics of rows), which are not learned by gradients. Use layer "
            "norm instead."
        )
    return deepcopy(module).eval()


def flatten_parameters(module: Module) -> Array:
    """The parameters of a module as one vector, in its own order."""
    parts = [p.detach().cpu().numpy().astype(np.float64).ravel() for p in module.parameters()]
    return np.concatenate(parts) if parts else np.zeros(0)


def call_module(module: Module, omega: Tensor, X: Tensor) -> Tensor:
    """What a module puts out for rows, with parameters from a vector."""
    parameters, at = {}, 0
    for name, p in module.named_parameters():
        parameters[name] = omega[at : at + p.numel()].reshape(p.shape)
        at += p.numel()
    return import_torch(_PURPOSE).func.functional_call(module, parameters, (X,))


def call_part(part: Function, outputs: Tensor, *labels: Tensor) -> Tensor:
    """The numbers of a function of the problem, one for each row."""
    numbers = part(outputs, *labels)
    if tuple(numbers.shape) != (len(outputs),):
        raise InputError(
            f"A function of the problem must give a number for each of the {len(outputs)} rows, but gave an array of "
            f"shape {tuple(numbers.shape)}."
        )
    return numbers


class TorchModel:
    """A module and its problem. The module itself is left as it is."""

    def __init__(self, module: Module, problem: Problem | None = None) -> None:
        self.module, self.problem = copy_module(module, "The model"), problem or Problem()
        self._start = flatten_parameters(self.module)
        if not len(self._start):
            raise InputError("The model has no parameters, so there is nothing to learn.")
        self.dtype = next(self.module.parameters()).dtype

    def __repr__(self) -> str:
        digest = blake2b(self._start.tobytes(), digest_size=8).hexdigest()
        return f"TorchModel({type(self.module).__name__}, {len(self.problem.parts)} functions, start {digest})"

    def check_widths(self, features: int, classes: int) -> None:
        """Refuse a module whose layers do not fit the columns, or each other, or whose outputs are not the classes."""
        width = find_width(self.module, features, "the torch model", f"the tables have {features} columns")
        self.problem.check_outputs(width, classes, "The torch model")

    def start(self, features: int, rng: np.random.Generator) -> Array:
        """ω¹: the module's own parameters."""
        return self._start.copy()

    def call(self, omega: Tensor, X: Tensor) -> Tensor:
        """The module's outputs for rows."""
        return call_module(self.module, omega, X)

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
        yield from (call_part(part, outputs, *labels).sum() for part in self.model.problem.parts)

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
