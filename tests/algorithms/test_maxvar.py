"""AltMaxVar, CuteMaxVar, MVLSA and Krylov on views: one round by hand, the centralised answer, the paper's claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan.algorithms import AltMaxVar, CuteMaxVar, Davidson, KeptMaxVar, MaxVarDavidson, MaxVarKrylov, Mvlsa
from fedspan.algorithms.gcca._view import ViewClient, ViewState
from fedspan.algorithms.gcca.entities import Entities
from fedspan.channel import Channel, delta, only, pack, quantize
from fedspan.channel.stage import IDENTITY
from fedspan.core.rng import Streams
from fedspan.core.run import Info, Result, run
from fedspan.engines import InProcess
from fedspan.errors import InputError
from fedspan.numerics.alignment import alignment_accuracy
from fedspan.numerics.orthonormal import largest_angle

Views = list[np.ndarray]


def paper(seed: int = 0, J: int = 500, N: int = 25, D: int = 20, views: int = 3, noise: float = 0.1) -> Views:
    """X_i = Z A_i + ν N_i, section V-A."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(J, D))
    return [Z @ rng.normal(size=(D, N)) + noise * rng.normal(size=(J, N)) for _ in range(views)]


def easy(seed: int = 0, J: int = 120) -> Views:
    """Two strong common factors, so that every method settles soon; means and scales that differ."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(J, 2))
    return [common @ rng.normal(size=(2, n)) * s + s * 0.5 * rng.normal(size=(J, n)) + s for n, s in ((6, 1), (9, 20))]


def projectors(views: Views, ridge: float = 0.0, center: bool = True, scale: bool = False) -> np.ndarray:
    """Σ P_i by singular value decompositions."""
    total = np.zeros((len(views[0]),) * 2)
    for X in views:
        B = X - X.mean(axis=0) if center else X
        U, S, _ = np.linalg.svd(B / B.std(axis=0) if scale else B, full_matrices=False)
        kept = 1e-10 * S[0] < S
        U, S = U[:, kept], S[kept]
        total += (U * (S**2 / (S**2 + ridge))) @ U.T
    return total


def leading(P: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    w, U = np.linalg.eigh(P)
    return w[::-1][:k], U[:, ::-1][:, :k]


def cute(bits: int, first: Any = None) -> Channel:
    stage = delta(quantize(bits), first=first)
    return Channel(up=only(["M"], stage), down=only(["G"], stage))


def go(server: Any, views: Any, rounds: int = 200, channel: Channel | None = None, **more: Any) -> Result[Any]:
    server = replace(server, last=rounds) if hasattr(server, "last") else server
    return run(server, InProcess(views, threads=1), rounds=rounds, seed=3, channel=channel, **more)


def test_one_round_of_altmaxvar_by_hand() -> None:
    """(8a) is least squares, (8b) the polar factor of the sum: from the G that the server holds to the next."""
    views = easy()
    server, told = AltMaxVar(k=2, tol=0), []
    go(server, views, rounds=2, callback=told.append)
    B = [X - X.mean(axis=0) for X in views]
    first, second = told
    M = sum(b @ np.linalg.lstsq(b, first.estimate)[0] for b in B)
    U, _, Vt = np.linalg.svd(M, full_matrices=False)
    after = U @ Vt
    assert largest_angle(second.estimate, after) < 1e-9  # the last estimate is turned to the principal axes
    cost = 0.5 * sum(np.sum((b @ np.linalg.lstsq(b, first.estimate)[0] - first.estimate) ** 2) for b in B)
    assert second.metrics["cost"] == pytest.approx(cost, rel=1e-9)
    off = M - first.estimate @ (first.estimate.T @ M)
    assert second.metrics["kkt"] == pytest.approx(np.linalg.norm(off) / 4, rel=1e-9)


@pytest.mark.parametrize(("local", "batch"), [("gradient", 0), ("sgd", 7)])
def test_local_steps_by_hand(local: str, batch: int) -> None:
    """Lines 19 to 22: T steps of 1/σ_max², the stochastic gradient scaled by J over the batch."""
    X = easy()[0]
    rng = np.random.default_rng(0)
    G, Q = np.linalg.qr(rng.normal(size=(120, 2)))[0], rng.normal(size=(6, 2))
    client = ViewClient(X, ridge=0.4, local=local, steps=3, batch=batch)
    streams = Streams(1, 2, 0, "a")
    state, reply = client.update(ViewState(Q), {"G": G}, streams)
    B = X - X.mean(axis=0)
    step, draw = 1 / (np.linalg.norm(B, 2) ** 2 + 0.4), streams("batches")
    for _ in range(3):
        at = np.sort(draw.choice(120, batch, replace=False)) if batch else np.arange(120)
        Q = Q - step * (B[at].T @ (B[at] @ Q - G[at]) * (120 / len(at)) + 0.4 * Q)
    np.testing.assert_allclose(state.Q, Q, atol=1e-12)
    np.testing.assert_allclose(reply["M"], B @ Q, atol=1e-12)
    want = 0.5 * np.sum((B @ Q - G) ** 2) + 0.2 * np.sum(Q**2)
    assert float(reply["cost"]) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"ridge": 30.0}, {"scale": True}, {"center": False}])
@pytest.mark.parametrize(
    "server",
    [
        AltMaxVar(k=2, tol=1e-9),
        MaxVarKrylov(k=2, tol=1e-9),
        MaxVarKrylov(k=2, tol=1e-9, width="auto"),
        MaxVarKrylov(k=2, tol=1e-9, width="auto", local_rank=2),
        MaxVarDavidson(k=2, tol=1e-9),
    ],
    ids=["alt", "krylov", "krylov wide", "krylov twice", "davidson"],
)
def test_the_answer_is_the_leading_eigenspace_of_the_sum_of_projectors(server: Any, options: dict[str, Any]) -> None:
    views = easy()
    k = 2 if options.get("center", True) else 3  # uncentred, the mean is one more common factor
    result = go(replace(server, k=k, **options), views, rounds=400)
    assert result.converged
    P = projectors(views, **options)
    w, U = leading(P, k)
    answer = result.state.answer
    assert largest_angle(answer.G, U) <= 1e-6
    np.testing.assert_allclose(answer.theta, w, rtol=1e-9)
    assert answer.cost == pytest.approx(0.5 * (2 * k - w.sum()), rel=1e-6)
    np.testing.assert_allclose(answer.G.T @ answer.G, np.eye(k), atol=1e-9)
    np.testing.assert_allclose(np.sum(answer.G * (P @ answer.G), axis=0), w, rtol=1e-9)  # in their order
    for name, X in zip(("0", "1"), views, strict=True):
        said = X @ answer.Q[name] - answer.offset[name]
        B = X - X.mean(axis=0) if options.get("center", True) else X
        B = B / B.std(axis=0) if options.get("scale") else B
        tall = np.vstack([B, np.sqrt(options.get("ridge", 0.0)) * np.eye(B.shape[1])])
        want = B @ np.linalg.lstsq(tall, np.vstack([answer.G, np.zeros((B.shape[1], k))]))[0]
        np.testing.assert_allclose(said, want, atol=1e-8)
        if options.get("center", True):
            for j in range(2):
                corr = np.corrcoef(said[:, j], answer.G[:, j])[0, 1]
                assert answer.correlations[name][j] == pytest.approx(corr, abs=1e-8)
        explained = np.linalg.norm(answer.G.T @ B) ** 2 / np.linalg.norm(B) ** 2
        assert answer.explained[name] == pytest.approx(explained, rel=1e-9)


@pytest.mark.parametrize("local", ["gradient", "sgd"])
def test_inexact_local_solvers_come_to_the_same_answer(local: str) -> None:
    """Of well-conditioned views: full gradients to rounding error, batches to the noise of the batches."""
    rng = np.random.default_rng(3)
    common = rng.normal(size=(200, 2))
    views = [np.hstack([common + 0.2 * rng.normal(size=(200, 2)), rng.normal(size=(200, 2))]) for _ in range(3)]
    result = go(AltMaxVar(k=2, tol=1e-10, local=local, batch=100, steps=10), views, rounds=60)
    angle = largest_angle(result.state.answer.G, leading(projectors(views), 2)[1])
    assert angle < (1e-6 if local == "gradient" else 0.1)


def test_the_slope_keeps_short_local_steps_from_looking_finished() -> None:
    """One gradient step leaves M nearly in the span of G: only (23)'s other blocks show that it is not done."""
    views = paper(J=100, N=8, D=5)
    told: list[float] = []
    go(AltMaxVar(k=2, tol=0, local="gradient", steps=1), views, 5, callback=lambda i: told.append(i.metrics["kkt"]))
    assert min(told) > 1e-4


