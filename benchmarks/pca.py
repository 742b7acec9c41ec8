"""Federated PCA beside scikit-learn on pooled rows, and under bad conditions: `python benchmarks/pca.py [PART ...]`.

Parts: speed (CPU time and memory over scikit-learn's best exact solver), pooled (time against scikit-learn's solvers at
the same accuracy, d = 1000 and 8000), writers (539 tiny clients,
lost replies, partial participation), warm (1 % of the rows changed), sparse and mapped (peak memory). Real data are
looked for in FEDSPAN_DATA, or in shared/data beside the repository. Times are of one run on this machine: read ratios.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import PCA

import fedspan
from fedspan import FederatedPCA, FederatedSVD, Participation
from fedspan.engines import Faults, InProcess
from fedspan.numerics.orthonormal import largest_angle, projection_distance

DATA = Path(os.environ.get("FEDSPAN_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def load(name: str) -> Any:
    if not (DATA / f"{name}.npz").is_file():
        sys.exit(f"{DATA} does not contain {name}.npz; set FEDSPAN_DATA to the folder that does.")
    return np.load(DATA / f"{name}.npz", allow_pickle=False)


def kkt(X: np.ndarray, components: np.ndarray) -> float:
    """The scaled KKT violation of components for the pooled, centered rows."""
    mean, Z = X.mean(axis=0), components.T
    BZ = X @ Z - mean @ Z
    MZ = X.T @ BZ - np.outer(mean, BZ.sum(axis=0))
    trace = np.einsum("ij,ij->", X, X) - len(X) * mean @ mean
    return float(np.linalg.norm(MZ - Z @ (Z.T @ MZ)) / trace)


def timed(make: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    model = make()
    return time.perf_counter() - started, model


SPEED = ((50000, 1000, "f8"), (50000, 1000, "f4"), (200000, 100, "f8"), (5000, 3000, "f8"), (20000, 8000, "f8"))


def speed() -> None:
    """CPU time and peak memory over scikit-learn's best exact solver, one thread, each fit in a process of its own."""
    for n, d, kind in SPEED:
        solvers = ["covariance_eigh", "full"] if d < 8000 else ["covariance_eigh"]
        theirs = [_measure_fit(n, d, kind, solver) for solver in solvers]
        (seconds, memory), ours = min(theirs), _measure_fit(n, d, kind, "fedspan")
        print(f"{n}×{d} {kind}: CPU {ours[0]:.2f} s, {ours[0] / seconds:.2f} times; "
              f"memory {ours[1]:.0f} MB, {ours[1] / memory:.2f} times", flush=True)  # fmt: skip
    seconds, memory = _measure_fit(100_000, 0, "f8", "clients")
    print(f"100,000 clients of 20×50, gram: CPU {seconds:.1f} s, {memory:.0f} MB with 800 MB of rows")


