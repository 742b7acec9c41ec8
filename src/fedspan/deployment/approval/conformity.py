"""Whether a run that the server opens is the one that a researcher asked for and, where a site demands it, approved.

The server turns a request into the openings of one or several runs: the agreement on means, a count, then the method
itself. It could open anything else in their place. So the site compares each opening with the request by what decides
about what leaves: table and columns, protection, method, number of components, rows in a batch, rounds.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.algorithms.gcca.deep import DeepMaxVar
from fedspan.algorithms.learning.count_samples import CountClasses
from fedspan.algorithms.matching.compare_order import CompareOrder
from fedspan.algorithms.matching.match_digests import MatchDigests
from fedspan.algorithms.matching.match_ring import MatchRing
from fedspan.algorithms.registry import ALGORITHMS, MATCHINGS, OPENINGS
from fedspan.core.protocol import AnyServer
from fedspan.deployment.approval.signed_order import Order
from fedspan.deployment.run_request import LABELLED_ESTIMATORS, RunRequest
from fedspan.engines.start import StartMessage, plain_fields, preparation_from
from fedspan.errors import InputError, PolicyRefusal
from fedspan.estimators.catalogue import find_named_algorithms, find_round_limit

_PREPARING: tuple[type[AnyServer], ...] = (AgreeOnColumns, CompareOrder, CountClasses, *MATCHINGS, *OPENINGS)
_MATCHING = {"psi": MatchRing, "digest": MatchDigests}
# Fields of algorithms and the parameters of estimators that they come from, where these say it in plain words.
_NUMBERS = (("k", "n_components"), ("batch", "batch_size"), ("collect", "collect"), ("folds", "folds"))
_CHOICES = (
    *((name, name) for name in ("center", "scale", "standardize", "intercept", "robust", "loss", "exchange")),
    ("hide", "hide_scores"),
)
_ROUNDS_BESIDE = 2  # of a last exchange or a check, which some methods count as rounds


def check_follows(start: StartMessage, order: Order) -> None:
    """Refuse an opening that the signed order does not lead to."""
    request = order.find_request(start.run)
    _check_sites(start, order)
    _check_asked_table(start, request)
    _check_method(start, request)
    _check_sums(start, request)
    _check_noise(start, request)


def possible_algorithms(request: RunRequest) -> frozenset[str]:
    """The names, in small letters, of all algorithms that a request may come to."""
    return frozenset(name.lower() for name, kind in ALGORITHMS.items() if _may_run(kind, request))


def share_of_budget(start: StartMessage) -> float:
    """The part of the request's privacy budget that this part of the run may use."""
    return 0.0 if start.privacy is None else min(1.0, sum(release.share for release in start.algorithm.planned()))


def _refuse(what: str, opened: object, asked: object) -> PolicyRefusal:
    return PolicyRefusal(
        f"The run is not the one that was signed: {what} {asked!r} in the order, but {opened!r} in what the server "
        "opens."
    )


def _check_sites(start: StartMessage, order: Order) -> None:
    if tuple(sorted(start.clients)) != order.sites:
        raise _refuse("the sites are", ", ".join(sorted(start.clients)), ", ".join(order.sites))


def _check_asked_table(start: StartMessage, request: RunRequest) -> None:
    opened, asked = start.table.get("name") or "default", request.table.get("name") or "default"
    if opened != asked:
        raise _refuse("the table is", opened, asked)
    given, wanted = (preparation_from(table.get("preparation")) for table in (start.table, request.table))
    # Columns that the order leaves open are those of the site's file, in the order in which all sites have them.
    if wanted.columns is not None and given.columns != wanted.columns:
        raise _refuse("the columns are", given.columns, wanted.columns)
    for name in ("id", "label", "missing", "n_features", "group", "weight"):
        own, theirs = vars(given)[name], vars(wanted)[name]
        if theirs is not None and own != theirs:
            raise _refuse(f"{name} is", own, theirs)
    for column, value in wanted.fill.items():
        if given.fill.get(column) != value:
            raise _refuse(f"gaps in {column!r} are filled with", given.fill.get(column), value)


def _check_method(start: StartMessage, request: RunRequest) -> None:
    algorithm = start.algorithm
    if not _may_run(type(algorithm), request):
        asked = request.algorithm or f"{request.estimator} with {_describe_choice(request)}"
        raise _refuse("the method is", type(algorithm).__name__, asked)
    if request.algorithm is not None:
        if plain_fields(algorithm) != request.fields and type(algorithm).__name__ == request.algorithm:
            raise _refuse("the options are", plain_fields(algorithm), request.fields)
        if request.rounds < start.rounds:
            raise _refuse("the rounds are at most", start.rounds, request.rounds)
        return
    if isinstance(algorithm, _PREPARING):
        return
    check_asked_options(algorithm, request.parameters)
    limit = find_round_limit(str(request.estimator), request.parameters)
    studies = algorithm.family == "gcca" and not isinstance(algorithm, DeepMaxVar)  # which end by themselves
    if limit is not None and not studies and start.rounds > limit + _ROUNDS_BESIDE:
        raise _refuse("the rounds are at most", start.rounds, limit)