def test_sparse_views_have_the_answer_of_dense_ones() -> None:
    rng = np.random.default_rng(2)
    Z = rng.normal(size=(300, 3)) * (rng.random((300, 3)) < 0.3)
    dense = [
        Z @ (rng.normal(size=(3, 40)) * (rng.random((3, 40)) < 0.2)) + (rng.random((300, 40)) < 0.03) for _ in range(3)
    ]
    server = MaxVarKrylov(k=2, tol=1e-9, ridge=0.5)
    result = go(server, [sp.csr_array(X) for X in dense])
    assert largest_angle(result.state.answer.G, leading(projectors(dense, 0.5), 2)[1]) <= 1e-6


def test_krylov_needs_nine_rounds_where_the_alternation_needs_hundreds() -> None:
    """Figures 3 to 5, (J, N, D, K, I) = (500, 25, 20, 5, 3): rounds to 1.5·v*."""
    views = paper()
    P = projectors(views)
    w, U = leading(P, 5)
    best = 0.5 * (15 - w.sum())

    def rounds(server: Any, most: int, channel: Channel | None = None) -> int:
        reached: list[bool] = []
        go(server, views, most, channel, callback=lambda info: reached.append(cost(info.estimate) <= 1.5 * best))
        return reached.index(True) + 1 if any(reached) else most + 1

    def cost(G: np.ndarray) -> float:
        return 0.5 * (15 - float(np.sum(G * (P @ G))))

    lossless = Channel(up=pack(), down=pack())
    assert rounds(MaxVarKrylov(k=5, tol=1e-8), 20) <= 9
    assert rounds(MaxVarKrylov(k=5, tol=1e-6, rounded=True), 20, lossless) <= 9
    assert rounds(MaxVarDavidson(k=5, tol=1e-4, rounded=True), 20, lossless) <= 3
    assert rounds(MaxVarKrylov(k=5, tol=1e-3, rounded=True, width="auto"), 20, lossless) == 1  # and the opening
    twice = MaxVarKrylov(k=5, tol=1e-3, rounded=True, width="auto", local_rank=15)
    assert rounds(twice, 20, lossless) == 1
    assert rounds(AltMaxVar(k=5, tol=0), 100) > 100
    for server in (MaxVarKrylov(k=5, tol=1e-9), MaxVarDavidson(k=5, tol=1e-9)):
        assert largest_angle(go(server, views, 30).state.answer.G, U) <= 1e-6