def _measure_fit(n: int, d: int, kind: str, solver: str) -> tuple[float, float]:
    """(CPU seconds of the best of two fits, peak MB of the process)."""
    one = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "fit", str(n), str(d), kind, solver]
    seconds, memory = subprocess.run(command, env=one, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(memory)


def fit_once(n: int, d: int, kind: str, solver: str) -> None:
    """What `speed` runs in a process of its own."""
    rng = np.random.default_rng(0)
    if solver == "clients":
        clients = [rng.normal(size=(20, 50)) for _ in range(n)]
        repeats = 1
    else:
        r = min(d, 300)
        X = (rng.normal(size=(n, r)) * 0.97 ** np.arange(r)).astype(kind) @ rng.normal(size=(r, d)).astype(kind)
        X += rng.normal(size=d)
        for part in np.array_split(X, 20):
            part += rng.normal(size=part.shape)
        clients, repeats = np.array_split(X, 8), 2 if n * d <= 5e7 else 1
    solving = "gram" if solver == "clients" else "auto"
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        if solver in ("fedspan", "clients"):
            one_thread = lambda data: InProcess(data, threads=1)  # noqa: E731
            FederatedPCA(10, solver=solving, random_state=0, engine=one_thread).fit(clients)
        else:
            PCA(10, svd_solver=solver).fit(X)
        seconds.append(time.process_time() - started)
    status = Path("/proc/self/status").read_text()
    print(min(seconds), int(status.split("VmHWM:")[1].split()[0]) / 1e3)


def pooled() -> None:
    """Ours in 8 clients that are views of the pooled matrix: no second copy of the data on either side."""
    rng = np.random.default_rng(0)
    for n, d, aim in ((50000, 1000, 1.2), (20000, 8000, 1.0)):
        X = rng.normal(size=(n, 300)) * 0.97 ** np.arange(300) @ rng.normal(size=(300, d))
        X += rng.normal(size=(n, d))
        clients = np.array_split(X, 8)
        rows = {"FederatedPCA, auto": lambda c=clients: FederatedPCA(10, random_state=0).fit(c)}
        theirs: list[tuple[str, dict[str, Any]]] = [("covariance_eigh", {})] if d <= 1000 else []
        theirs += [("arpack", {"tol": 1e-6}), ("randomized", {"iterated_power": 4})]
        theirs += [("randomized", {"iterated_power": 12})]
        for solver, options in theirs:
            pca = PCA(10, svd_solver=solver, random_state=0, **options)
            rows[f"scikit-learn {solver} {options or ''}"] = lambda X=X, pca=pca: pca.fit(X)
        print(f"\npooled {n}x{d}, k=10:")
        found = {name: timed(make) for name, make in rows.items()}
        accuracy = {name: kkt(X, model.components_) for name, (_, model) in found.items()}
        ours, (note, *_) = found["FederatedPCA, auto"], found["FederatedPCA, auto"][1].ledger_.notes
        for name, (seconds, _) in found.items():
            print(f"  {name:48s} {seconds:6.2f} s   KKT {accuracy[name]:.1e}")
        as_good = [s for name, (s, _) in found.items() if name.startswith("scikit") and accuracy[name] <= 1e-5]
        ratio = ours[0] / min(as_good)
        print(f"  {note}")
        print(f"  ours over the best of scikit-learn's with KKT <= 1e-5: {ratio:.2f} (aim {aim})")


def writers() -> None:
    """MNIST by writer, 539 clients."""
    X, who = load("mnist")["X"], load("mnist_writers")["client"]
    clients = {f"{w:04d}": X[who == w] for w in np.unique(who)}
    exact = FederatedSVD(5, solver="gram").fit(clients)
    print(f"\n{len(clients)} writers, k=5, 10 % taking part per round, fedpower:")
    for scheme in (1, 2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            part = Participation(fraction=0.1, scheme=scheme)
            model = FederatedSVD(5, solver="fedpower", participation=part, random_state=0).fit(clients)
        error = projection_distance(model.components_.T, exact.components_.T)
        floor = model.history_[-1]["floor"]
        print(f"  scheme {scheme}: {model.n_rounds_} rounds, error {error:.3f}, floor reported {floor:.3f}; it warns:")
        print(f"    {caught[-1].message}")
    print("krylov, 3 % of requests and 3 % of replies lost, the missing ones asked again:")

    def lossy(data: Any) -> InProcess:
        return InProcess(data, faults=Faults(lose_request=0.03, lose_reply=0.03))

    model = FederatedSVD(5, solver="krylov", engine=lossy, random_state=0).fit(clients, min_clients=400)
    asked_again = model.ledger_.exchanges - model.n_rounds_ - 1
    print(f"  {model.n_rounds_} rounds, KKT {model.history_[-1]['kkt']:.1e}, {asked_again} catch-up exchanges, angle "
          f"{largest_angle(model.components_.T, exact.components_.T):.1e}")  # fmt: skip
    try:
        FederatedSVD(5, solver="krylov", participation=Participation(fraction=0.1)).fit(clients)
    except fedspan.InputError as error:
        print(f"krylov with 10 % taking part: refused: {error}")


def warm() -> None:
    """MNIST at 20 clients, then again with 1 % of the rows replaced."""
    X = load("mnist")["X"]
    before, after = X[:50000], X[:50000].copy()
    after[np.random.default_rng(0).choice(50000, 500, replace=False)] = X[50000:50500]
    options = {"n_components": 10, "solver": "krylov", "random_state": 0}
    first = FederatedPCA(**options).fit(np.array_split(before, 20))
    cold = FederatedPCA(**options).fit(np.array_split(after, 20))
    again = FederatedPCA(**options).fit(np.array_split(after, 20), warm_start=first)
    print(f"\nwarm start after 1 % of the rows changed: {again.n_rounds_} rounds, cold {cold.n_rounds_} (aim: half)")


def sparse() -> None:
    """English captions of multi30k as counts: peak memory against the matrix and the kept vectors."""
    z = load("multi30k_4lang")
    parts = (z["X0_data"].astype(float), z["X0_indices"], z["X0_indptr"])
    X = sp.csr_matrix(parts, shape=tuple(z["X0_shape"]))
    clients = [X[i::4] for i in range(4)]
    tracemalloc.start()
    model = FederatedPCA(20, solver="krylov", random_state=0).fit(clients)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    matrix, vectors = sum(a.nbytes for a in parts), 2 * 12 * 20 * X.shape[1] * 8
    print(f"\nsparse {X.shape[0]}x{X.shape[1]}, k=20, centered, {model.n_rounds_} rounds: peak {peak / 1e6:.0f} MB; "
          f"3 x matrix + kept vectors (Q and MQ) = {(3 * matrix + vectors) / 1e6:.0f} MB")  # fmt: skip


def mapped(gigabytes: float = 4.0) -> None:
    """A memory-mapped file of 4 GB in a process of its own: the peak of its resident memory."""
    with tempfile.TemporaryDirectory() as folder:
        path, n, rng = Path(folder) / "rows.npy", int(gigabytes * 1e9 / 8000), np.random.default_rng(0)
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(n, 1000))
        mix = rng.normal(size=(50, 1000)) * 0.9 ** np.arange(50)[:, None]
        for start in range(0, n, 10000):
            rows = rng.normal(size=(min(10000, n - start), 50)) @ mix
            out[start : start + len(rows)] = rows + 0.1 * rng.normal(size=rows.shape)
        out.flush()
        del out
        for solver in ("gram", "krylov"):
            started = time.perf_counter()
            command = [sys.executable, __file__, "fit-mapped", str(path), solver]
            peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            print(
                f"\nmapped {path.stat().st_size / 1e9:.1f} GB, {solver}: {peak}, {time.perf_counter() - started:.0f} s"
            )


def fit_mapped(path: str, solver: str) -> None:
    model = FederatedPCA(5, solver=solver, random_state=0).fit([path])
    status = Path("/proc/self/status").read_text()  # ru_maxrss would also count the parent's peak before exec
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(f"{model.n_rounds_} rounds, converged {model.converged_}, peak resident {peak:.0f} MB (aim: 1000)")


PARTS = {"speed": speed, "pooled": pooled, "writers": writers, "warm": warm, "sparse": sparse, "mapped": mapped}

if __name__ == "__main__":
    if sys.argv[1:2] == ["fit-mapped"]:
        fit_mapped(*sys.argv[2:])
    elif sys.argv[1:2] == ["fit"]:
        fit_once(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
    else:
        for part in sys.argv[1:] or PARTS:
            if part not in PARTS:
                sys.exit(f"{part!r} is not a part. Known: {', '.join(PARTS)}")
            PARTS[part]()
