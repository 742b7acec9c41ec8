"""The one door to torch: networks and optimisers as plain data, and torch held still while one client uses it.

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

from fedspan._types import Array
from fedspan.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from torch.nn import Module as Module
    from torch.optim import Optimizer as Optimizer

_ROWS = 4096  # that go through a network at once when nothing is learned
_LOCK = RLock()  # torch has one stream of random numbers in a process


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("a network", "deep") from None
    return torch


@contextmanager
def alone(rng: np.random.Generator | None = None, threads: int | None = None) -> Iterator[None]:
    """Torch for one client of this process at a time, its random numbers from `rng`; then all is as it was."""
    torch = _torch()
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(0 if rng is None else int(rng.integers(2**63)))
        before = torch.get_num_threads()
        torch.set_num_threads(before if threads is None else threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def made(network: Module | Callable[[], Module]) -> Module:
    """A network of one's own: a copy of a module, or a new one from its maker."""
    Module = _torch().nn.Module
    net = deepcopy(network) if isinstance(network, Module) else network() if callable(network) else network
    if not isinstance(net, Module) or not any(True for _ in net.parameters()):
        raise InputError(f"need a torch.nn.Module with parameters, or a function that makes one, got {net!r}")
    return net


def optimizer_of(net: Module, make: Callable[..., Optimizer] | None, lr: float, weight_decay: float) -> Optimizer:
    """The optimiser of a network's parameters: of that class (Adam, if none is given), or as a function makes it."""
    make = make or _torch().optim.Adam
    if not isinstance(make, type):
        return make(net.parameters())
    return make(net.parameters(), lr=lr, **({"weight_decay": weight_decay} if weight_decay else {}))


def with_parameters(net: Module, theta: dict[str, Any]) -> Module:
    """The network with those parameters and buffers."""
    try:
        net.load_state_dict(tensors(theta))
    except RuntimeError as error:
        raise InputError(f"need the network that these parameters were learned by: {error}") from None
    return net


def outputs(net: Module, X: Any) -> Array:
    """What the network makes of rows, as float32; nothing is learned."""
    net.eval()
    X = X.tocsr() if sp.issparse(X) else X
    with _torch().no_grad():
        parts = [net(like(net, X[begin : begin + _ROWS])).cpu().numpy() for begin in range(0, X.shape[0], _ROWS)]
    return np.concatenate(parts).astype(np.float32, copy=False)


def like(net: Module, rows: Any) -> Any:
    """Rows as a dense tensor of the network's dtype and device."""
    parameter = next(net.parameters())
    dense = rows.toarray() if sp.issparse(rows) else np.ascontiguousarray(rows)
    return _torch().tensor(dense, dtype=parameter.dtype, device=parameter.device)


def plain(tree: Any) -> Any:
    """Tensors as arrays, and keys as strings: what a checkpoint can hold."""
    if isinstance(tree, dict):
        return {str(key): plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(plain(value) for value in tree)
    return tree.detach().cpu().numpy().copy() if isinstance(tree, _torch().Tensor) else tree


def tensors(tree: Any) -> Any:
    """Arrays as tensors of their own; the inverse of `plain` but for keys that were not strings."""
    if isinstance(tree, dict):
        return {key: tensors(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(tensors(value) for value in tree)
    return _torch().tensor(tree) if isinstance(tree, np.ndarray) else tree
