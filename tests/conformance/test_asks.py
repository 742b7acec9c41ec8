"""What an algorithm says that it asks is exactly what it asks, for every option that changes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from spied import Heard, Spy
from table import BIASED, NET, SIMULATED, TABLE, deep_views, hospitals, labelled, labelled_views, measured, views

from fedspan import algorithms as alg
from fedspan.algorithms.agree_columns import AgreeOnColumns, Columns, SurveyColumns
from fedspan.algorithms.gcca.entities import Entities
from fedspan.algorithms.learning import EarlierModel
from fedspan.algorithms.learning.count_samples import CountClasses, CountSamples
from fedspan.algorithms.learning.scaling import Scaling
from fedspan.algorithms.matching.compare_order import CompareOrder
from fedspan.algorithms.matching.match_by_tags import IdList
from fedspan.algorithms.matching.match_digests import MatchDigests
from fedspan.algorithms.matching.match_ring import MatchRing
from fedspan.algorithms.registry import ALGORITHMS
from fedspan.algorithms.spectral.private_bounds import Census, PrivateMean
from fedspan.core.protocol import Array, Server, declared_releases, task, tasks_of
from fedspan.core.run import run
from fedspan.engines.questions import CourseCheck
from fedspan.errors import InputError, ProtocolError
from fedspan.privacy.plan import plan_for


def views_with_ids() -> Any:
    return {name: Entities(X, np.arange(40)) for name, X in views().items()}


def ids_that_differ() -> Any:
    """The first view has its last two rows in another order, so the clients are asked for the rows' own digests."""
    ids = np.arange(40)
    swapped = np.r_[ids[:-2], ids[-1], ids[-2]]
    return {name: Entities(X, swapped if name == "ada" else ids) for name, X in views().items()}


def deep_ids_that_differ() -> Any:
    ids = np.arange(40)
    return {name: replace(view, ids=ids[::-1] if name == "ada" else ids) for name, view in deep_views().items()}


def overlapping_ids() -> Any:
    return {name: IdList(range(start, start + 20), workers=1) for start, name in enumerate(("ada", "bo", "cy"))}


def unlike_hospitals() -> Any:
    """Clients with components of their own: the best λ is not infinite, so that methods iterate."""
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=(30, 6)) * rng.permutation([9, 5, 1, 1, 1, 1]) for name in ("ada", "bo", "cy", "dee")}


def with_held_out() -> Any:
    return {name: Entities(X[:30], held_out=X[30:]) for name, X in views().items()}


def labels_apart() -> Any:
    """Two classes that are never at the same client: local steps lead apart."""
    rng = np.random.default_rng(5)
    names = ("ada", "bo", "cy", "dee")
    return {name: (rng.normal(size=(40, 3)), np.full(40, i % 2)) for i, name in enumerate(names)}


@dataclass(frozen=True)
class Cabinet:
    """A table with a column of numbers and one of categories."""

    X: Array

    def columns(self) -> Columns:
        return Columns(2, ("dose", "sex"))

    def words(self, columns: list[str]) -> dict[str, list[str]]:
        return {column: ["f", "m"] for column in columns}

    def sums(self) -> tuple[Array, Array]:
        return np.ones(3), np.full(3, 2)


def cabinets() -> Any:
    return {"north": Cabinet(np.eye(2)), "south": Cabinet(np.eye(2))}


# (an algorithm, the clients of its runs: more than one where a task is asked only if something is wrong, rounds)
CASES: list[tuple[Server[Any], tuple[Callable[[], Any], ...], int]] = []


def case(server: Server[Any], *clients: Callable[[], Any], rounds: int = 6) -> None:
    CASES.append((server, clients or (hospitals,), rounds))


BOTH = (False, True)
ONE_ROUND = (alg.Gram, alg.Uda, alg.Wda, alg.DrSvd)
ITERATED = (alg.Ssi, alg.Krylov, alg.Davidson, alg.LocalPower, alg.FedPower, alg.PaperNoise)
for center, scale in product(BOTH, BOTH):
    for kind in (*ONE_ROUND, *ITERATED):
        case(kind(k=2, center=center, scale=scale))
    case(alg.Faps(k=2, tol=1e-6, center=center, scale=scale), rounds=400)  # until it asks for the variances
