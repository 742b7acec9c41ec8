"""Networks and optimisers as plain data, and torch held still while one client uses it.

Torch is imported when it is first needed: a server, and all that is not deep, goes without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Matrix
from fedspan.algorithms._pytorch import import_torch
from fedspan.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module as Module
    from torch.optim import Optimizer as Optimizer

_ROWS_PER_PASS = 4096  # that go through a network at once when nothing is learned
_LOCK = RLock()  # torch has one stream of random numbers in a process


@contextmanager
def use_torch_alone(rng: np.random.Generator | None = None, threads: int | None = None) -> Iterator[None]:
    """Torch for one client of this process at a time, its random numbers from `rng`; then all is as it was."""
    torch = import_torch()
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(0 if rng is None else int(rng.integers(2**63)))
        before = torch.get_num_threads()
        torch.set_num_threads(before if threads is None else threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def make_network(network: Module | Callable[[], Module]) -> Module:
    """A network of one's own: a copy of a module, or a new one from its maker."""
    nn = import_torch().nn
    Module = nn.Module
    net = network
    if isinstance(network, Module):
        net = deepcopy(network)
    elif callable(network):
        net = network()
    if not isinstance(net, Module) or not any(True for _ in net.parameters()):
        raise InputError(
            f"A network must be a torch.nn.Module with parameters, or a function that makes one, but is {net!r}."
        )
    if any(isinstance(one, nn.parameter.UninitializedParameter) for one in net.parameters()):
        raise InputError(f"A network must say how many features it takes, but has a lazy layer: {net!r}.")
    return net


def make_optimizer(net: Module, make: Callable[..., Optimizer] | None, lr: float, weight_decay: float) -> Optimizer:
    """The optimiser of a network's parameters: of that class (Adam, if none is given), or as a function makes it."""
    make = make or import_torch().optim.Adam
    if not isinstance(make, type):
        return make(net.parameters())
    return make(net.parameters(), lr=lr, **({"weight_decay": weight_decay} if weight_decay else {}))


def load_parameters(net: Module, theta: dict[str, Any]) -> Module:
    """The network with those parameters and buffers."""
    try:
        net.load_state_dict(to_tensors(theta))
    except RuntimeError as error:
        raise InputError(f"These parameters were learned by another network: {error}") from None
    return net


def compute_outputs(net: Module, X: Matrix) -> Array:
    """What the network makes of rows, as float32; nothing is learned."""
    net.eval()
    X = X.tocsr() if sp.issparse(X) else X
    with import_torch().no_grad():
        blocks = (X[begin : begin + _ROWS_PER_PASS] for begin in range(0, X.shape[0], _ROWS_PER_PASS))
        parts = [net(to_batch(net, rows)).cpu().numpy() for rows in blocks]
    return np.concatenate(parts).astype(np.float32, copy=False)


def to_batch(net: Module, rows: Matrix) -> Tensor:
    """Rows as a dense tensor of the network's dtype and device."""
    parameter = next(net.parameters())
    dense = rows.toarray() if sp.issparse(rows) else np.ascontiguousarray(rows)
    return import_torch().tensor(dense, dtype=parameter.dtype, device=parameter.device)


def to_arrays(tree: Any) -> Any:
    """Tensors as arrays, and keys as strings: what a checkpoint can hold."""
    if isinstance(tree, dict):
        return {str(key): to_arrays(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(to_arrays(value) for value in tree)
    return tree.detach().cpu().numpy().copy() if isinstance(tree, import_torch().Tensor) else tree


def to_tensors(tree: Any) -> Any:
    """Arrays as tensors of their own; the inverse of `to_arrays` but for keys that were not strings."""
    if isinstance(tree, dict):
        return {key: to_tensors(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(to_tensors(value) for value in tree)
    return import_torch().tensor(tree) if isinstance(tree, np.ndarray) else tree
