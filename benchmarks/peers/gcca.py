"""MAX-VAR GCCA beside cca-zoo, three views of 10,000×200.

Ours is a whole federation in one process: three clients, their messages and the server; cca-zoo has all views. Seconds
are the processor's, on one BLAS thread; memory is the peak in MB above the process with the data in it; both are the
least of the runs (quick: 2, full: 5), each in a process of its own. Accuracy is what the views predict of the common
space found, over the most that is possible.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from environment import least, versions

from harness import Config, Found, Row

J, N, K = 10000, 200, 10
Arrays = list[np.ndarray]


def ours(views: Arrays, **options: Any) -> Any:
    from fedspan import FederatedGCCA

    model = FederatedGCCA(min(K, views[0].shape[1]), random_state=0, **options).fit(views)
    return model.common_, model


def cca_zoo(views: Arrays) -> Any:
    from cca_zoo.linear import GCCA

    model = GCCA(min(K, views[0].shape[1])).fit(views)
    return np.sum(model.transform(views), axis=0), None


METHODS = {
    "ours": partial(ours, tol=1e-8),
    "ours, bits='auto'": partial(ours, tol=1e-4, bits="auto"),
    "cca-zoo GCCA": cca_zoo,
}


def small(views: Arrays) -> Arrays:
    return [view[:300, :5] for view in views]


def judge(views: Arrays, answer: Any) -> dict[str, float]:
    G, model = answer
    G = np.linalg.qr(G - G.mean(axis=0))[0]
    bases = [np.linalg.qr(view - view.mean(axis=0))[0] for view in views]
    best = np.linalg.svd(np.hstack(bases), compute_uv=False)[:K] ** 2
    found = {"predicted": float(sum(np.sum((Q.T @ G) ** 2) for Q in bases) / best.sum())}
    if model is not None:
        found["rounds"] = float(model.n_rounds_)
        found["wire"] = (model.ledger_.bytes_up + model.ledger_.bytes_down) / 1e6
    return found


def run(config: Config, data: Path) -> Found:
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(J, 10))
    views = [Z @ rng.normal(size=(10, N)) + 3.0 * rng.normal(size=(J, N)) for _ in range(3)]
    found = least("gcca", list(METHODS), views, config.runs)
    mine, peer = found["ours"], found["cca-zoo GCCA"]
    if isinstance(peer, str):
        rows = [Row("cca-zoo GCCA", None, impossible=peer)]
    else:
        rows = [
            Row("cca-zoo GCCA: processor seconds", mine["seconds"], "s", against=peer["seconds"]),
            Row("cca-zoo GCCA: peak memory", mine["megabytes"], "MB", against=peer["megabytes"]),
            Row("cca-zoo GCCA: predicted", mine["predicted"], "", "higher", 1 + 1e-6, against=peer["predicted"]),
        ]
    whole = sum(view.nbytes for view in views) / 1e6
    what = "megabytes on both links, beside sending all views once"
    rows.append(Row(what, mine["wire"], "MB", against=whole))
    coarse = found["ours, bits='auto'"]
    rows.append(Row(f"bits='auto', tol=1e-4: {what}", coarse["wire"], "MB", against=whole))
    if not isinstance(peer, str):
        what = "bits='auto', tol=1e-4, cca-zoo GCCA: predicted"
        rows.append(Row(what, coarse["predicted"], "", "higher", 1 + 1e-6, against=peer["predicted"]))
    setting = {"entities": J, "features": N, "views": 3, "components": K, "rounds": int(mine["rounds"])}
    return Found(rows, [0], {**setting, "beside": versions("cca-zoo")})