for kind in (alg.Krylov, alg.Davidson):
    case(kind(k=2, tol=1e-5, rounded=True))
for center, scale, rounded, width in product(BOTH, BOTH, BOTH, ("auto", 2, 7)):
    case(alg.Krylov(k=2, tol=1e-5, center=center, scale=scale, rounded=rounded, width=width))
case(alg.Krylov(k=2, width="auto", prior=alg.Prior(np.eye(12)[:, :2], np.ones(2))))  # a prior takes its place
case(alg.LocalPower(k=2, q=1))
case(alg.Faps(k=2, tol=1e-6, accelerate=True), rounds=100)
WEAK_NOISE = partial(alg.PaperNoise, epsilon1=1e4, epsilon2=1e4)  # so that it comes to its end
for kind, align, p in product((alg.FedPower, WEAK_NOISE), ("opt", "sign", "none"), (1, 3)):
    case(kind(k=2, align=align, p=p))
    case(kind(k=2, align=align, p=p, decay=False, tol=0.0))
    case(kind(k=2, align=align, p=p, decay=False, tol=0.9))  # comes no further at once, and closes
for scheme, part in product((1, 2), ({"count": 2}, {"fraction": 0.5})):
    case(alg.FedPower(k=2, scheme=scheme, **part))
for center in BOTH:
    for kind, counted in product((alg.NoisyGram, alg.NoisyRefine, partial(alg.NoisyPower, d=12)), BOTH):
        known = alg.Known(100.0) if counted else None
        case(kind(k=2, center=center, counted=counted, prior=known))
        case(kind(k=2, center=center, counted=True, located=True, prior=alg.Known(100.0, (0.0,) * 12)))
for search in BOTH:
    case(Census(search))
    case(PrivateMean(search, 100.0))
for classes in (0, 2):
    case(CountSamples(classes), labelled)
case(CountClasses(2), labelled)

for patience, data in ((0, views), (2, with_held_out)):
    for kind, local, start in product(
        (alg.AltMaxVar, alg.CuteMaxVar), ("exact", "gradient", "sgd"), ("random", "mvlsa")
    ):
        server = kind(k=2, tol=0, local=local, batch=10, start=start, patience=patience, last=6)
        case(server, data, ids_that_differ)
    for kind, rounded in product((alg.MaxVarKrylov, alg.MaxVarDavidson), BOTH):
        case(kind(k=2, tol=1e-6, rounded=rounded, patience=patience, last=6), data, ids_that_differ)
case(alg.Mvlsa(k=2), views, ids_that_differ)
case(CompareOrder(), views_with_ids, ids_that_differ)
for kind, how in product((MatchRing, MatchDigests), ("intersection", "union")):
    case(kind(parties=3, how=how), overlapping_ids)
case(alg.DeepMaxVar(k=2, steps=1), deep_views, deep_ids_that_differ, rounds=1)

for kind, share, collect in product(
    (alg.PersonalAuto, alg.PersonalEigen, alg.PersonalPaper, alg.PerPca), ("eigenpairs", "sums"), BOTH
):
    more: dict[str, Any] = {} if kind is alg.PersonalAuto else {"rounds": 2}
    for shrinkage in ("auto", 3.0, np.inf):
        case(kind(k=2, share=share, collect=collect, shrinkage=shrinkage, **more), unlike_hospitals)
    for center, scale in product(("client", "global", "none"), BOTH):
        case(kind(k=2, share=share, collect=collect, center=center, scale=scale, **more), unlike_hospitals)
    case(kind(k=2, share=share, collect=collect, fraction=0.7, clip=5.0, **more), unlike_hospitals)
    case(kind(k=2, share=share, collect=collect, count=3, start="random", **more), unlike_hospitals)

