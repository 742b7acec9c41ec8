"""The parameters of the two classifiers, and the method that they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from fedspan._types import Array
from fedspan.algorithms import (
    FedAdam,
    FedAvg,
    FedSgd,
    Limit,
    LocalSsca,
    Sampling,
    Scaffold,
    Ssca,
    Steps,
    VerticalGuarded,
    VerticalSgd,
    VerticalSsca,
)
from fedspan.algorithms.learning import EarlierModel
from fedspan.algorithms.learning.count_samples import CountSamples
from fedspan.algorithms.learning.scaling import LENGTH2, Scaling
from fedspan.algorithms.learning.torch import TorchModel
from fedspan.algorithms.learning.views.torch_views import TorchViews
from fedspan.algorithms.spectral.private_bounds import Bounds
from fedspan.core.ledger import Counted, Ledger, Note
from fedspan.core.participation import Participation
from fedspan.core.protocol import Server, declared_releases
from fedspan.data.clients import Schema
from fedspan.errors import InputError
from fedspan.estimators._options.common_parameters import ROUNDS
from fedspan.estimators._options.private_solvers import check_delta, check_delta_before
from fedspan.estimators.limit_requests import GroupLimit, LimitWords, NamedLimit
from fedspan.estimators.parameters import about
from fedspan.numerics.swish import Swish
from fedspan.privacy.noised_count import NoisedCount
from fedspan.privacy.plan import Plan, plan_for
from fedspan.privacy.request import RowDP

ROW_METHODS: dict[str, Server[Any]] = {
    "auto": LocalSsca(),
    "ssca": Ssca(),
    "fedsgd": FedSgd(),
    "fedsgdm": FedSgd(momentum=0.1, rate=Steps(0.3, 0.0)),
    "fedavg": FedAvg(),
    "scaffold": Scaffold(),
    "fedadam": FedAdam(),
}
VIEW_METHODS: dict[str, Server[Any]] = {
    "auto": VerticalGuarded(),
    "ssca": VerticalSsca(),
    "sgd": VerticalSgd(),
    "sgdm": VerticalSgd(momentum=0.1),
}
CELLS = 128  # of the hidden layer, if the user leaves it to us
BLEND = 2000  # rows below which the mean with a linear model repairs a network that is too certain
_USUAL_L2 = 1e-5  # of the methods that do not choose it by the number of rows
_BEYOND_NOISE = 3.0  # deviations: a noised count below may be of no rows
_ABOUT_METHOD = "The method: one that needs no tuning, mini-batch SSCA, or a baseline."
_ABOUT_CLASS_WEIGHT = about(
    'How to weigh the losses of the classes; "balanced" weighs rare ones as much as frequent ones.',
    choices=("balanced",),
    example="balanced",
)


@dataclass(eq=False, repr=False, kw_only=True)
class LossParameters:
    """What can be asked of any method that minimises a loss."""

    method: str | Server[Any] = field(default="auto", metadata=about("The method."))
    hidden: int | str = field(
        default="auto",
        metadata=about(
            "Cells of the hidden layer of the built-in network; 0: none, which is a linear model.",
            choices=("auto",),
            least=0,
        ),
    )
    batch_size: int | None = field(
        default=100, metadata=about("Rows that are drawn in each round.", least=1, example=100)
    )
    rounds: int = field(default=1000, metadata=ROUNDS)
    standardize: bool | Sequence[object] = field(
        default=True,
        metadata=about("Whether to scale the columns by their means and deviations."),
    )
    intercept: bool = field(default=True, metadata=about("Whether both layers of the network have intercepts."))
    l2: float | None = field(
        default=None, metadata=about("The weight λ of ‖ω‖² in the objective.", least=0, example=1e-5)
    )
    validation: float = field(
        default=0.1, metadata=about("The share of rows that is held out of training (auto).", least=0, below=1)
    )
    early_stopping: bool = field(
        default=True, metadata=about("Whether to stop when the held-out loss falls no more (auto).")
    )
    calibrate: bool = field(default=True, metadata=about("Whether to fit a temperature to the held-out rows (auto)."))
    cost_limit: float | None = field(
        default=None,
        metadata=about("Minimise ‖ω‖² subject to a mean training loss of at most this (ssca).", above=0, example=0.3),
    )
    limits: Sequence[GroupLimit | LimitWords] | None = field(
        default=None,
        metadata=about(
            "Limits on the mean losses of all rows, of groups or of classes, and on gaps between groups.",
            example=[{"on": "cost", "at_most": 0.3}],
        ),
    )

    warm_start: bool = field(
        default=False,
        metadata=about("Whether `fit` goes on from the model of the last `fit`, with its scaling and its classes."),
    )


@dataclass(eq=False, repr=False, kw_only=True)
class RowClassifierParameters(LossParameters):
    """The parameters of a classifier whose clients hold rows."""

    method: str | Server[Any] = field(
        default="auto",
        metadata=about(
            "The method: one that needs no tuning, mini-batch SSCA, or a baseline.", choices=tuple(ROW_METHODS)
        ),
    )
    strict: bool = field(
        default=False, metadata=about("Whether only a method with a proof of convergence will do (auto takes ssca).")
    )
    class_weight: str | Mapping[Any, float] | None = field(default=None, metadata=_ABOUT_CLASS_WEIGHT)
    model: object = field(default=None, metadata=about("A torch model in place of the built-in network.", in_job=False))
    local_steps: int | None = field(
        default=None, metadata=about("Local steps in each round (auto, fedavg, scaffold, fedadam).", least=1, example=4)
    )
    participation: Participation | None = field(
        default=None, metadata=about("How many clients take part in each round.", example={"fraction": 0.1})
    )


@dataclass(eq=False, repr=False, kw_only=True)
class ViewClassifierParameters(LossParameters):
    """The parameters of a classifier whose clients hold different features of the same rows."""

    method: str | Server[Any] = field(
        default="auto",
        metadata=about(
            "The method: one that needs no tuning, mini-batch SSCA, or a baseline.", choices=tuple(VIEW_METHODS)
        ),
    )
    class_weight: str | Mapping[Any, float] | None = field(default=None, metadata=_ABOUT_CLASS_WEIGHT)
    model: object = field(default=None, metadata=about("Torch modules in place of the built-in network.", in_job=False))
    exchange: str = field(
        default="sum",
        metadata=about(
            'What is exchanged: "sum" shows only sums over the clients, "each" what every client contributes.',
            choices=("sum", "each"),
        ),
    )


@dataclass(frozen=True)
class ChosenMethod:
    """A method with all its options, the limits that it keeps, and why it was chosen."""

    method: Server[Any]
    limits: tuple[NamedLimit, ...]
    why: str = "as requested"


def count_cells(hidden: int | str) -> int:
    """The cells of the hidden layer."""
    return CELLS if isinstance(hidden, str) else int(hidden)


def build_network(asked: LossParameters, classes: int) -> Swish:
    """The built-in network of that many classes."""
    length2 = 0.0 if asked.standardize is False else LENGTH2
    return Swish(count_cells(asked.hidden), classes, bool(asked.intercept), length2)


def name_method(limited: bool, private: bool, custom: bool, strict: bool) -> tuple[str, str]:
    """Which method "auto" is, and why. `custom`: a torch module is to be trained."""
    if strict:
        return "ssca", "strict=True: of the methods without tuning, only ssca has a proof of convergence"
    if limited:
        return "ssca", "only ssca keeps limits"
    if private:
        return "ssca", "the steps of ssca have a known sensitivity, which privacy needs"
    if custom:
        return "ssca", "held-out rows guard only the built-in network"
    return "auto", "local steps under the guard of held-out rows"


def read_bounds(standardize: bool | Sequence[object], features: int) -> EarlierModel | None:
    """The scaling from public bounds, if they are given in place of True or False."""
    if isinstance(standardize, bool | np.bool_):
        return None
    try:
        low, high = (np.broadcast_to(np.array(side, dtype=np.float64), (features,)) for side in standardize)
    except (TypeError, ValueError):
        raise InputError(
            "standardize must be True, False, or a pair (lower, upper) of public bounds, each a number or one for each "
            f"of the {features} columns, but is {standardize!r}."
        ) from None
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        raise InputError("The public bounds in standardize must be finite, each lower one at most the upper one.")
    return EarlierModel(np.zeros(0), Scaling.of_bounds(low, high))


@dataclass(frozen=True)
class PrivateMethod:
    """A method that keeps a promise of privacy, the plan of its noise, and about how many rows there are.

    `by_class` is about how many rows each class has, if classes are weighed by it; classes that may be no more than
    noise are taken for as large as noise can be.
    """

    method: Server[Any]
    plan: Plan
    rows: int
    by_class: Array | None


def choose_method(
    asked: LossParameters,
    known: Mapping[str, Server[Any]],
    network: Swish | TorchModel | TorchViews,
    limits: Sequence[NamedLimit] = (),
    extras: Mapping[str, object] | None = None,
    prior: EarlierModel | None = None,
    *,
    private: bool = False,
    strict: bool = False,
    blend: int = 0,
) -> ChosenMethod:
    """The method with all its options; what it cannot do is refused. `extras` are options of one kind of client."""
    name, why = asked.method, "as requested"
    limited = bool(limits) or asked.cost_limit is not None
    if name == "auto":
        name, why = name_method(
            bool(limits) or asked.cost_limit is not None, private, not isinstance(network, Swish), strict
        )
    elif strict and name != "ssca":
        raise InputError(f"strict=True is for methods 'auto' and 'ssca', but method is {name!r}; leave strict out.")
    method = known[name] if isinstance(name, str) else name
    if not issubclass(method.client, known["ssca"].client):
        raise InputError(
            f"method {type(method).__name__} is for another kind of clients; known here: {', '.join(known)}."
        )
    if isinstance(network, Swish) and network.hidden < 1:
        raise InputError(
            "hidden=0, a linear model, is for method='auto' of FederatedClassifier, whose clients hold rows. Set "
            "hidden to 1 or more."
        )
    limits = list(limits)
    stated = None if isinstance(network, Swish) or not network.problem.limited else network.problem.options()
    if (limited or stated) and isinstance(method, VerticalSsca) and isinstance(asked.method, str):
        usual = Ssca()  # the paper's steps for features are for batches that do not grow
        method = replace(method, rho=usual.rho, gamma=usual.gamma, tau=usual.tau)
    if not isinstance(network, Swish) and any(not limit.on_cost for limit in limits):
        raise InputError("limits on groups are for the built-in network; write them into the torch model's Problem.")
    options: dict[str, object] = {
        "model": network,
        "batch": asked.batch_size or 0,
        "rounds": int(asked.rounds),
        "standardize": asked.standardize is not False and isinstance(network, Swish),
    }
    if prior is not None:
        options["prior"] = prior
    if isinstance(method, LocalSsca | VerticalGuarded):
        if not isinstance(network, Swish):
            raise InputError("LocalSsca is for the built-in network; use 'ssca' or 'fedavg' for a torch model.")
        options |= {name: vars(asked)[name] for name in ("validation", "early_stopping", "calibrate")}
        options |= {} if asked.l2 is None else {"l2": float(asked.l2)}
        if isinstance(method, LocalSsca):
            options["blend"] = blend
    else:
        options["l2"] = _USUAL_L2 if asked.l2 is None else float(asked.l2)
    if asked.cost_limit is not None:
        limits.append(NamedLimit(Limit(float(asked.cost_limit)), f"cost ≤ {asked.cost_limit:g}", on_cost=True))
    if any(limit.on_cost for limit in limits):
        options["objective"] = "norm"
    if stated is not None:
        if limits:
            raise InputError(
                "The limits must be in one place, but there is a cost_limit and a Problem with limits; write all of "
                "them into the Problem."
            )
        options |= stated
        limits = [NamedLimit(limit, f"constraint {m + 1} ≤ 0") for m, limit in enumerate(stated["limits"])]
    if limits:
        options["limits"] = tuple(limit.limit for limit in limits)
        if isinstance(method, Ssca) and not method.paper and isinstance(network, Swish):
            options["validation"] = float(asked.validation)
    options |= extras or {}
    _check_options(name, method, options)
    return ChosenMethod(replace(method, **options), tuple(limits), why)  # type: ignore[type-var]


def _check_options(given: str | Server[Any], method: Server[Any], options: Mapping[str, object]) -> None:
    known = {option.name for option in fields(method)}  # type: ignore[arg-type]
    lost = next((key for key in options if key not in known), None)
    if lost is not None:
        called = {"objective": "cost_limit", "steps": "local_steps"}.get(lost, lost)
        name = given if isinstance(given, str) else type(given).__name__
        raise InputError(f"method {name!r} cannot do {called}; use 'ssca' for limits, 'fedavg' for local steps.")


def build_private_method(
    asked: RowClassifierParameters,
    method: Server[Any],
    dp: RowDP,
    count: Callable[[CountSamples, Plan], Bounds],
    ledger: Ledger,
    schema: Schema,
    classes: int,
    clients: int,
    sharers: int,
) -> PrivateMethod:
    """The method with secret sampling, and the plan of its noise.

    It is refused where no noise would be enough. `count` asks the clients for their noised number of rows, once it is
    clear that the run can be private.
    """
    if type(method) not in (Ssca, FedSgd) or not isinstance(method, Ssca | FedSgd):
        raise InputError("privacy is for method 'ssca' and 'fedsgd': what others release has no known sensitivity.")
    if isinstance(method, Ssca) and method.limits:
        raise InputError("privacy is for methods without limits, because losses have no known sensitivity.")
    if not isinstance(method.model, Swish):
        raise InputError("privacy is for the built-in network: the gradients of others are not bounded.")
    if method.standardize and method.prior is None:
        raise InputError(
            "With privacy the columns cannot be scaled by their exact means and deviations, which tell about single "
            "rows. Give public bounds of the columns, standardize=(lower, upper), or take them as they are, "
            "standardize=False."
        )
    if method.batch == 0 or asked.participation is not None:
        raise InputError("privacy needs a batch_size and all clients in every round; leave participation out.")
    if not isinstance(dp.row_norm, int | float) or dp.center is not None:
        raise InputError("Classifiers need row_norm as a number, a bound on the gradient of one row's loss.")
    if dp.neighbours != "add-remove":
        raise InputError("Classifiers need neighbours='add-remove', because they draw rows at random.")
    check_delta_before(dp, clients)
    opening = CountSamples(classes if asked.class_weight == "balanced" else 0)
    declared = declared_releases(opening.client)
    noised = plan_for(dp, declared, opening.planned(), spread=sharers, opens=True)
    counts = count(opening, noised)
    n, by_class = counts.n, counts.by_class
    rows = NoisedCount(n, noised.deviation("tally", "n", declared["tally"]["n"], 1, clients))
    ledger.add(Counted(rows.value, rows.deviation))
    ledger.add(Note(f"The table has {rows.describe('rows')}."))
    check_delta(dp, rows, ledger)
    rate = min(1.0, method.batch * clients / n)
    spent = sum(release.share for release in opening.planned())
    sampled = replace(method, private=Sampling(round(n), schema.n_features, rate, dp.simulate, spent))
    plan = plan_for(dp, declared_releases(sampled.client), sampled.planned(), spread=sharers)
    if by_class is not None:
        task, array = "count_classes", "rows"
        deviation = noised.deviation(task, array, declared[task][array], classes, clients)
        by_class = np.maximum(by_class, _BEYOND_NOISE * deviation)
    return PrivateMethod(sampled, plan, round(n), by_class)
