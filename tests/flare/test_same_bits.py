"""Every algorithm gives on a real federation (processes, mutual TLS) what it gives in one process, to the bit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "conformance")]

from table import TABLE, hospitals, labelled, labelled_views  # noqa: E402
from world import MISCHIEF, carry_out, estimate, exchanges, federation, new_run  # noqa: E402

import fedspan  # noqa: E402
from fedspan import Secure, run  # noqa: E402
from fedspan.algorithms.deep_maxvar import DeepView  # noqa: E402
from fedspan.channel import Channel, delta, only, quantize  # noqa: E402
from fedspan.channel.recipe import recipes_of  # noqa: E402
from fedspan.deployment.opening import plain_fields  # noqa: E402
from fedspan.deployment.order import Order  # noqa: E402
from fedspan.engines import InProcess  # noqa: E402
from fedspan.ledger import Ledger  # noqa: E402

SEED = 5
# Noise of a deployed site comes from its operating system, so no two runs of these are alike: see test_rules.py.
NOISED = {name for name, row in TABLE.items() if row.privacy}
THREE_BITS = Channel(*(only([name], delta(quantize(3))) for name in "YZ"))
CHANNELS = {"ssi": THREE_BITS, "fedpower": THREE_BITS}
SUMS = ("ssi", "krylov", "krylov rounded", "gram scaled", "faps", "ssca", "vertical ssca", "personal auto, sums")


def five_views(width: int | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    common = rng.normal(size=(40, 2))
    widths = {"ada": 6, "bo": 4, "cy": 5, "dee": 4, "eve": 3}
    mixed = {name: common @ rng.normal(size=(2, width or n)) for name, n in widths.items()}
    return {name: X + 0.3 * rng.normal(size=X.shape) + 1.0 for name, X in mixed.items()}


def deep() -> dict[str, Any]:
    sys.path.insert(0, str(MISCHIEF))
    from site_networks import network

    return {name: DeepView(X, network) for name, X in five_views(3).items()}


TABLES: dict[str, Callable[[], Mapping[str, Any]]] = {
    "hospitals": hospitals, "views": five_views, "deep": deep, "labelled": labelled, "labelled_views": labelled_views,
}  # fmt: skip


def table_of(name: str) -> str:
    needs = TABLE[name].server.client.needs
    if needs == "labelled":
        return "labelled_views" if "vertical" in name else "labelled"
    return {"rows": "hospitals", "entities": "views", "network": "deep"}[needs]


def order_for(name: str, secure: bool = False) -> Order:
    row, table = TABLE[name], table_of(name)
    channel = CHANNELS.get(name, Channel()) if not secure else Channel()
    return Order(
        new_run(),
        algorithm=type(row.server).__name__,
        fields=plain_fields(row.server),
        channel=recipes_of(channel),
        rounds=row.rounds,
        seed=SEED,
        table={"name": table},
        parameters={"labels": [0, 1]} if table.startswith("labelled") else {},
        secure={"enabled": secure},
    )


def arguments(table: str) -> tuple[Any, ...]:
    """What `fit` is given for the same data in one process."""
    data = TABLES[table]()
    if table == "labelled":
        return {name: X for name, (X, _) in data.items()}, {name: y for name, (_, y) in data.items()}
    if table == "labelled_views":
        return {name: X for name, (X, _) in data.items()}, next(iter(data.values()))[1]
    return (data,)


# Estimator, its parameters, the table, and what it has learned.
ESTIMATORS: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...]]] = {
    "pca": ("FederatedPCA", {"n_components": 3, "scale": True}, "hospitals", ("components_", "explained_variance_")),
    "svd": ("FederatedSVD", {"n_components": 2, "solver": "krylov", "bits": "auto"}, "hospitals", ("components_",)),
    "personalized": ("PersonalizedPCA", {"n_components": 2}, "hospitals", ("components_", "shared_components_")),
    "gcca": ("FederatedGCCA", {"n_components": 2}, "views", ("common_", "correlations_")),
    "classifier": (
        "FederatedClassifier", {"hidden": 3, "batch_size": 2, "rounds": 4, "class_weight": "balanced"}, "labelled",
        ("coef_",),
    ),
    "vertical-classifier": (
        "VerticalFederatedClassifier", {"hidden": 3, "batch_size": 10, "rounds": 4}, "labelled_views", ("coef_",),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Path]:
    """One job on five sites carries out an order for every algorithm; some of them once more with secure sums."""
    folder = tmp_path_factory.mktemp("same-bits")
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for name, make in TABLES.items():
        for site, data in make().items():
            own = tables.setdefault(site, {}).setdefault(name, {})
            path = folder / f"{name}-{site}.{'npz' if name.startswith('labelled') else 'npy'}"
            if name.startswith("labelled"):
                np.savez(path, X=data[0], y=data[1])
                own["label"] = "y"
            else:
                np.save(path, data.X if isinstance(data, DeepView) else data)
            own["path"] = str(path)
            if name == "deep":
                own["network"] = "site_networks:network"
    asked = {(name, False): order_for(name) for name in TABLE if name not in NOISED}
    asked |= {(name, True): order_for(name, secure=True) for name in SUMS}
    for task, (estimator, parameters, table, _) in ESTIMATORS.items():
        more = {**parameters, "random_state": SEED}
        asked[task, False] = Order(new_run(), estimator, more, table={"name": table}, secure={"enabled": False})
    asked["noised", True] = Order(
        new_run(), "FederatedPCA", {"n_components": 2, "random_state": SEED}, table={"name": "hospitals"},
        privacy={"epsilon": 5.0, "delta": 1e-4, "row_norm": 30.0}, secure={"enabled": True},
    )  # fmt: skip
    made = federation(folder, tables, secure=False)
    with made:
        outcomes = carry_out(made, list(asked.values()), folder / "out")
    failed = {key: outcomes[order.run] for key, order in asked.items() if not outcomes[order.run]["done"]}
    assert not failed
    return {key: folder / "out" / order.run for key, order in asked.items()}


@pytest.mark.parametrize(
    ("name", "secure"),
    [*((name, False) for name in TABLE if name not in NOISED), *((name, True) for name in SUMS)],
)
def test_a_federation_gives_the_same_bits(answers: dict[tuple[str, bool], Path], name: str, secure: bool) -> None:
    row, place = TABLE[name], answers[name, secure]
    here = run(
        row.server, InProcess(TABLES[table_of(name)](), threads=1), rounds=row.rounds, seed=SEED,
        channel=Channel() if secure else CHANNELS.get(name), secure=Secure() if secure else None,
    )  # fmt: skip
    np.testing.assert_array_equal(estimate(place), row.server.estimate(here.state))
    there = Ledger.read(place / "ledger.jsonl")
    assert [(e.round, e.task, e.clients) for e in exchanges(there)] == [
        (e.round, e.task, e.clients) for e in exchanges(here.ledger)
    ]
    assert (there.bytes_up, there.bytes_down) == (here.ledger.bytes_up, here.ledger.bytes_down)


@pytest.mark.parametrize("task", ESTIMATORS)
def test_an_estimator_learns_the_same_on_a_federation(answers: dict[tuple[str, bool], Path], task: str) -> None:
    name, parameters, table, learned = ESTIMATORS[task]
    kind = getattr(fedspan, name)
    there = kind.load(answers[task, False] / "model.safetensors")
    here = kind(**parameters, random_state=SEED).fit(*arguments(table))
    for attribute in learned:
        np.testing.assert_array_equal(getattr(there, attribute), getattr(here, attribute))


def test_noise_of_a_federation_is_not_the_seeds(answers: dict[tuple[str, bool], Path]) -> None:
    """It comes from each site's operating system; what leaves is noised and masked, and the ledger says how much."""
    ledger = Ledger.read(answers["noised", True] / "ledger.jsonl")
    assert all(event.noise > 0 and event.secure for event in exchanges(ledger))
    assert ledger.epsilon(1e-4) <= 5.0 * (1 + 1e-6)
    there = fedspan.FederatedPCA.load(answers["noised", True] / "model.safetensors")
    dp = fedspan.RowDP(5.0, 1e-4, 30.0, simulate=True)
    here = fedspan.FederatedPCA(2, privacy=dp, secure=True, random_state=SEED).fit(hospitals())
    assert there.components_.shape == here.components_.shape
    assert not np.array_equal(there.components_, here.components_)
