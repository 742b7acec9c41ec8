"""PCA of single cells in three h5ad files beside scanpy on all cells: the same genes, variances, time and memory.

Ours is a federation of three sites in one process: counts are read in chunks, normalised and logged, the 2000 most
variable genes found by sums, then 50 components. scanpy (seurat flavour, arpack) has one file with all cells. They are
negative binomial, eight kinds of cells, one batch effect per site. Seconds are the processor's on one thread, reading
included; memory is the process's peak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from environment import HERE, ONE_THREAD, last, memory, python

from harness import Config, Found, Row, SkippedError

GENES, K, SITES = 2000, 50, 3
Costs = dict[str, Any]


def write_sites(folder: Path, cells: int, genes: int) -> tuple[dict[str, str], str]:
    """Files of the sites and of all cells, by h5py alone: CSR counts in float32, as anndata writes them."""
    rng = np.random.default_rng(0)
    base = rng.gamma(0.3, 1.2, genes)
    kinds = base * np.exp(1.2 * rng.normal(size=(8, genes)) * (rng.random((8, genes)) < 0.15))
    sites, parts = {}, []
    for at in range(SITES):
        batch = np.exp(0.2 * rng.normal(size=genes))
        blocks = []
        for start in range(0, cells // SITES, 2000):
            n = min(2000, cells // SITES - start)
            mean = kinds[rng.integers(0, 8, n)] * batch * rng.gamma(4, 0.25, (n, 1))
            blocks.append(sp.csr_matrix(rng.poisson(mean * rng.gamma(2, 0.5, mean.shape)).astype(np.float32)))
        parts.append(sp.vstack(blocks, format="csr"))
        sites[f"site{at}"] = str(write_h5ad(folder / f"site{at}.h5ad", parts[-1]))
    return sites, str(write_h5ad(folder / "all.h5ad", sp.vstack(parts, format="csr")))


def write_h5ad(path: Path, C: sp.csr_matrix) -> Path:
    import h5py

    with h5py.File(path, "w") as root:
        root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        X = root.create_group("X")
        X.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": np.array(C.shape)})
        for name, values in (("data", C.data), ("indices", C.indices), ("indptr", C.indptr)):
            X.create_dataset(name, data=values)
        for name, size, letter in (("obs", C.shape[0], "c"), ("var", C.shape[1], "G")):
            group = root.create_group(name)
            group.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
            group.attrs["column-order"] = np.array([], dtype="S1")
            stem = path.stem if name == "obs" else ""
            index = group.create_dataset("_index", data=[f"{stem}{letter}{i}" for i in range(size)])
            index.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
    return path


def fit_ours(sites: dict[str, str], pooled: str) -> Costs:
    from fedspan import FederatedPCA, prepare_cells

    cells = prepare_cells(sites, n_top_genes=GENES)
    model = FederatedPCA(K, random_state=0).fit(cells)
    moved = sum(ledger.bytes_up + ledger.bytes_down for ledger in (cells.ledger, model.ledger_)) / 1e6
    variances = [float(v) for v in model.explained_variance_]
    return {"genes": sorted(cells.highly_variable), "variances": variances, "rounds": model.n_rounds_, "moved": moved}


def fit_scanpy(sites: dict[str, str], pooled: str) -> Costs:
    import scanpy as sc

    data = sc.read_h5ad(pooled)
    sc.pp.normalize_total(data, target_sum=1e4)
    sc.pp.log1p(data)
    sc.pp.highly_variable_genes(data, n_top_genes=GENES, flavor="seurat")
    sc.pp.pca(data, n_comps=K, mask_var="highly_variable", svd_solver="arpack")
    chosen = data.var_names[data.var["highly_variable"]]
    return {"genes": sorted(map(str, chosen)), "variances": [float(v) for v in data.uns["pca"]["variance"]]}


METHODS = {"ours": fit_ours, "scanpy": fit_scanpy}


def measure(method: str, sites: dict[str, str], pooled: str) -> Costs:
    """One of METHODS in a process of its own."""
    program = sys.executable if method == "ours" else str(python("requirements-scanpy.txt"))
    path = os.pathsep.join(map(str, (HERE.parents[1] / "src", HERE.parent, HERE)))
    command = [program, "-W", "ignore", str(Path(__file__)), method, json.dumps(sites), pooled]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ONE_THREAD, "PYTHONPATH": path})
    if done.returncode:
        raise SkippedError(f"{method} fails: {last(done.stderr)}")
    found = dict(json.loads(done.stdout.splitlines()[-1]))
    print(method, {key: found[key] for key in ("seconds", "megabytes")}, flush=True)
    return found


def run(config: Config, data: Path) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        sites, pooled = write_sites(Path(folder), config.cells, config.genes)
        mine = measure("ours", sites, pooled)
        try:
            peer = measure("scanpy", sites, pooled)
        except SkippedError as error:
            return Found([Row("scanpy", None, impossible=str(error))], [0])
    same = len(set(mine["genes"]) & set(peer["genes"]))
    a, b = np.array(mine["variances"]), np.array(peer["variances"])
    rows = [
        Row("scanpy: genes that both choose", same, "", "higher", against=len(peer["genes"])),
        Row("largest relative difference of the 50 variances", float(np.abs(a / b - 1).max()), "", against=1e-5),
        Row("scanpy: processor seconds", mine["seconds"], "s", "lower", 1.5, against=peer["seconds"]),
        Row("scanpy: peak memory", mine["megabytes"], "MB", against=peer["megabytes"]),
    ]
    setting = {"sites": SITES, "cells": config.cells, "genes": config.genes, "components": K}
    return Found(rows, [0], {**setting, "rounds": mine["rounds"], "megabytes on both links": round(mine["moved"], 1)})


if __name__ == "__main__":
    method, given, pooled = sys.argv[1:]
    started = time.process_time()
    answer = METHODS[method](json.loads(given), pooled)
    cost = {"seconds": time.process_time() - started, "megabytes": memory("VmHWM")}
    print(json.dumps({**answer, **cost}))
