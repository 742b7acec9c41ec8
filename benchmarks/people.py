"""From tables of partly other entities to a report, by one job file: `python benchmarks/people.py [NAME …] [--write]`.

    patients    scikit-learn's diabetes data: 442 real patients; a clinic has age, sex, weight and blood pressure, a
                laboratory six blood values. Each lacks 15 % of the patients, others at each.
    athletes    scikit-learn's linnerud data: two real tables of the same 20 men, exercises and bodies; each lacks two.
    mfeat       2000 handwritten digits, six views; each site lacks 10 %.
    multi30k    29000 captions in four languages, one at each site, as sparse counts of words; each site lacks 10 %.

Which entities a site lacks is drawn (seed 100), and so is the order of its rows; ids are written in different ways at
different sites. The job blinds and matches the ids (match = "psi"), learns GCCA, and writes a report. The last column
is the largest difference of the correlations to those of views that were lined up beforehand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.datasets import load_diabetes, load_linnerud
from sklearn.feature_extraction.text import TfidfTransformer

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fedspan import FederatedGCCA, Job
from page import put

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
OPTIONS: dict[str, dict[str, Any]] = {
    "patients": {"n_components": "auto", "ridge": "auto"},
    "athletes": {"n_components": "auto", "ridge": "auto"},
    "mfeat": {"n_components": 10, "ridge": "auto", "scale": True, "bits": "auto"},
    "multi30k": {"n_components": 20, "ridge": 1.0, "bits": "auto", "tol": 1e-3},
}
LACKS = {"patients": 0.15, "athletes": 0.1, "mfeat": 0.1, "multi30k": 0.1}


def load(name: str) -> dict[str, Any]:
    """The views of all entities, in one order."""
    if name == "patients":
        X = load_diabetes(scaled=False).data
        return {"clinic": X[:, :4], "laboratory": X[:, 4:]}
    if name == "athletes":
        both = load_linnerud()
        return {"gym": both.data, "tailor": both.target}
    if name == "mfeat":
        z = np.load(DATA / "mfeat.npz")
        return {str(z["view_names"][i]): z[f"X{i}"].astype(np.float64) for i in range(6)}
    z = np.load(DATA / "multi30k_4lang.npz")
    views = {}
    for i, language in enumerate(("en", "de", "fr", "cs")):
        parts = (z[f"X{i}_data"].astype(np.float64), z[f"X{i}_indices"], z[f"X{i}_indptr"])
        counts = sp.csr_array(parts, shape=tuple(z[f"X{i}_shape"]))
        views[language] = sp.csr_array(TfidfTransformer().fit_transform(counts))
    return views


def spell(at: int, rows: np.ndarray) -> list[str]:
    """The same ids, written in another way at every second site."""
    return [f"Entity {row}" if at % 2 == 0 else f" ENTITY  {row} " for row in rows]


def write_site(path: Path, X: Any, ids: list[str]) -> str:
    """A table with a column of ids, as CSV; sparse ones as the parts of an .npz file."""
    if sp.issparse(X):
        np.savez(
            path.with_suffix(".npz"),
            X_data=X.data, X_indices=X.indices, X_indptr=X.indptr, X_shape=np.array(X.shape), who=np.array(ids),
        )  # fmt: skip
        return path.with_suffix(".npz").name
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(who=ids)
    frame.to_csv(path.with_suffix(".csv"), index=False, float_format="%.17g")
    return path.with_suffix(".csv").name


def measure(name: str) -> list[str]:
    rng = np.random.default_rng(100)
    views, lacks = load(name), LACKS[name]
    n = next(iter(views.values())).shape[0]
    common = np.ones(n, dtype=bool)
    with tempfile.TemporaryDirectory() as folder:
        place, files = Path(folder), {}
        for at, (view, X) in enumerate(views.items()):
            rows = np.sort(rng.permutation(n)[: n - round(lacks * n)])
            common &= np.isin(np.arange(n), rows)
            rows = rng.permutation(rows)
            files[view] = write_site(place / view, X[rows], spell(at, rows))
        lines = [f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in
                 OPTIONS[name].items()]  # fmt: skip
        listed = ", ".join(f'"{view}" = "{file}"' for view, file in files.items())
        (place / "job.toml").write_text(
            "\n".join(["[job]", 'task = "gcca"', "random_state = 100", *lines, "[data]", f"views = {{ {listed} }}",
                       'id = "who"', 'match = "psi"', ""])
        )  # fmt: skip
        started = time.process_time()
        run = Job.load(place / "job.toml").run(place / "out")
        seconds = time.process_time() - started
        page = run.report.read_text(encoding="utf-8")
        model: Any = run.model
    pooled = FederatedGCCA(**OPTIONS[name], random_state=100).fit([X[common] for X in views.values()])
    apart = np.abs(pooled.correlations_ - model.correlations_).max() if model.n_components_ else 0.0
    assert model.n_samples_ == common.sum(), (model.n_samples_, common.sum())
    assert "matched by their ids (psi)" in page
    held = model.held_out_correlations_
    kept = [model.n_components_, f"{model.correlations_.mean():.3f}" if model.n_components_ else "–"]
    sent = run.ledger
    return [
        f"{name}: {len(views)} sites, {n} entities in all", str(int(common.sum())), *map(str, kept),
        f"{held.mean():.3f}" if len(held) else "–", str(model.n_rounds_), f"{sent.bytes_up / 1e6:.2f}",
        f"{sent.bytes_down / 1e6:.2f}", f"{seconds:.1f}", f"{apart:.1e}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*OPTIONS], help=f"any of {', '.join(OPTIONS)}; default: all")
    parser.add_argument("--write", action="store_true", help="write the table into docs/alignment.md")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    head = ["tables", "common", "K", "in-sample correlation", "held out", "rounds", "MB up", "MB down", "CPU seconds"]
    lines = [[*head, "differs by"], ["---", *["--:"] * len(head)]]
    for name in asked.names:
        lines.append(measure(name))
        print(f"| {' | '.join(lines[-1])} |", flush=True)
    if asked.write:
        put([f"| {' | '.join(line)} |" for line in lines], ROOT / "docs" / "alignment.md", "people")


if __name__ == "__main__":
    main()