def check_asked_options(algorithm: AnyServer, parameters: Mapping[str, object]) -> None:
    """Compare what decides how much is told: components, batches, what is taken off the rows, what stays hidden."""
    own = vars(algorithm)
    for field, parameter in _NUMBERS:
        asked = parameters.get(parameter)
        if field in own and type(asked) in (int, bool) and own[field] != asked:
            raise _refuse(f"{parameter} is", own[field], asked)
    for field, parameter in _CHOICES:
        asked = parameters.get(parameter)
        if type(own.get(field)) is type(asked) and type(asked) in (bool, str) and own[field] != asked:
            raise _refuse(f"{parameter} is", own[field], asked)
    if parameters.get("validation") == 0 and own.get("validation"):
        raise _refuse("the share of rows that are held out is", own["validation"], 0)


def _check_sums(start: StartMessage, request: RunRequest) -> None:
    """Refuse less protection of sums than the order asks for, or than is usual where it says nothing."""
    if isinstance(start.algorithm, MATCHINGS):  # tags of ids cannot be added up
        return
    secure = request.choose_secure(len(start.clients))
    if secure is None:
        return
    if start.threshold is None:
        raise _refuse("secure sums are", False, True)
    flexible = bool(request.parameters.get("participation"))
    try:
        verified = not flexible and secure.is_verified(start.algorithm, len(start.clients), request.min_clients)
        least = 2 if verified or flexible else secure.threshold_for(len(start.clients), request.min_clients)
        groups = secure.partition(sorted(start.clients)) if verified else ()
    except InputError as error:
        raise PolicyRefusal(str(error)) from None
    if verified and not start.verified:
        raise _refuse("sums are verified:", False, True)
    if start.verified and verified and start.groups != groups:
        raise _refuse("the groups are", start.groups, groups)
    if start.threshold < least:
        raise _refuse("the sites in a sum are at least", start.threshold, least)


def _check_noise(start: StartMessage, request: RunRequest) -> None:
    asked, given = request.privacy, start.privacy
    if not asked or given is None:
        if asked:
            raise _refuse("there is noise for epsilon", None, asked.get("epsilon"))
        return  # more protection than was asked for does no harm
    for name in ("epsilon", "delta"):
        if not vars(given)[name] <= float(str(asked.get(name))) * (1 + 1e-9):
            raise _refuse(f"{name} is", vars(given)[name], asked.get(name))
    if asked.get("neighbours", "add-remove") != given.neighbours:
        raise _refuse("neighbours are", given.neighbours, asked.get("neighbours", "add-remove"))
    if given.simulate and not asked.get("simulate"):
        raise _refuse("the noise is simulated:", True, False)


def _may_run(kind: type[AnyServer], request: RunRequest) -> bool:
    """Whether a request can come to an algorithm, as its method or as what must be found out before it."""
    if request.algorithm is not None:
        return kind.__name__ == request.algorithm
    estimator, parameters = str(request.estimator), request.parameters
    if kind is AgreeOnColumns:
        return preparation_from(request.table.get("preparation")).needs_means
    if kind in MATCHINGS:
        return _MATCHING.get(request.match) is kind
    if kind is CompareOrder:
        return request.match == "order"
    if kind is CountClasses:
        return estimator in LABELLED_ESTIMATORS
    if kind in OPENINGS:
        return bool(request.privacy)
    named = _find_named(estimator, parameters)
    if named is not None and not request.privacy:
        return kind in named
    if estimator in ("VerticalPCA", "VerticalSVD"):
        return kind.__name__ == "ColumnsKrylov"
    if estimator == "DeepFederatedGCCA":
        return kind is DeepMaxVar
    if estimator == "FederatedRegressor":
        return kind.__name__ == "RegressionNewton"
    family = {
        "FederatedPCA": "spectral",
        "FederatedSVD": "spectral",
        "FederatedGCCA": "gcca",
        "PersonalizedPCA": "personalized",
        "FederatedClassifier": "learning",
        "VerticalFederatedClassifier": "vertical",
    }[estimator]
    return (
        kind.family == family and kind is not DeepMaxVar and kind.__name__ not in ("ColumnsKrylov", "RegressionNewton")
    )


def _find_named(estimator: str, parameters: Mapping[str, object]) -> tuple[type[AnyServer], ...] | None:
    """The algorithms of the solver or method that is asked for by its name; None if that is left open."""
    name = parameters.get("solver", parameters.get("method"))
    if not isinstance(name, str) or name in ("auto", "default"):
        return None
    return find_named_algorithms(estimator, name)


def _describe_choice(request: RunRequest) -> str:
    given = {key: request.parameters[key] for key in ("solver", "method") if key in request.parameters}
    return ", ".join(f"{key} {value!r}" for key, value in given.items()) or "the solver left open"
