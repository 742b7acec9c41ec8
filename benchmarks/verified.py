"""What verified sums cost: processor time of each site beyond plain secure sums, and bytes, on MNIST or the like.

    python benchmarks/verified.py [--write docs/secure-aggregation.md]

With `--write` it puts the costs into the page, and the table of what can be verified.

Five sites over the in-memory transport, one BLAS thread, k = 10. Time is that of the process, the least of some runs:
on a busy machine, whose caches others use, even that is longer. Both kinds of runs are measured in turn, and the
difference is divided by exchanges and sites. It holds what a site does (replay, tags, masks, its memory on disk) and
what the server does for it (sums and encodings).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from fedspan import Secure, run
from fedspan.algorithms import (
    AltMaxVar,
    ColumnsKrylov,
    CuteMaxVar,
    Davidson,
    DeepMaxVar,
    DrSvd,
    Faps,
    FedAvg,
    FedPower,
    FedSgd,
    Gram,
    KeptMaxVar,
    Krylov,
    LocalPower,
    LocalSsca,
    LogisticNewton,
    MaxVarKrylov,
    Mvlsa,
    NoisyGram,
    NoisyPower,
    NoisyRefine,
    PersonalAuto,
    PersonalEigen,
    RegressionNewton,
    Ssca,
    Ssi,
    StudyViews,
    Uda,
    VerticalGuarded,
    VerticalLinear,
    VerticalSgd,
    VerticalSsca,
)
from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.algorithms.gcca.sum_views import SumViews
from fedspan.algorithms.learning.count_samples import CountClasses, CountSamples
from fedspan.algorithms.matching.compare_order import CompareOrder
from fedspan.algorithms.matching.match_digests import MatchDigests
from fedspan.algorithms.matching.match_ring import MatchRing
from fedspan.algorithms.spectral.krylov import Prior
from fedspan.algorithms.spectral.parallel_analysis import ParallelAnalysis
from fedspan.algorithms.spectral.private_bounds import Census, PrivateMean
from fedspan.core.ledger import Exchange
from fedspan.core.run import Result
from fedspan.deployment.kit import policy_file
from fedspan.deployment.site_service import SiteService
from fedspan.engines import Loopback
from fedspan.engines.remote import RemoteEngine
from fedspan.numerics.swish import Swish
from fedspan.secure.identity import make_identities
from page import put

SITES, ROWS, REPEATS = 5, 10_000, 5
RUNS: dict[str, tuple[Any, int]] = {
    "krylov": (Krylov(k=10), 200),
    "krylov on a grid": (Krylov(k=10, rounded=True), 200),
    "ssi": (Ssi(k=10, tol=1e-4), 200),
    "gram": (Gram(k=10), 1),
    "ssca": (Ssca(model=Swish(128, 10), batch=0, rounds=10), 10),
}


KINDS: dict[str, Any] = {
    "gram": Gram(),
    "krylov": Krylov(),
    'krylov, `bits="auto"`': Krylov(rounded=True),
    "krylov, `tol` below 1e-12": Krylov(tol=0),
    "krylov from an earlier model": Krylov(prior=Prior(np.eye(3)[:, :2], np.ones(2))),
    "ssi": Ssi(),
    "localpower": LocalPower(),
    "faps": Faps(),
    "faps, accelerated": Faps(accelerate=True),
    "wide block with noise": NoisyPower(d=3),
    "one noisy Gram matrix": NoisyGram(),
    "noisy Gram matrix, refined": NoisyRefine(),
    'noisy, `RowDP(center="robust")`': NoisyGram(counted=True, located=True),
    "noised counts and lengths of rows": Census(),
    "noised mean of rows": PrivateMean(),
    "noised count of samples": CountSamples(),
    "count of samples by class": CountClasses(),
    "vertical PCA": ColumnsKrylov(),
    "vertical PCA, `hide`": ColumnsKrylov(hide=True),
    "vertical PCA and GCCA, new entities (in one process)": SumViews(),
    'parallel analysis, `n_components="auto"` (in one process)': ParallelAnalysis(),
    "davidson": Davidson(),
    "fedpower": FedPower(),
    "uda, wda": Uda(),
    "drsvd": DrSvd(),
    "GCCA: krylov": MaxVarKrylov(),
    "GCCA: altmaxvar": AltMaxVar(),
    "GCCA: cutemaxvar": CuteMaxVar(),
    "GCCA: mvlsa": Mvlsa(),
    "GCCA: krylov, weights stay": KeptMaxVar(),
    "GCCA: study of ridge and chance": StudyViews(),
    "deep GCCA": DeepMaxVar(),
    "deep GCCA, `alpha`": DeepMaxVar(alpha=1.0),
    "ssca": Ssca(),
    "fedsgd, fedsgdm": FedSgd(),
    "fedavg": FedAvg(),
    "newton, logistic": LogisticNewton(),
    "newton, regression": RegressionNewton(),
    "auto (local ssca)": LocalSsca(),
    "vertical auto, sums": VerticalGuarded(),
    "vertical ssca, sums": VerticalSsca(),
    "vertical sgd, sums": VerticalSgd(),
    "vertical newton": VerticalLinear(),
    'vertical, `exchange="each"`': VerticalSsca(exchange="each"),
    "personalized": PersonalAuto(),
    "personalized, sums, components stay": PersonalAuto(share="sums", collect=False),
    "personalized eigen, sums, components stay": PersonalEigen(share="sums", collect=False),
    "personalized, sums, components come back": PersonalAuto(share="sums"),
    "agreement on means": AgreeOnColumns(),
    "rows of each class": CountClasses(),
    "comparison of ids": CompareOrder(),
    "matching of ids, ring": MatchRing(),
    "matching of ids, digests": MatchDigests(),
}


def list_kinds() -> list[str]:
    """The rows of the table of what can be verified, by the word of each algorithm."""
    lines = ["| method | verified |", "|---|---|"]
    for name, server in KINDS.items():
        why = server.replay()
        lines.append(f"| {name} | {f'no: {why}' if isinstance(why, str) else 'yes'} |")
    return lines


def load_rows() -> tuple[np.ndarray, np.ndarray, str]:
    """Digits as rows of 784 numbers, and their classes; numbers with a like spectrum if they are not there."""
    folder = Path(os.environ.get("FEDSPAN_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if (folder / "mnist.npz").is_file():
        with np.load(folder / "mnist.npz") as file:
            return file["X"].reshape(-1, 784)[:ROWS] / 255.0, file["y"][:ROWS].astype(int), "MNIST"
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 784)) * (1 + np.arange(784)) ** -0.8
    return X @ np.linalg.qr(rng.normal(size=(784, 784)))[0], rng.integers(0, 10, ROWS), "synthetic"


def write_sites(folder: Path, X: np.ndarray, y: np.ndarray) -> Mapping[str, SiteService]:
    """A folder with data and a policy for each site."""
    names = [f"site{i}" for i in range(SITES)]
    identities = make_identities(names)
    services = {}
    for i, name in enumerate(names):
        (folder / name / "local").mkdir(parents=True)
        table = folder / f"{name}.parquet"
        _write_table(table, X[i::SITES], y[i::SITES])
        columns = [f"p{j}" for j in range(X.shape[1])]
        keys = {"path": str(table), "columns": columns, "label": "label", "classes": list(range(10))}
        text = policy_file({"default": keys})
        (folder / name / "local" / "fedspan.toml").write_text(text, encoding="utf-8")
        services[name] = SiteService(name, folder / name, identities[name])
    return services


def _write_table(path: Path, X: np.ndarray, y: np.ndarray) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({**{f"p{j}": X[:, j] for j in range(X.shape[1])}, "label": y}), path)


def measure(services: Mapping[str, SiteService], name: str, secure: Secure) -> tuple[Result[Any], float]:
    """A run, and the processor's seconds that it took."""
    algorithm, rounds = RUNS[name]
    engine = RemoteEngine(Loopback(services), list(services), os.urandom(16).hex(), timeout=600.0)
    if isinstance(algorithm, Ssca):
        engine.tables = {site: _tell_labels() for site in services}
    started = time.process_time()
    result = run(algorithm, engine, rounds=rounds, seed=0, secure=secure)
    return result, time.process_time() - started


