"""AltMaxVar-Deep and CuteMaxVar-Deep: MAX-VAR GCCA with a network for each view.

    S. Shrestha, X. Fu. Communication-Efficient Federated Linear and Deep Generalized Canonical Correlation Analysis.
    IEEE Trans. Signal Process., 2023. https://arxiv.org/abs/2109.12400 (Algorithm 1)

Notation: J entities (rows, the same at all nodes), I views, X_i (J, N_i) view i, K components; θ_i the parameters of
network i, M_i = Q(X_i; θ_i) (J, K) its outputs, G (J, K) the common representation, GᵀG = I and 1ᵀG = 0; T inner
steps, F the rows of a batch, α_G the proximal weight. Minimised: Σ_i ½‖M_i - √J·G‖²_F / J, the cost (7).

One algorithm: over a channel that quantises differences to memories on both sides (`delta(quantize(3))` on M and G) it
is CuteMaxVar-Deep, without one AltMaxVar-Deep. The server needs no torch.

What the server sees: how many rows each node has (and a digest of their ids, see entities.py), Σ_i M_i, the sum of the
nodes' costs and the sum of their correlations with G. Rows, parameters and optimisers stay at the nodes.

What differs from the paper: the nodes fit √J·G (GᵀG = J·I in their scale) by the *mean* squared error, so that neither
targets nor steps shrink with J. Batches are cut from a shuffle of all rows, not drawn anew. Numbers travel as float32
(its q_full). The first exchange is what the channel makes of it (8 bits in `delta`), not always full precision.
M_i is taken in evaluation mode, as new entities will be (batch norm by its running statistics, no dropout).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Arrays, Matrix
from fedspan.algorithms._moments import describe_not_finite
from fedspan.algorithms.gcca.entities import MATCH_TASKS, MATCH_TURNS, Entities, EntitiesClient, match_entities
from fedspan.algorithms.gcca.networks import (
    compute_outputs,
    load_parameters,
    make_network,
    make_optimizer,
    to_arrays,
    to_batch,
    to_tensors,
    use_torch_alone,
)
from fedspan.core.protocol import Ask, Client, Course, Needs, Replay, Round, Server, Sum, Turn, complete, task
from fedspan.core.replay import CLOSE, Close
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.maxvar import center_columns, common_step
from fedspan.numerics.operators import Rows

if TYPE_CHECKING:
    from fedspan.algorithms.gcca.networks import Module, Optimizer


@dataclass(frozen=True)
class DeepView:
    """What a node holds: its rows, its network, and how that is trained. Nothing of it leaves the node.

    `network` is a module, whose parameters are the start, or a function that makes one. `optimizer` is a class of
    torch.optim (Adam, if none is given) or a function from parameters to an optimiser.
    """

    X: Matrix
    network: Module | Callable[[], Module]
    optimizer: Callable[..., Optimizer] | None = None
    threads: int = 1  # of torch; the last bits of a result depend on it
    ids: Sequence[object] | Array | None = None  # of the rows: see entities.py
    secret: str = ""


@dataclass(frozen=True)
class NodeState:
    """θ_i with the network's buffers, and the optimiser's own state: as arrays and numbers, to the bit."""

    theta: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    round: int = -1  # the last one in which it was trained


class DeepNode(EntitiesClient[NodeState]):
    """A node: it trains its network towards G, and says what the network makes of its rows."""

    State = NodeState
    needs: ClassVar[Needs] = "network"

    def __init__(
        self, data: DeepView, k: int, steps: int, batch_size: int = 0, lr: float = 1e-3, weight_decay: float = 0.0
    ) -> None:
        self.view, self.k, self.steps, self.lr, self.weight_decay = data, k, steps, lr, weight_decay
        self.X = data.X.tocsr() if sp.issparse(data.X) else data.X
        self.entities = Entities(self.X, data.ids, data.secret)
        self.batch_size = min(batch_size or len(self), len(self))
        self.live: tuple[object, Module, Optimizer] | None = None  # the state's mark, and its network and optimiser

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def init(self) -> NodeState:
        return NodeState()

    @task(releases={"M": None}, shows="for each entity the output of its network before training")
    def start(self, state: NodeState, arrays: Arrays, rng: Streams) -> tuple[NodeState, Arrays]:
        """M_i of the network before training; the place where rows and network are checked."""
        self._check_rows()
        with use_torch_alone(rng("network"), self.view.threads):
            net = make_network(self.view.network)  # Alg. 1, line 2
            state = self._keep(net, self._make_optimizer(net), round=0)
            M = self._check_outputs(net)
        return state, {"M": M}  # Alg. 1, line 4

    @task(
        releases={"M": None, "cost": None, "correlation": None},
        shows="for each entity the output of its network, its part of the cost, and its correlations",
    )
    def train(self, state: NodeState, arrays: Arrays, rng: Streams) -> tuple[NodeState, Arrays]:
        """T steps towards G, then M_i; if its last answer was lost and it is asked again, it trains no more."""
        G = arrays["G"]
        with use_torch_alone(rng("network"), self.view.threads):
            net, optimizer = self._resume(state)
        with use_torch_alone(rng("training"), self.view.threads):  # whether or not the network was made again just now
            if rng.round != state.round:
                self.live = None  # if this fails half-way, the state is still the one before
                net.train()
                for t, F in zip(range(self.steps), self._batches(rng("batches")), strict=False):
                    if not math.isfinite(self._step(net, optimizer, F, G[F])):  # Alg. 1, lines 20 and 21
                        raise InputError(f"The loss of step {t + 1} is not finite. Lower lr.")
                state = self._keep(net, optimizer, rng.round)
            M = compute_outputs(net, self.X)
        cost = 0.5 * np.sum((M - G) ** 2, dtype=np.float64) / len(self)
        return state, {"M": M, "cost": np.array(cost), "correlation": correlate(M, G)}  # Alg. 1, lines 23 and 24

    def _batches(self, rng: np.random.Generator) -> Iterator[Array]:
        """Rows of one batch after the other, from shuffles of all rows; the rest of a shuffle is dropped."""
        while True:
            order = rng.permutation(len(self))
            for begin in range(0, len(self) - self.batch_size + 1, self.batch_size):
                yield order[begin : begin + self.batch_size]

    def _step(self, net: Module, optimizer: Optimizer, F: Array, G: Array) -> float:
        x, g = to_batch(net, self.X[F]), to_batch(net, G)

        def loss() -> Any:
            optimizer.zero_grad()
            value = ((net(x) - g) ** 2).sum() / (2 * len(F))
            value.backward()
            return value

        return optimizer.step(loss).item()  # type: ignore[attr-defined]

    def _make_optimizer(self, net: Module) -> Optimizer:
        return make_optimizer(net, self.view.optimizer, self.lr, self.weight_decay)

    def _keep(self, net: Module, optimizer: Optimizer, round: int) -> NodeState:
        """The state after these steps; the live objects are kept too, for as long as this client is open."""
        state = NodeState(to_arrays(net.state_dict()), to_arrays(optimizer.state_dict()), round)
        self.live = (_mark(state), net, optimizer)
        return state

    def _resume(self, state: NodeState) -> tuple[Module, Optimizer]:
        if self.live is None or self.live[0] is not _mark(state):  # another state, or opened again
            net = load_parameters(make_network(self.view.network), state.theta)
            optimizer = self._make_optimizer(net)
            saved = state.optimizer | {"state": {int(i): s for i, s in state.optimizer["state"].items()}}
            optimizer.load_state_dict(to_tensors(saved))
            self.live = (_mark(state), net, optimizer)
        return self.live[1:]

    def _check_outputs(self, net: Module) -> Array:
        try:
            M = compute_outputs(net, self.X)
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(f"The network fails on rows of {self.X.shape[1]} features: {error}") from error
        if M.shape != (len(self), self.k):
            raise InputError(
                f"The network must have an output for each of the n_components = {self.k}, but its outputs for "
                f"{len(self)} rows have shape {M.shape}. Change the width of its last layer."
            )
        if not np.isfinite(M).all():
            raise InputError("The outputs of the network before training are not finite. Rescale the features.")
        return M

    def _check_rows(self) -> None:
        rows = Rows(self.X)
        if not np.isfinite(rows.sums()).all() and rows.count_not_finite()[0]:
            raise describe_not_finite(rows, drop="those entities from all views")


@dataclass(frozen=True)
class DeepState:
    """The common representation, and what is known of the networks."""

    G: Array  # (J, K) orthonormal and centred
    mean: Array  # (K,) of ΣM_i: what new entities are centred by,
    gram: Array  # (K, K) and of their scatter around it, over J
    cost: float  # (7) of the nodes' networks and the G that they were trained towards
    correlations: Array  # (K,) of M_i and that G, mean over the views
    change: float  # ‖G - G before‖_F / √K


@dataclass(frozen=True)
class DeepMaxVar(Server[DeepState]):
    """Networks and G in turn, until G changes by at most `tol`; `alpha` is α_G, infinite for no proximal term."""

    k: int = 2
    steps: int = 10  # T
    batch_size: int = 0  # 0: all rows
    lr: float = 1e-3
    weight_decay: float = 0.0
    alpha: float = math.inf
    tol: float = 0.0

    State = DeepState
    client: ClassVar[type[Client[object]]] = DeepNode
    family: ClassVar[str] = "gcca"

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {
            "k": self.k,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
        }

    def asks(self) -> frozenset[str]:
        return MATCH_TASKS | {"start", "train"}

    def course(self) -> Course:
        return Course((*MATCH_TURNS, Turn("start", after=["identify"])), (Turn("train", after=["start"]),))

    def replay(self) -> Replay | str:
        if self.alpha < math.inf:
            return "with alpha each common representation follows from the one before, which sites have only rounded"
        matching: Replay = {task: {"key": CLOSE} for task in MATCH_TASKS}
        return {**matching, "start": {}, "train": {"G": Close(1e-4)}}  # G goes in float32

    def init(self, rng: Streams) -> Round[DeepState]:
        J, _ = yield from match_entities(rng)
        if self.k >= J:
            raise InputError(
                f"There must be more entities than the {self.k} components, but there are {J}. Lower n_components."
            )
        M = (yield from complete(Ask("start", want=Sum("M")))).total["M"]
        return self._update_common(M, None, math.nan, np.full(self.k, math.nan))  # Alg. 1, line 7

    def round(self, state: DeepState, rng: Streams) -> Round[DeepState]:
        targets = (math.sqrt(len(state.G)) * state.G).astype(np.float32)
        replies = yield from complete(Ask("train", {"G": targets}, Sum("M", "cost", "correlation")))
        total, views = replies.total, len(replies.asked)
        return self._update_common(
            total["M"], state.G, float(total["cost"]), total["correlation"] / views
        )  # Alg. 1, line 29

    def _update_common(self, M: Array, G: Array | None, cost: float, correlations: Array) -> DeepState:
        J = len(M)
        M = M.astype(np.float64) / math.sqrt(J)
        gram = center_columns(M).T @ center_columns(M)
        rank = int(np.sum(np.linalg.eigvalsh(gram) > 1e-12 * np.sum(M**2)))  # less is what float32 rounds
        if rank < self.k:
            raise InputError(
                f"The outputs of the networks must vary in {self.k} directions, but their sum varies in {rank}. "
                "Start from other parameters, lower lr, or use wider layers."
            )
        G_next = common_step(M, G, self.alpha)  # (15), (16)
        change = math.inf if G is None else float(np.linalg.norm(G_next - G)) / math.sqrt(self.k)
        return DeepState(G_next, math.sqrt(J) * M.mean(axis=0), gram, cost, correlations, change)

    def done(self, state: DeepState) -> bool:
        return self.tol > 0 and state.change <= self.tol

    def estimate(self, state: DeepState) -> Array:
        return state.G

    def metrics(self, state: DeepState) -> dict[str, float]:
        return {"cost": state.cost, "correlation": float(state.correlations.mean()), "change": state.change}


def _mark(state: NodeState) -> object:
    """An array that only this state and its copies hold."""
    return next(iter(state.theta.values()))


def correlate(M: Array, G: Array) -> Array:
    """The correlation of each column of M with that of G; 0 where one is constant."""
    A, B = (center_columns(Y.astype(np.float64)) for Y in (M, G))
    scale = np.linalg.norm(A, axis=0) * np.linalg.norm(B, axis=0)
    return np.asarray(np.divide((A * B).sum(axis=0), scale, out=np.zeros(len(scale)), where=scale > 0))