KNOWN = EarlierModel(np.zeros(0), Scaling(np.zeros(12), np.ones(12), 5.0))
PRIVATE = alg.Sampling(111, 12, 0.2, simulate=True)
for kind in (alg.Ssca, alg.SscaMomentum, alg.FedSgd):
    case(kind(NET, batch=2, rounds=3), labelled)
    case(kind(NET, batch=2, rounds=3, clip=0.5), labelled)
    case(kind(NET, batch=4, rounds=3, private=PRIVATE), labelled)
    case(kind(NET, batch=2, rounds=3, standardize=True), labelled)
    case(kind(NET, batch=2, rounds=3, standardize=True, prior=KNOWN), labelled)
    case(kind(NET, batch=4, rounds=3, private=PRIVATE, standardize=True, prior=KNOWN), labelled)
for standardize in BOTH:
    case(alg.FedAvg(NET, batch=2, rounds=3, steps=2, standardize=standardize), labelled)
for drift, validation, calibrate in product(("average", "correct"), (0.0, 0.1), BOTH):
    server = alg.LocalSsca(NET, batch=20, rounds=3, steps=2, drift=drift, validation=validation, calibrate=calibrate)
    case(server, labelled)
case(alg.LocalSsca(BIASED, batch=20, rounds=3, steps=10, standardize=True), labelled, labels_apart)
for validation, exchange in product((0.0, 0.1), ("each", "sum")):
    guarded = alg.VerticalGuarded(NET, batch=20, rounds=3, every=2, validation=validation, exchange=exchange)
    case(guarded, labelled_views)
    case(replace(guarded, calibrate=False, standardize=True), labelled_views)
limited = alg.Ssca(NET, batch=2, rounds=6, objective="norm", limits=(alg.Limit(0.6),))
for server in (limited, replace(limited, paper=True), replace(limited, closing=0)):
    case(server, labelled)
for solver, robust in product(("newton", "lbfgs"), BOTH):
    case(alg.LogisticNewton(l2=0.01, tol=1e-6, solver=solver, robust=robust), labelled, rounds=60)
    for loss in ("squared", "poisson", "huber"):
        case(alg.RegressionNewton(l2=0.01, tol=1e-6, loss=loss, solver=solver, robust=robust), measured, rounds=60)
for exchange in ("each", "sum"):
    case(alg.VerticalSgd(NET, batch=10, rounds=3, exchange=exchange), labelled_views)
    case(alg.VerticalSgd(NET, batch=10, rounds=3, exchange=exchange, standardize=True), labelled_views)
    case(alg.VerticalSgd(NET, batch=10, rounds=3, exchange=exchange, prior=KNOWN), labelled_views)
    vertical = alg.VerticalSsca(NET, batch=10, rounds=6, exchange=exchange)
    case(vertical, labelled_views)
    case(replace(vertical, objective="norm", limits=(alg.Limit(0.6),)), labelled_views)

for unsettled in ((), ("sex",)):
    case(SurveyColumns(unsettled), cabinets)
case(AgreeOnColumns(2, ("dose", "sex"), (("sex", ("f", "m")),)), cabinets)


# An algorithm without options that change its tasks needs no case of its own: its row in table.py is one.
for row in TABLE.values():
    if type(row.server) not in {type(server) for server, _, _ in CASES}:
        case(row.server, row.clients, rounds=row.rounds)


def listen(server: Server[Any], clients: Any, rounds: int) -> list[Heard]:
    """What a run really asked for, also if it ended with a refusal."""
    private = bool(server.planned())
    plan = plan_for(SIMULATED, declared_releases(server.client), server.planned()) if private else None
    engine = Spy(clients, threads=1)
    try:
        run(server, engine, rounds=rounds, seed=1, privacy=plan)
    except InputError as error:
        assert "rows differ between clients" in str(error)  # noqa: PT017 - of all refusals only this one is meant
    return engine.heard


# How many ways there are depends on the rows and on how a search goes; the bound is for the worst.
LOOSE = {"losses", "take", "forward", "head", "backward", "backward_in_place"}


