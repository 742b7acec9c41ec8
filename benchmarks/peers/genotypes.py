"""PCA of genotypes beside plink2 --pca approx, plink2 --pca and the federated PCA of Hartebrodt et al.

Ours is a federation of three sites in one process, each with PLINK files of its own; plink2 has one file with all
samples. Genotypes are Balding-Nichols with 12 populations, 1 % missing. Seconds are the processor's on one thread
(reading files included); memory is the process's peak above nothing; distances are sines of the largest angle to the
components of plink2 --pca approx, which fills missing genotypes as we do (plink2 --pca weighs pairs of samples
otherwise). The federated GWAS PCA of Hartebrodt et al. (randomized form) is written here from its description.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from environment import HERE, ONE_THREAD, last, memory
from field_files import write_genotypes

from harness import Config, Found, Row, SkippedError

K = 10
Costs = dict[str, Any]


def prepare_sites(files: dict[str, str], streaming: str = "no", secure: bool = False) -> Any:
    from fedspan import Secure, prepare_genotypes

    return prepare_genotypes(files, maf=0.01, streaming=streaming, secure=Secure() if secure else None)


def fit_sites(files: dict[str, str], streaming: str = "no", secure: bool = False) -> Costs:
    """All of ours: variants and frequencies agreed on, components, every site's scores."""
    from fedspan import FederatedPCA
    from fedspan.estimators.field.genotype_results import compute_scores

    genotypes = prepare_sites(files, streaming, secure)
    model = FederatedPCA(K, center=False, bits="auto", tol=1e-6, random_state=0, secure=secure).fit(genotypes)
    scores = compute_scores(model, genotypes)
    return {
        "scores": np.concatenate([scores[name] for name in sorted(scores)]),
        "rounds": model.n_rounds_,
        "up": model.ledger_.bytes_up / 1e6,
        "down": model.ledger_.bytes_down / 1e6,
        "opening": (genotypes.ledger.bytes_up + genotypes.ledger.bytes_down) / 1e6,
    }


def fit_hartebrodt(files: dict[str, str], iterations: int = 10) -> Costs:
    """Federated randomized SVD: subspace iterations whose (variants, k) blocks are kept as the proxy's basis.

    A. Hartebrodt, R. Röttger, D. B. Blumenthal, Federated singular value decomposition for high-dimensional data
    (2022): H = Σ A_iᵀG_i is summed and made orthonormal at the server, G_i = A_iH stays at the site; all H together
    span the subspace in which the sites' projected Gram matrices are added up.
    """
    genotypes = prepare_sites(files)
    sites = {name: genotypes[name].rows for name in sorted(genotypes)}
    d, rng = len(genotypes.variants), np.random.default_rng(0)
    H, kept, moved = np.linalg.qr(rng.normal(size=(d, K)))[0], [], 0.0
    for _ in range(iterations):
        products = [rows.multiply_shifted(H, np.zeros(K))[0] for rows in sites.values()]
        moved += 2 * len(sites) * H.nbytes / 1e6  # float64 blocks, up and down
        H = np.linalg.qr(sum(products))[0]
        kept.append(H)
    Q = np.linalg.qr(np.concatenate(kept, axis=1))[0]
    projected = {name: rows.project(Q) for name, rows in sites.items()}  # Q follows from the blocks at every site
    small = sum(P.T @ P for P in projected.values())
    moved += 2 * len(sites) * small.nbytes / 1e6
    W = np.linalg.eigh(small)[1][:, ::-1][:, :K]
    scores = np.concatenate([P @ W for P in projected.values()])
    return {
        "scores": scores / np.linalg.norm(scores, axis=0),
        "rounds": iterations + 1,
        "up": moved / 2,
        "down": moved / 2,
    }


METHODS: dict[str, Callable[[dict[str, str]], Costs]] = {
    "ours, in memory": fit_sites,
    "ours, streaming": lambda files: fit_sites(files, "yes"),
    "ours, secure sums": lambda files: fit_sites(files, secure=True),
    "Hartebrodt et al.": fit_hartebrodt,
}


def measure_ours(method: str, files: dict[str, Path], folder: Path) -> Costs:
    """One of METHODS in a process of its own."""
    scores = folder / "ours.npy"
    given = json.dumps({name: str(path) for name, path in files.items()})
    path = os.pathsep.join(map(str, (HERE.parents[1] / "src", HERE.parent, HERE)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__)), method, given, str(scores)],
        capture_output=True,
        text=True,
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
    )
    if done.returncode:
        raise SkippedError(f"{method} fails: {last(done.stderr)}")
    found = dict(json.loads(done.stdout.splitlines()[-1]))
    print(method, found, flush=True)
    return {**found, "scores": np.load(scores)}