def test_a_second_operator_points_where_the_first_is_slow() -> None:
    """Sparse views agree a little in many directions by chance: the leading parts of the views say where to look."""
    rng = np.random.default_rng(5)

    def sparse(rows: int, columns: int, density: float) -> sp.csr_array:
        return sp.random_array((rows, columns), density=density, rng=rng, data_sampler=rng.normal, format="csr")

    Z = sparse(500, 25, 0.03)
    views = [(Z @ sparse(25, 80, 0.03) + 0.1 * sparse(500, 80, 0.015)).toarray() for _ in range(3)]
    P = projectors(views)
    best = leading(P, 5)[0].sum()

    def missing(local_rank: int | None) -> list[float]:
        seen: list[float] = []
        server = MaxVarKrylov(k=5, tol=1e-5, rounded=True, width=20, local_rank=local_rank)
        lossless = Channel(up=pack(), down=pack())
        go(
            server,
            views,
            5,
            lossless,
            callback=lambda info: seen.append(best - np.sum(info.estimate * (P @ info.estimate))),
        )
        return seen

    once, twice = missing(None), missing(25)
    assert twice[2] <= 0.5 * once[2]
    assert twice[-1] <= 0.1 * once[-1]


def test_three_bits_keep_the_rate() -> None:
    """From an MVLSA start, exact local solver: rounds to 1.5·v* within 5 %, at less than a tenth of the bytes."""
    views = paper()
    P = projectors(views)
    best = 0.5 * (15 - leading(P, 5)[0].sum())
    found = {}
    for bits in (None, 3):
        costs: list[float] = []

        def watch(info: Info, costs: list[float] = costs) -> None:
            costs.append(0.5 * (15 - float(np.sum(info.estimate * (P @ info.estimate)))))

        server = CuteMaxVar(k=5, tol=0, start="mvlsa", rank=10)
        result = go(server, views, 120, cute(bits) if bits else None, callback=watch)
        reached = next(i for i, cost in enumerate(costs, 1) if cost <= 1.5 * best)
        found[bits] = reached, result.ledger.bytes_up + result.ledger.bytes_down
    assert abs(found[3][0] - found[None][0]) <= 0.05 * found[None][0]
    assert found[3][1] < 0.1 * found[None][1]