def check_course(server: Server[Any], runs: list[list[Heard]]) -> None:
    """Every client's questions are in the course of the algorithm, and the course has no room for more."""
    course, most = server.course(), Counter[tuple[bool, str]]()
    for heard in runs:
        for client in {one.client for one in heard}:
            check = CourseCheck(course)
            own = [one for one in heard if one.client == client]
            for one in own:
                check.check(one.round, one.task, one.arrays)
            for name, rounds in check.now.items():
                for round, ways in rounds.items():
                    most[round > 0, name] = max(most[round > 0, name], len(ways))
    for later, turns in ((False, course.opening), (True, course.round)):
        names = [task for turn in turns for task in turn.tasks]
        assert len(set(names)) == len(names)
        for turn in turns:
            for name in turn.tasks:
                assert name in LOOSE or most[later, name] == turn.most, name
    everywhere = {name for turn in (*course.opening, *course.round) for name in turn.tasks}
    assert everywhere == server.asks()
    assert everywhere.issuperset(name for turn in (*course.opening, *course.round) for name in turn.after)


@pytest.mark.parametrize(
    ("server", "clients", "rounds"),
    CASES,
    ids=[f"{type(server).__name__} {i}" for i, (server, _, _) in enumerate(CASES)],
)
def test_it_asks_exactly_what_it_says(server: Server[Any], clients: tuple[Callable[[], Any], ...], rounds: int) -> None:
    runs = [listen(server, make(), rounds) for make in clients]
    assert {one.task for heard in runs for one in heard} == server.asks()
    check_course(server, runs)


def test_every_algorithm_has_a_case() -> None:
    assert {type(server).__name__ for server, _, _ in CASES} == {*ALGORITHMS, "SurveyColumns"}


def test_a_server_that_does_not_list_its_tasks_cannot_be_made() -> None:
    @dataclass(frozen=True)
    class Vague(Server[None]):
        client = alg.Gram.client

    with pytest.raises(TypeError, match="asks"):
        Vague()  # type: ignore[abstract]


def test_a_task_that_releases_something_must_say_what_it_shows() -> None:
    def give(self: Any, state: Any, arrays: Any, rng: Any) -> Any: ...

    with pytest.raises(TypeError, match="shows"):
        task(releases={"x": None})  # type: ignore[call-arg]
    for words in ("", "  "):
        with pytest.raises(ProtocolError, match="'give' releases x, but does not say what that shows"):
            task(releases={"x": None}, shows=words)(give)
    task(releases={}, shows="")(give)


HOMES = {  # where the algorithms of each family live
    "matching": "matching.",
    "spectral": "spectral.",
    "gcca": "gcca.",
    "personalized": "personalized.",
    "learning": "learning.",
    "vertical": "learning.vertical",
    "columns": "agree_columns",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_names_its_family(name: str) -> None:
    kind = ALGORITHMS[name]
    assert kind.__module__.startswith(f"fedspan.algorithms.{HOMES[kind.family]}")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_where_a_class_lives_is_no_part_of_a_run(name: str) -> None:
    """Facts of a class are not fields, so that neither the repr nor a checkpoint changes when a module moves."""
    assert {"client", "State", "family"}.isdisjoint(field.name for field in fields(ALGORITHMS[name]))


def test_the_same_name_of_a_task_means_the_same_release_everywhere() -> None:
    """A report, a transcript and a site's budget know a task by its name alone."""
    meant: dict[str, tuple[str, frozenset[str]]] = {}
    for kind in ALGORITHMS.values():
        for name, declared in tasks_of(kind.client).items():
            its = (declared.shows, frozenset(declared.releases))
            assert meant.setdefault(name, its) == its, f"{name!r} of {kind.__name__} means something else elsewhere"


def test_every_task_says_what_it_shows_in_words() -> None:
    for kind in ALGORITHMS.values():
        for name, declared in tasks_of(kind.client).items():
            assert bool(declared.shows) == bool(declared.releases), f"{kind.__name__}.{name}"
            assert declared.shows == declared.shows.strip().rstrip(".")  # part of a sentence