def measure_plink(pooled: Path, folder: Path, *more: str) -> Costs:
    """plink2 on one thread; its memory is looked at until it ends."""
    program = shutil.which("plink2")
    if program is None:
        raise SkippedError("plink2 is not installed (Debian: apt install plink2)")
    out = folder / "plink"
    command = [program, "--bfile", str(pooled.with_suffix("")), "--maf", "0.01", "--pca", str(K), *more]
    started, peak = os.times(), 0.0
    process = subprocess.Popen(
        [*command, "--threads", "1", "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    while process.poll() is None:
        peak = max(peak, find_peak(process.pid))
        time.sleep(0.02)
    if process.returncode:
        raise SkippedError(f"plink2 fails: {last((process.stderr.read() if process.stderr else b'').decode())}")
    ended = os.times()
    seconds = ended.children_user + ended.children_system - started.children_user - started.children_system
    lines = [line.split() for line in Path(f"{out}.eigenvec").read_text(encoding="ascii").splitlines()]
    at = lines[0].index("PC1")
    found = {"seconds": seconds, "megabytes": peak}
    print("plink2", more, found, flush=True)
    return {**found, "scores": np.array([[float(cell) for cell in line[at:]] for line in lines[1:]])}


def find_peak(pid: int) -> float:
    """VmHWM of a process and of its children (Debian's plink2 is a script that starts the fitting program), MB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:  # it has ended
        return 0.0
    own = [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")]
    return max([0.0, *own, *(find_peak(int(child)) for child in children)])


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The sine of the largest angle between two spaces."""
    A, B = np.linalg.qr(a)[0], np.linalg.qr(b)[0]
    return float(np.linalg.norm(A - B @ (B.T @ A), 2))


def run(config: Config, data: Path) -> Found:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files, pooled = write_genotypes(folder, 3, config.samples, config.variants, 0.01)
        approx = measure_plink(pooled, folder, "approx")
        try:
            exact: Costs | str = measure_plink(pooled, folder)
        except SkippedError as error:
            exact = str(error)
        mine = {method: measure_ours(method, files, folder) for method in METHODS}
    for method, found in mine.items():
        if method == "Hartebrodt et al.":
            continue
        wire = found["up"] + found["down"]
        rows += [
            Row(f"{method}: processor seconds, plink2 --pca approx", found["seconds"], "s", against=approx["seconds"]),
            Row(f"{method}: peak memory, plink2 --pca approx", found["megabytes"], "MB", against=approx["megabytes"]),
            Row(
                f"{method}: distance from plink2 --pca approx",
                distance(found["scores"], approx["scores"]),
                against=1e-5,
            ),
            Row(f"{method}: megabytes on both links", wire, "MB", against=60.0 * config.variants / 100_000),
            Row(f"{method}: rounds", found["rounds"], "", against=10),
        ]
    if isinstance(exact, str):
        rows.append(Row("plink2 --pca", None, impossible=exact))
    else:
        first = mine["ours, in memory"]
        rows.append(Row("plink2 --pca: processor seconds", first["seconds"], "s", against=exact["seconds"]))
    theirs, first = mine["Hartebrodt et al."], mine["ours, in memory"]
    rows += [
        Row("Hartebrodt et al.: rounds", first["rounds"], "", against=theirs["rounds"]),
        Row(
            "Hartebrodt et al.: megabytes on both links",
            first["up"] + first["down"],
            "MB",
            against=theirs["up"] + theirs["down"],
        ),
        Row("Hartebrodt et al.: processor seconds", first["seconds"], "s", against=theirs["seconds"]),
        Row(
            "Hartebrodt et al.: distance from plink2 --pca approx",
            distance(first["scores"], approx["scores"]),
            against=distance(theirs["scores"], approx["scores"]),
        ),
    ]
    opening = mine["ours, in memory"]["opening"]
    setting = {"sites": 3, "samples of a site": config.samples, "variants": config.variants, "components": K}
    return Found(rows, [0], {**setting, "megabytes to agree on variants and frequencies": round(opening, 2)})


if __name__ == "__main__":
    method, given, place = sys.argv[1:]
    started = time.process_time()
    answer = METHODS[method](json.loads(given))
    cost = {"seconds": time.process_time() - started, "megabytes": memory("VmHWM")}
    np.save(place, answer.pop("scores"))
    print(json.dumps({**answer, **cost}))