def test_the_channel_is_the_papers_memory_and_error_feedback() -> None:
    """Lines 20 to 32 written out with the two memories, against the run through delta(quantize(3))."""
    views = easy()
    told: list[np.ndarray] = []
    go(CuteMaxVar(k=2, tol=0), views, 4, cute(3, first=IDENTITY), callback=lambda info: told.append(info.estimate))
    B = [X - X.mean(axis=0) for X in views]
    stage = quantize(3)

    def coded(name: str, x: np.ndarray, rng: Streams) -> np.ndarray:
        return stage.decode(stage.encode({name: x}, (), rng)[0], ())[0][name]

    seed, M_hat = 3, []
    for i, b in enumerate(B):
        Q = Streams(seed, 0, 2, str(i))("Q").normal(size=(b.shape[1], 2))
        M_hat.append(b @ Q * (np.sqrt(2) / np.linalg.norm(b @ Q)))
    U, _, Vt = np.linalg.svd(sum(M_hat), full_matrices=False)
    G = G_hat = U @ Vt
    for r in range(1, 4):
        if r > 1:
            G_hat = G_hat + coded("G", G - G_hat, Streams(seed, r, 0, "@server"))  # lines 30 to 32
        for i, b in enumerate(B):
            M = b @ np.linalg.lstsq(b, G_hat)[0]
            M_hat[i] = M_hat[i] + coded("M", M - M_hat[i], Streams(seed, r, 0, str(i)))  # lines 23 to 25
        Y = sum(M_hat) - sum(M_hat).mean(axis=0)  # (15)
        U, _, Vt = np.linalg.svd(Y, full_matrices=False)
        G = U @ Vt  # (16)
        np.testing.assert_allclose(told[r - 1], G, atol=1e-8)


def test_the_proximal_term_of_a_round_by_hand() -> None:
    views, told = easy(), []
    go(CuteMaxVar(k=2, tol=0, alpha=0.3), views, 3, callback=lambda info: told.append(info.estimate))
    Y = projectors(views) @ told[0] + told[0] / 0.3  # (15)
    U, _, Vt = np.linalg.svd(Y, full_matrices=False)
    np.testing.assert_allclose(told[1], U @ Vt, atol=1e-9)  # (16)


def test_mvlsa_is_exact_at_full_rank_and_approximate_below() -> None:
    views = easy()
    w, U = leading(projectors(views), 2)
    full = go(Mvlsa(k=2, rank=9), views, 1).state.answer
    low = go(Mvlsa(k=2, rank=3), views, 1).state.answer
    assert largest_angle(full.G, U) < 0.02  # 8 bits a number
    assert 2 - w.sum() / 2 <= full.cost < 1.01 * (2 - w.sum() / 2) < low.cost


