"""Every solver on rows that are difficult in numbers: its components against a dense decomposition of the pooled rows,
and whether what it says of its end is true."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan import FederatedPCA, InputError, Participation
from fedspan._types import Array
from fedspan.algorithms import Faps, Ssi
from fedspan.core.run import run
from fedspan.engines import InProcess
from fedspan.numerics.orthonormal import largest_angle

rng = np.random.default_rng(5)
BASE = rng.normal(size=(60, 6)) * [9, 6, 4, 1, 0.5, 0.2]
TURN = np.linalg.qr(rng.normal(size=(6, 6)))[0]
X = BASE @ TURN
DOUBLED = np.linalg.qr(BASE - BASE.mean(axis=0))[0] * [3, 3, 2, 1, 1, 0.5] @ TURN  # the leading two have one variance

CASES: dict[str, tuple[Any, int, int]] = {  # rows, components that are asked for, and that there are
    "plain": (X, 3, 3),
    "times 1e150": (X * 1e150, 3, 3),
    "times 1e-150": (X * 1e-150, 3, 3),
    "plus 1e8": (X + 1e8, 3, 3),
    "d=1": (X[:, :1], 1, 1),
    "rank deficient": (np.c_[X, X[:, :2] - X[:, 2:4]], 3, 3),
    "k above the rank": (X[:, :2] @ rng.normal(size=(2, 9)), 4, 2),
    "k=d": (X, 6, 6),
    "doubled": (DOUBLED, 2, 2),
    "float32": (X.astype(np.float32), 3, 3),
    "int8": ((4 * X).clip(-127, 127).astype(np.int8), 3, 3),
    "uint8": ((4 * X + 128).clip(0, 255).astype(np.uint8), 3, 3),
    "sparse": (sp.csr_array(np.where(np.abs(X) > 3, X, 0)), 3, 3),
}
SOLVERS: dict[str, dict[str, Any]] = {
    "gram": {"solver": "gram"},
    "krylov": {"solver": "krylov"},
    "krylov, narrow": {"solver": "krylov", "width": None},
    "krylov, auto bits": {"solver": "krylov", "bits": "auto"},
    "krylov, narrow, auto bits": {"solver": "krylov", "width": None, "bits": "auto"},
    "krylov, by angle": {"solver": "krylov", "angle_tol": 1e-7},
    "davidson": {"solver": "davidson"},
    "davidson, auto bits": {"solver": "davidson", "bits": "auto"},
    "ssi": {"solver": "ssi"},
    "ssi, 3 bits": {"solver": "ssi", "bits": 3},
    "ssi, 8 bits": {"solver": "ssi", "bits": 8},
    "localpower": {"solver": "localpower"},
    "localpower, 4 bits": {"solver": "localpower", "bits": 4},
    "fedpower": {"solver": "fedpower"},
    "fedpower, 4 bits": {"solver": "fedpower", "bits": 4},
    "faps": {"solver": "faps"},
    "faps, accelerated": {"solver": Faps(accelerate=True)},
}
INEXACT = {name: {"solver": name} for name in ("uda", "wda", "drsvd")}
TOL = 1e-7
ALWAYS = ("gram", "krylov", "krylov, narrow, auto bits", "davidson", "ssi", "ssi, 8 bits", "localpower", "fedpower")


def thin(names: Iterable[str], others: Iterable[Any]) -> list[Any]:
    """All pairs; of settings that are not in ALWAYS two of three are long, so that each row and column has some."""
    return [
        pytest.param(name, other, marks=[] if name in ALWAYS or (i + j) % 3 == 0 else [pytest.mark.long])
        for i, name in enumerate(names)
        for j, other in enumerate(others)
    ]


def center(rows: Any) -> Array:
    """The pooled rows around their mean, in units of the largest of them."""
    dense = (rows.toarray() if sp.issparse(rows) else rows).astype(np.float64)
    dense = dense / np.abs(dense).max()
    return dense - dense.mean(axis=0)


def violation(B: Array, Z: Array) -> float:
    MZ = B.T @ (B @ Z)
    return float(np.linalg.norm(MZ - Z @ (Z.T @ MZ)) / np.sum(B**2))


def fit(rows: Any, k: int, clients: int, options: dict[str, Any], **more: Any) -> FederatedPCA:
    parts = [rows[part] for part in np.array_split(np.arange(rows.shape[0]), clients)]
    return FederatedPCA(k, **{"tol": TOL, "max_rounds": 1000, "random_state": 0, **options, **more}).fit(parts)


@pytest.mark.parametrize(("name", "case"), thin(SOLVERS, CASES))
def test_components_are_those_of_a_dense_decomposition(name: str, case: str) -> None:
    rows, k, rank = CASES[case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fit(rows, k, 3, SOLVERS[name])
    B = center(rows)
    values, V = np.linalg.svd(B, full_matrices=False)[1:]
    Z = model.components_.T.astype(np.float64)
    assert model.converged_
    assert Z.shape[1] == rank
    assert any(f"lower n_components to {rank}" in str(one.message) for one in caught) == (rank < k)
    angle = 3e-7 if case == "float32" else 1e-9
    assert largest_angle(Z, V[:rank].T) < max(angle, 3 * TOL * np.sum(values**2) / values[rank - 1] ** 2)
    assert violation(B, Z) <= TOL * 1.01
    assert model.history_[-1]["kkt"] <= TOL or "angle_tol" in SOLVERS[name]
    found = (model.singular_values_ / float(np.abs(rows).max())) ** 2
    np.testing.assert_allclose(found, values[:rank] ** 2, rtol=1e-6, atol=TOL * np.sum(values**2))


@pytest.mark.parametrize("case", ["times 1e150", "times 1e-150", "k above the rank", "float32", "sparse"])
@pytest.mark.parametrize("name", ["krylov", "krylov, narrow, auto bits", "ssi, 8 bits"])
def test_the_same_with_one_row_at_each_client(name: str, case: str) -> None:
    rows, k, rank = CASES[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit(rows, k, rows.shape[0], SOLVERS[name])
    B = center(rows)
    V = np.linalg.svd(B, full_matrices=False)[2][:rank].T
    assert model.converged_
    assert largest_angle(model.components_.T.astype(np.float64), V) < 1e-5


@pytest.mark.parametrize(("name", "scale"), thin([*SOLVERS, *INEXACT], [1e150, 1e-150, 1e120]))
def test_a_power_of_two_changes_nothing_but_the_scale(name: str, scale: float) -> None:
    """All clients divide by one public power of two, so the run is the same to the bit."""
    unit = 2.0 ** np.round(np.log2(scale))
    options = {**SOLVERS, **INEXACT}[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, scaled = fit(X, 3, 3, options, max_rounds=12), fit(X * unit, 3, 3, options, max_rounds=12)
    assert scaled.n_rounds_ == plain.n_rounds_
    assert largest_angle(scaled.components_.T, plain.components_.T) < 1e-9
    np.testing.assert_allclose(scaled.explained_variance_, plain.explained_variance_ * unit**2, rtol=1e-9)
    np.testing.assert_allclose(scaled.noise_variance_, plain.noise_variance_ * unit**2, rtol=1e-6)
    ends = [model.history_[-1]["kkt"] for model in (scaled, plain)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-3, abs=1e-14, nan_ok=True)  # FAPS knows none before its check
    assert scaled.converged_ == plain.converged_


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("solver", ["ssi", "localpower", "fedpower"])
def test_without_the_check_a_lossy_run_can_be_wrong_and_with_it_is_not(solver: str, bits: int) -> None:
    """Three variances and five components: the two that are left over are rounding, and never come to rest."""
    low = np.random.default_rng(1).normal(size=(400, 3)) * [5, 3, 2]
    rows = low @ np.linalg.qr(np.random.default_rng(2).normal(size=(30, 30)))[0][:3]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fit(rows, 5, 4, {"solver": solver, "bits": bits}, tol=1e-6)
    assert model.converged_
    assert len(model.components_) == 3
    assert violation(center(rows), model.components_.T) < 1e-6
    assert ["rank 3, so there are only 3 components" in str(one.message) for one in caught] == [True]


def test_a_lossy_run_that_is_not_checked_lies() -> None:
    """What the check is for: the attack on `converged_` succeeds without it."""
    rows = X[:, :2] @ np.eye(2, 6)
    claims = {}
    for check in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = fit(rows, 4, 3, {"solver": "ssi", "bits": 4, "check": check})
        claims[check] = (model.converged_, violation(center(rows), model.components_.T))
    assert claims[False][0]
    assert claims[False][1] > 10 * TOL
    assert claims[True][0]
    assert claims[True][1] <= TOL


def test_the_check_of_faps_turns_tol_into_a_violation() -> None:
    loose, checked = (fit(X, 3, 3, {"solver": "faps", "check": check}, tol=1e-6) for check in (False, True))
    assert loose.converged_
    assert np.isnan(loose.history_[-1]["kkt"])
    assert violation(center(X), loose.components_.T) > 1e-6  # (27) only says that it moves slowly
    assert checked.converged_
    assert checked.history_[-1]["kkt"] == pytest.approx(violation(center(X), checked.components_.T), rel=1e-6)
    assert checked.history_[-1]["kkt"] <= 1e-6
    tasks = [row["task"] for row in checked.ledger_.rows() if row["event"] == "exchange"]
    assert tasks.count("confirm") <= 3  # it is not asked in every round
    assert tasks[-1] == "confirm"


def test_solvers_that_see_the_residual_need_no_more_exchanges() -> None:
    for solver in ("ssi", "localpower", "fedpower", "krylov", "gram"):
        runs = [fit(X, 3, 3, {"solver": solver, "check": check}).ledger_.exchanges for check in (False, True)]
        assert runs[0] == runs[1]
    lossy = [fit(X, 3, 3, {"solver": "ssi", "bits": 8, "check": check}) for check in (False, True)]
    assert lossy[1].ledger_.exchanges == lossy[0].ledger_.exchanges + 1


@pytest.mark.parametrize("participation", [Participation(fraction=0.5), None])
def test_the_ends_that_tell_of_a_floor_are_not_called_converged(participation: Participation | None) -> None:
    options = {"solver": "fedpower", "bits": 4, "participation": participation, "local_steps": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit(X, 3, 6, options, max_rounds=200)
    kkt = violation(center(X), model.components_.T)
    assert model.converged_ == (kkt <= TOL)
    assert model.history_[-1]["kkt"] == pytest.approx(kkt, rel=1e-6)


def test_the_unit_must_be_a_power_of_two() -> None:
    from fedspan.algorithms._moments import RowsClient, Shift
    from fedspan.core.rng import Streams

    client, rng = RowsClient(X), Streams(0, 0, 0, "c0")
    kept, _ = client.settle(Shift(), {"unit": np.array(8.0)}, rng)
    np.testing.assert_array_equal(kept.scale, np.full(6, 8.0))
    for unit in (3.0, 0.0, -2.0, np.inf, np.nan):
        with pytest.raises(InputError, match="must be a power of two"):
            client.settle(Shift(), {"unit": np.array(unit)}, rng)


def test_rows_of_usual_size_are_measured_once() -> None:
    result = run(Ssi(k=2), InProcess({"a": X[:20], "b": X[20:]}), rounds=2, seed=0)
    assert result.state.moments.unit == 1.0
    assert result.ledger.exchanges == 2 + 2  # count and settle, and two rounds


def test_tol_below_what_float32_allows_is_refused() -> None:
    with pytest.raises(InputError, match=r"tol must be at least 1e-07 if all rows are float32.* but is 1e-09"):
        fit(X.astype(np.float32), 3, 3, {}, tol=1e-9)
    fit(X.astype(np.float32), 3, 3, {"solver": "krylov"}, tol=0, max_rounds=2)


@pytest.mark.parametrize("tol", [1e-17, 1e-300])
def test_tol_below_what_float64_allows_is_refused(tol: float) -> None:
    with pytest.raises(InputError, match=r"tol must be 0 \(all rounds\) or at least 1e-16"):
        FederatedPCA(2, solver="krylov", tol=tol).fit([X[:30], X[30:]])


@pytest.mark.parametrize("solver", [name for name in (*SOLVERS, *INEXACT) if "," not in name and name != "krylov"])
def test_angle_tol_is_refused_by_solvers_that_know_no_bound(solver: str) -> None:
    with pytest.raises(InputError, match=f"angle_tol is for solver 'krylov', not for '{solver}'"):
        fit(X, 3, 3, {"solver": solver, "angle_tol": 1e-3})
