"""Orders for a federation of five sites: every algorithm, some with secure sums, and every estimator.

tests/deployment carries them out over loopback, tests/flare on a real federation. Both must learn what one process
learns.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TESTS = Path(__file__).resolve().parents[1]
MISCHIEF = TESTS / "flare" / "mischief"
for _folder in (TESTS / "conformance", MISCHIEF):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))

from site_networks import network  # noqa: E402
from table import TABLE, hospitals, labelled, labelled_views, measured  # noqa: E402

import fedspan  # noqa: E402
from fedspan import Secure, run  # noqa: E402
from fedspan.algorithms import VerticalLinear  # noqa: E402
from fedspan.algorithms.gcca.deep import DeepView  # noqa: E402
from fedspan.channel import Channel, delta, only, quantize  # noqa: E402
from fedspan.channel.recipe import recipes_of  # noqa: E402
from fedspan.core.checkpoint import load_tree  # noqa: E402
from fedspan.core.ledger import Exchange, Ledger  # noqa: E402
from fedspan.core.run import Result  # noqa: E402
from fedspan.deployment.kit import policy_file  # noqa: E402
from fedspan.deployment.server_job import RunRequest  # noqa: E402
from fedspan.engines import InProcess  # noqa: E402
from fedspan.engines.start import plain_fields  # noqa: E402

SEED = 5
# Noise of a deployed site comes from its operating system, so no two runs of these are alike: see test_rules.py.
NOISED = {name for name, row in TABLE.items() if row.privacy}
# Sites offer jobs neither groups of rows nor targets for views: these run in one process only.
IN_PROCESS = {name for name in TABLE if name.endswith("limits on parts") or type(TABLE[name].server) is VerticalLinear}
PLAIN = [name for name in TABLE if name not in NOISED | IN_PROCESS]
SUMS = ["ssi", "krylov", "krylov rounded", "gram scaled", "faps", "ssca", "vertical ssca", "personal auto, sums"]
VERIFIED = [name for name in PLAIN if not isinstance(TABLE[name].server.replay(), str)]
Sums = bool | Literal["verified"]  # secure sums, or verified ones
RUNS: list[tuple[str, Sums]] = [  # algorithm, with which sums
    *((name, False) for name in PLAIN),
    *((name, True) for name in SUMS),
    *((name, "verified") for name in VERIFIED),
]
THREE_BITS = Channel(*(only([name], delta(quantize(3))) for name in "YZ"))
CHANNELS = {"ssi": THREE_BITS, "fedpower": THREE_BITS}

# Estimator, its parameters, the table, and what it has learned.
ESTIMATORS: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...]]] = {
    "pca": ("FederatedPCA", {"n_components": 3, "scale": True}, "hospitals", ("components_", "explained_variance_")),
    "svd": ("FederatedSVD", {"n_components": 2, "solver": "krylov", "bits": "auto"}, "hospitals", ("components_",)),
    "personalized": ("PersonalizedPCA", {"n_components": 2}, "hospitals", ("components_", "shared_components_")),
    "gcca": ("FederatedGCCA", {"n_components": 2}, "views", ("common_", "correlations_")),
    "classifier": (
        "FederatedClassifier",
        {"hidden": 3, "batch_size": 2, "rounds": 4},
        "labelled",
        ("coef_",),
    ),
    "classifier, balanced": (
        "FederatedClassifier",
        {"hidden": 3, "batch_size": 2, "rounds": 4, "class_weight": "balanced"},
        "labelled",
        ("coef_",),
    ),
    "classifier, small table": ("FederatedClassifier", {"batch_size": 2, "rounds": 4}, "labelled", ("coef_",)),
    "classifier, linear": ("FederatedClassifier", {"hidden": 0}, "labelled", ("coef_", "covariance_")),
    "classifier, limited": (
        "FederatedClassifier",
        {"hidden": 3, "batch_size": 2, "rounds": 4, "limits": [{"on": "class", "class": 1, "at_most": 0.6}]},
        "labelled",
        ("coef_",),
    ),
    "regressor": ("FederatedRegressor", {"loss": "poisson"}, "measured", ("coef_", "covariance_")),
    "vertical-pca": ("VerticalPCA", {"n_components": 2}, "views", ("scores_", "explained_variance_")),
    "deep-gcca": (
        "DeepFederatedGCCA",
        {"n_components": 2, "bits": 3, "rounds": 3, "batch_size": 10},
        "deep",
        ("common_", "mean_", "gram_"),
    ),
    "vertical-classifier": (
        "VerticalFederatedClassifier",
        {"hidden": 3, "batch_size": 10, "rounds": 4},
        "labelled_views",
        ("coef_",),
    ),
    "vertical-classifier, balanced": (
        "VerticalFederatedClassifier",
        {"hidden": 3, "batch_size": 10, "rounds": 4, "class_weight": "balanced"},
        "labelled_views",
        ("coef_",),
    ),
}


def five_views(width: int | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    common = rng.normal(size=(40, 2))
    widths = {"ada": 6, "bo": 4, "cy": 5, "dee": 4, "eve": 3}
    mixed = {name: common @ rng.normal(size=(2, width or n)) for name, n in widths.items()}
    return {name: X + 0.3 * rng.normal(size=X.shape) + 1.0 for name, X in mixed.items()}


def deep_views() -> dict[str, Any]:
    return {name: DeepView(X, network) for name, X in five_views(3).items()}


TABLES: dict[str, Callable[[], Mapping[str, Any]]] = {
    "hospitals": hospitals,
    "views": five_views,
    "deep": deep_views,
    "labelled": labelled,
    "labelled_views": labelled_views,
    "measured": measured,
}


FIVE = tuple(hospitals())
THREE = ("east", "north", "south")  # they have the tables of the first three


def data_of(table: str, sites: tuple[str, ...]) -> dict[str, Any]:
    """A table of every site."""
    return dict(zip(sites, TABLES[table]().values(), strict=len(sites) == len(FIVE)))


def write_tables(folder: Path, sites: tuple[str, ...] = FIVE) -> dict[str, dict[str, dict[str, Any]]]:
    """All tables as files, and what each site's fedspan.toml says of them: site → table → keys.

    Not as .npy: sites in one process open their files at once, and then CPython 3.11 may fail to parse the header
    of an .npy file ("AST constructor recursion depth mismatch").
    """
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for name in TABLES:
        for site, data in data_of(name, sites).items():
            keys = tables.setdefault(site, {}).setdefault(name, {})
            keys["path"] = str(folder / f"{name}-{site}.parquet")
            rows, labels = data if name.startswith(("labelled", "measured")) else (data, None)
            rows = rows.X if isinstance(rows, DeepView) else rows
            columns = {f"x{i}": column for i, column in enumerate(rows.T)}
            keys |= {"columns": list(columns), "rows": len(rows)}
            if name == "measured":
                keys |= {"target": "y"}
                columns["y"] = labels
            elif labels is not None:
                keys |= {"label": "y", "classes": [0, 1]}
                columns["y"] = labels
            if name == "deep":
                keys["network"] = "site_networks:network"
            pq.write_table(pa.table(columns), keys["path"])
    return tables


def write_site(folder: Path, tables: Mapping[str, Mapping[str, Any]], **rules: Any) -> Path:
    """A site's folder: what `fedspan site init` leaves in a kit, without FLARE's files."""
    (folder / "local").mkdir(parents=True, exist_ok=True)
    (folder / "local" / "fedspan.toml").write_text(policy_file(tables, **rules), encoding="utf-8")
    return folder


def new_run() -> str:
    return secrets.token_hex(16)


def table_of(name: str) -> str:
    """Which table an algorithm of the conformance table learns from."""
    needs = TABLE[name].server.client.needs
    if needs == "labelled":
        return "labelled_views" if "vertical" in name else "labelled"
    return {"rows": "hospitals", "entities": "views", "network": "deep", "target": "measured"}[needs]


def order_for(name: str, secure: Sums = False) -> RunRequest:
    """An order for a row of the conformance table."""
    row, table = TABLE[name], table_of(name)
    channel = CHANNELS.get(name, Channel()) if not secure else Channel()
    return RunRequest(
        new_run(),
        algorithm=type(row.server).__name__,
        fields=plain_fields(row.server),
        channel=recipes_of(channel),
        rounds=row.rounds,
        seed=SEED,
        table={"name": table},
        parameters={"labels": [0, 1]} if table.startswith("labelled") else {},
        secure={"enabled": bool(secure), "verified": secure == "verified"},
        timeout=300.0,  # whatever else this machine does
    )


def order_for_estimator(task: str) -> RunRequest:
    estimator, parameters, table, _ = ESTIMATORS[task]
    options = {**parameters, "random_state": SEED}
    return RunRequest(new_run(), estimator, options, table={"name": table}, secure={"enabled": False}, timeout=300.0)


def order_with_noise() -> RunRequest:
    return RunRequest(
        new_run(),
        "FederatedPCA",
        {"n_components": 2, "random_state": SEED},
        table={"name": "hospitals"},
        privacy={"epsilon": 5.0, "delta": 1e-4, "row_norm": 30.0},
        secure={"enabled": True},
        timeout=300.0,
    )


def arguments(table: str, sites: tuple[str, ...]) -> tuple[Any, ...]:
    """What `fit` is given for the same data in one process."""
    data = data_of(table, sites)
    if table in ("labelled", "measured"):
        return {name: X for name, (X, _) in data.items()}, {name: y for name, (_, y) in data.items()}
    if table == "labelled_views":
        return {name: X for name, (X, _) in data.items()}, next(iter(data.values()))[1]
    if table == "deep":
        return ({name: view.X for name, view in data.items()},)
    return (data,)


def estimate(place: Path) -> np.ndarray:
    return np.asarray(load_tree(place / "model.safetensors", "model")["estimate"])


def exchanges(ledger: Ledger) -> list[Exchange]:
    return [event for event in ledger.events if isinstance(event, Exchange)]


@cache
def run_here(name: str, secure: Sums, sites: tuple[str, ...]) -> Result[Any]:
    """The same run in one process."""
    return run(
        TABLE[name].server,
        InProcess(data_of(table_of(name), sites), threads=1),
        rounds=TABLE[name].rounds,
        seed=SEED,
        channel=Channel() if secure else CHANNELS.get(name),
        secure=Secure(verified=secure == "verified") if secure else None,
    )


def assert_same_estimate(place: Path, name: str, secure: Sums, sites: tuple[str, ...] = FIVE) -> None:
    here = run_here(name, secure, sites)
    np.testing.assert_array_equal(estimate(place), TABLE[name].server.estimate(here.state))


def assert_same_as_in_one_process(place: Path, name: str, secure: Sums, sites: tuple[str, ...] = FIVE) -> None:
    """The same bits learned, the same questions asked of the same clients, and the same bytes sent."""
    assert_same_estimate(place, name, secure, sites)
    here, there = run_here(name, secure, sites).ledger, Ledger.read(place / "ledger.jsonl")
    assert [(e.round, e.task, e.clients) for e in exchanges(there)] == [
        (e.round, e.task, e.clients) for e in exchanges(here)
    ]
    first = 1 if secure == "verified" else 0  # with the keys go certificates, and those of a FLARE kit are longer
    for one, other in zip(exchanges(there)[first:], exchanges(here)[first:], strict=True):
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)


def assert_same_as_fitted_here(place: Path, task: str, sites: tuple[str, ...] = FIVE) -> None:
    name, parameters, table, learned = ESTIMATORS[task]
    kind = getattr(fedspan, name)
    there = kind.load(place / "model.safetensors")
    if table == "deep":  # at the sites, their own files name the networks
        parameters = {**parameters, "networks": dict.fromkeys(sites, network)}
    here = kind(**parameters, random_state=SEED).fit(*arguments(table, sites))
    for attribute in learned:
        np.testing.assert_array_equal(getattr(there, attribute), getattr(here, attribute))


def assert_noised(place: Path, sites: tuple[str, ...] = FIVE) -> None:
    """Noise comes from each site's operating system, not from the seed; the ledger says how much."""
    ledger = Ledger.read(place / "ledger.jsonl")
    assert all(event.noise > 0 and event.secure for event in exchanges(ledger))
    assert ledger.epsilon(1e-4) <= 5.0 * (1 + 1e-6)
    there = fedspan.FederatedPCA.load(place / "model.safetensors")
    dp = fedspan.RowDP(5.0, 1e-4, 30.0, simulate=True)
    here = fedspan.FederatedPCA(2, privacy=dp, secure=True, random_state=SEED).fit(data_of("hospitals", sites))
    assert there.components_.shape == here.components_.shape
    assert not np.array_equal(there.components_, here.components_)