def test_rows_held_out_stop_the_run_and_the_best_is_kept() -> None:
    rng = np.random.default_rng(4)
    common = rng.normal(size=(150, 3))
    views = [common @ rng.normal(size=(3, 8)) + 0.8 * rng.normal(size=(150, 8)) for _ in range(3)]
    data = [Entities(X[:100], held_out=X[100:]) for X in views]
    for kind in (AltMaxVar, MaxVarKrylov, MaxVarDavidson):
        server = kind(k=3, tol=0, patience=3)
        result = go(server, data, rounds=100)
        watch, answer = result.state.watch, result.state.answer
        assert result.converged
        assert result.state.t == watch.round + 3
        shown = [X[100:] @ answer.Q[str(i)] - answer.offset[str(i)] for i, X in enumerate(views)]
        assert alignment_accuracy(shown) == pytest.approx(watch.accuracy)  # the answer is that of the best round


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (MaxVarKrylov, {"width": "auto", "local_rank": 0}, "local_rank must be None or a whole number of at least 1"),
        (MaxVarKrylov, {"width": "auto", "local_rank": True}, "local_rank must be None or a whole number"),
        (MaxVarKrylov, {"local_rank": 10}, "local_rank needs the wide form"),
        (MaxVarDavidson, {"local_rank": 10}, "local_rank needs the wide form"),
        (KeptMaxVar, {"width": "auto", "local_rank": 10}, "width and local_rank are for MaxVarKrylov"),
        (KeptMaxVar, {"width": "auto"}, "width and local_rank are for MaxVarKrylov"),
    ],
)
def test_a_second_operator_where_there_is_none(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        kind(k=2, **options)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([np.ones((9, 3)), np.eye(9)[:, :3]], r"client '0'.*All rows of this view are equal"),
        (
            [np.eye(9)[:, :3], np.full((9, 2), np.nan)],
            r"client '1'.*NaN .* in 9 of 9 rows .*affected: 18",
        ),
        ([np.eye(9)[:, :3], np.eye(8)[:, :3]], r"client '0' has 9 rows and client '1' has 8"),
        ([np.eye(9)[:, :3], np.eye(9)], r"client '1'.*9 features of this view fit any representation.*or ridge > 0"),
        ([np.eye(9)[:, :1], np.eye(9)[:, 1:2]], r"n_components must be from 1 to 2, .* but is 3"),
    ],
    ids=["constant", "nan", "rows", "wide", "rank"],
)
@pytest.mark.parametrize(
    "server",
    [AltMaxVar(k=3), MaxVarKrylov(k=3), MaxVarDavidson(k=3), Mvlsa(k=3)],
    ids=["alt", "krylov", "davidson", "mvlsa"],
)
def test_bad_views_are_refused_at_the_opening(server: Any, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        go(server, data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local": "adam"}, "local must be"),
        ({"local": "sgd"}, "need batch_size of at least 1"),
        ({"alpha": 0.0}, "alpha must be above 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AltMaxVar(**options)


@pytest.mark.parametrize("columns", [0, -1, 2.5, True, "x"])
@pytest.mark.parametrize("kind", [MaxVarDavidson, Davidson])
def test_columns_that_are_none(kind: Any, columns: Any) -> None:
    with pytest.raises(InputError, match="columns must be None or a whole number of at least 1, but is"):
        kind(columns=columns)


def test_ids_that_agree_pass_and_the_server_sees_one_digest_of_each_client() -> None:
    X, Y = easy(J=30)
    names = [f"patient {i}" for i in range(30)]
    result = go(AltMaxVar(k=1, tol=0), [Entities(X, names), Entities(Y, np.array(names))], 1)
    tasks = [row["task"] for row in result.ledger.rows() if row["event"] == "exchange"]
    assert tasks[:2] == ["identify", "open_view"]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 0, *range(2, 30)], r"2 of 30 rows differ between clients '0' and '1'. They are the same ids in another"),
        ([*range(1, 30), 99], r"30 of 30 rows differ .* They share 29 ids"),
        (range(29), r"client '1': There must be one id for each of the 30 rows, but there are 29"),
        (None, r"client '1' has none"),
    ],
    ids=["order", "shifted", "short", "none"],
)
def test_ids_that_differ_are_refused_with_their_number(ids: Any, message: str) -> None:
    X, Y = easy(J=30)
    with pytest.raises(InputError, match=message):
        go(AltMaxVar(k=1), [Entities(X, range(30)), Entities(Y, ids)])


def test_the_digests_depend_on_the_run_and_on_the_secret() -> None:
    X = easy(J=30)[0]

    def digest(secret: str, key: int) -> bytes:
        client = ViewClient(Entities(X, range(30), secret))
        arrays = {"key": np.full(32, key, dtype=np.uint8)}
        return client.identify(ViewState(), arrays, Streams(0, 0, 0, "a"))[1]["d"].tobytes()

    assert digest("", 1) == digest("", 1)
    assert len({digest("", 1), digest("", 2), digest("s", 1), digest("s", 2)}) == 4
    with pytest.raises(InputError, match="30 of 30 rows differ"):  # a client with another secret is another key
        go(AltMaxVar(k=1), [Entities(X, range(30), "s"), Entities(X, range(30), "t")])