def _tell_labels() -> Any:
    from fedspan.data.remote_tables import RemoteTable

    return RemoteTable(0, told={"labels": list(range(10))})


def measure_all() -> list[str]:
    """The rows of the table of costs."""
    X, y, what = load_rows()
    lines = [
        f"| {what}, k = 10, {SITES} sites | exchanges | secure sums | more | bytes down | bytes up | same bits |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        services = write_sites(Path(folder), X, y)
        for name, (algorithm, _) in RUNS.items():
            measure(services, name, Secure())  # opens the tables
            kinds = Secure(), Secure(verified=True)
            pairs = [[measure(services, name, secure) for secure in kinds] for _ in range(REPEATS)]
            one, two = (result for result, _ in pairs[0])
            exchanges = sum(isinstance(event, Exchange) for event in one.ledger.events)
            base, more = (min(seconds for _, seconds in runs) for runs in zip(*pairs, strict=True))
            each = 1e3 / (exchanges * SITES)
            same = np.array_equal(algorithm.estimate(one.state), algorithm.estimate(two.state))
            down, up = two.ledger.bytes_down / one.ledger.bytes_down, two.ledger.bytes_up / one.ledger.bytes_up
            lines.append(
                f"| {name} | {exchanges} | {base * each:.1f} ms | {(more - base) * each:+.1f} ms | ×{down:.2f} | "
                f"×{up:.2f} | {'yes' if same else 'no'} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the page that gets both tables")
    page = parser.parse_args().write
    costs = measure_all()
    print("\n".join(costs))
    if page:
        put(costs, page, "verified costs")
        put(list_kinds(), page, "verified kinds")


if __name__ == "__main__":
    main()
