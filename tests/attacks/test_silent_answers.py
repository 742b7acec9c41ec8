"""Whether a site answers does not depend on its numbers, nor on what it finds when it looks at its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedspan import Secure
from fedspan.algorithms import AltMaxVar, DeepMaxVar, Krylov, MaxVarKrylov
from fedspan.algorithms import _operator as operator
from fedspan.algorithms.gcca.deep import DeepView
from fedspan.algorithms.gcca.entities import Entities
from fedspan.core.rng import Streams
from fedspan.core.run import run
from fedspan.engines import InProcess
from fedspan.errors import InputError
from fedspan.secure import fixed

defences = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])


def refuse_many_steps(Y: np.ndarray, step: np.ndarray) -> np.ndarray:
    """As it was."""
    if np.abs(Y).max() >= 2**52 * step:
        raise InputError("The products are too large for this rounding step")
    return np.asarray(np.rint(Y / step)).astype(np.int64)


@defences
def test_a_step_of_the_servers_does_not_find_the_size_of_a_product(
    defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that lies about the step of a grid asks whether a site's largest product is above 2^52 of them."""
    if not defended:
        monkeypatch.setattr(operator, "_to_steps", refuse_many_steps)
    X = np.random.default_rng(0).normal(size=(30, 4))
    client = Krylov(k=2, rounded=True, center=False).client(X)  # type: ignore[call-arg]
    state = client.init()
    Z = np.eye(4, 2).astype(np.int8)

    def is_answered(step: float) -> bool:
        arrays = {"Z": Z, "scale": np.ones(2), "step": np.array(step)}
        try:
            _, reply = client.multiply_on_grid(state, arrays, Streams(0, 1, 0, "a"))  # type: ignore[attr-defined]
        except InputError:
            return False
        lanes = fixed.to_lanes(reply, 3)
        assert fixed.has_saturated(lanes) == (step < 1e-16)  # in a sum it is only said that somebody's did not fit
        return True

    low, high = 1e-30, 1e-6
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if is_answered(middle) else (middle, high)
    largest = np.abs((X.T @ X)[:, :2]).max()
    assert (abs(high * 2**52 / largest - 1) < 1e-6) is not defended
    assert all(is_answered(step) for step in (0.0, 5e-324)) is defended


def test_an_honest_server_refuses_a_step_that_is_too_fine_before_it_asks() -> None:
    X = np.random.default_rng(0).normal(size=(30, 4))
    with pytest.raises(InputError, match="too large for this rounding step"):
        run(Krylov(k=2, rounded=True, tol=1e-17), InProcess([X[:15], X[15:]]), rounds=5, seed=0)


def test_a_view_that_says_nothing_is_told_by_its_rank_and_not_by_a_refusal() -> None:
    """A lying server may ask for a masked sum of ranks, and must not learn of single sites by who refuses."""
    client: Any = MaxVarKrylov(k=1).client(Entities(np.ones((9, 3))))  # type: ignore[call-arg]
    rng = Streams(0, 0, 0, "a")
    assert client.open_view(client.init(), {}, rng)[1] == {"features": 3, "rank": 0, "useless": 1}
    full: Any = MaxVarKrylov(k=1).client(Entities(np.eye(4)))  # type: ignore[call-arg]
    assert int(full.open_view(full.init(), {}, rng)[1]["rank"]) == 3


def look(ids: Any, secure: Secure | None, rows: tuple[int, ...] = (6, 6, 6)) -> str:
    """How a run on views ends whose clients have these ids."""
    verified = secure is not None and secure.verified
    server: Any = DeepMaxVar(k=1) if verified else AltMaxVar(k=1)
    clients: dict[str, Any] = {}
    for i, (own, n) in enumerate(zip(ids, rows, strict=True)):
        X = np.random.default_rng(i).normal(size=(n, 2))
        clients[f"c{i}"] = DeepView(X, object, ids=own) if verified else Entities(X, own)  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        run(server, InProcess(clients), rounds=1, seed=0, secure=secure)
    return str(caught.value)


SAME, TURNED = list("abcdef"), list("bacdef")


@pytest.mark.parametrize("secure", [Secure(), Secure(verified=True)], ids=["secure", "verified"])
def test_under_secure_sums_a_mismatch_is_said_but_not_whose_it_is(secure: Secure) -> None:
    assert look([SAME, SAME, TURNED], None).startswith("Each row must be the same entity in every view, but 2 of 6")
    ends = [look([*ids], secure) for ids in ([SAME, SAME, TURNED], [TURNED, SAME, SAME])]
    assert ends[0] == ends[1]
    assert "the ids of the 3 clients differ, or their order does. Secure sums do not show at whom" in ends[0]
    few = look([SAME, SAME, SAME[:5]], secure, rows=(6, 6, 5))
    assert "the 3 clients have different numbers of rows, 17 in all" in few
    assert "2 of 3 clients give them" in look([SAME, SAME, None], secure)
