"""Krylov on a grid under secure sums: few bits, the same result to the bit, and columns asked for again if need be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedspan.algorithms import Krylov
from fedspan.algorithms.gcca.maxvar_krylov import MaxVarKrylov
from fedspan.algorithms.spectral import narrow_sums
from fedspan.channel import Channel, pack
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Array, Ask, Narrow, Replies, Sum
from fedspan.core.run import run
from fedspan.engines import Faults, InProcess
from fedspan.secure.masking import Secure
from fedspan.secure.packing import find_widths
from fedspan.secure.session import SecureSession

PACKED = Channel(up=pack(), down=pack())


def rotated(seed: int, m: int, d: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return {f"c{i}": rng.normal(size=(d // 2, d)) / np.sqrt(np.arange(1, d + 1)) @ turn for i in range(m)}


def uneven(seed: int, m: int, d: int) -> dict[str, Array]:
    """Columns whose sizes differ by orders of magnitude, some of them zero."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.normal(0, 2, d)) * (np.arange(d) % 7 > 0)
    return {f"c{i}": rng.normal(size=(d // 2, d)) * sizes * (1 + i) for i in range(m)}


def one_column_rules(seed: int, m: int, d: int) -> dict[str, Array]:
    """Nearly all variance in one column: what is expected of the first round is too little."""
    rng = np.random.default_rng(seed)
    return {f"c{i}": rng.normal(size=(d, d)) * np.where(np.arange(d) == 3, 1e3, 1.0) for i in range(m)}


def solve(clients: Any, **options: Any) -> Any:
    settings: dict[str, Any] = {"rounds": 60, "seed": 1, "channel": PACKED, "secure": Secure()} | options
    faults = settings.pop("faults", None)
    k, width = settings.pop("k", 4), settings.pop("width", None)
    return run(
        Krylov(k=k, tol=1e-6, rounded=True, width=width), InProcess(clients, threads=1, faults=faults), **settings
    )


def widen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide lanes again: what is known of the sums is kept from the session."""
    exchange = SecureSession.exchange
    monkeypatch.setattr(
        SecureSession, "exchange", lambda self, ask, *more: exchange(self, replace(ask, narrow={}), *more)
    )


def count_again(result: Any) -> int:
    """How often something was asked for again."""
    asked = [e for e in result.ledger.events if isinstance(e, Exchange) and e.task == "multiply_on_grid"]
    return len(asked) - int(result.rounds)


@pytest.mark.parametrize("make", [rotated, uneven, one_column_rules])
@pytest.mark.parametrize(
    "mode",
    [{}, {"min_clients": 3}, {"k": 1}, {"width": "auto"}, {"width": 9, "k": 2}],
    ids=["all", "some", "one", "wide", "wider"],
)
def test_the_result_is_that_of_wide_lanes_to_the_bit(
    make: Any, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = make(5, 4, 60)
    narrow = solve(clients, **mode)
    widen(monkeypatch)
    wide = solve(clients, **mode)
    assert narrow.converged
    assert narrow.rounds == wide.rounds
    assert narrow.state.AQt.tobytes() == wide.state.AQt.tobytes()
    assert narrow.state.Z.tobytes() == wide.state.Z.tobytes()
    assert narrow.ledger.bytes_up < wide.ledger.bytes_up


def test_it_takes_less_than_half_of_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And little more than plain sums; benchmarks/secure.py measures how much at 1000 features."""
    clients = rotated(11, 4, 200)
    plain, narrow = (solve(clients, secure=secure) for secure in (None, Secure()))
    widen(monkeypatch)
    assert narrow.ledger.bytes_up < 0.5 * solve(clients).ledger.bytes_up
    assert narrow.ledger.bytes_up < 2 * plain.ledger.bytes_up


def test_the_wide_form_takes_little_more_than_plain_sums() -> None:
    """Its opening and its first block have no product before them to predict them by."""
    for make in (rotated, uneven):
        clients = make(11, 4, 200)
        plain, secure = (solve(clients, secure=protection, width="auto") for protection in (None, Secure()))
        sent = [result.ledger.bytes_up + result.ledger.bytes_down for result in (plain, secure)]
        assert sent[1] < 1.7 * sent[0]


@pytest.mark.parametrize("bits", [3.0, 8.0, 30.0], ids=["a little", "much", "hopeless"])
def test_if_too_few_bits_were_expected_columns_are_asked_for_again(
    bits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = rotated(6, 4, 60)
    want = solve(clients)
    guess = narrow_sums._to_narrow

    def too_narrow(center: Array, rows: Array, columns: Array) -> Narrow:
        return guess(center, rows, columns / 2**bits)

    monkeypatch.setattr(narrow_sums, "_to_narrow", too_narrow)
    got = solve(clients)
    assert count_again(got) >= want.rounds / 2
    assert got.state.Z.tobytes() == want.state.Z.tobytes()


def test_on_a_bad_network_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = rotated(7, 4, 40)
    want = solve(clients)
    got = solve(clients, faults=Faults(lose_request=0.1, lose_reply=0.1), retries=6)
    assert got.state.Z.tobytes() == want.state.Z.tobytes()


def test_through_the_wire_it_is_the_same() -> None:
    clients = rotated(8, 3, 30)
    options: dict[str, Any] = {"rounds": 60, "seed": 1, "channel": PACKED, "secure": Secure()}
    one, other = (run(Krylov(k=3, tol=1e-6, rounded=True), InProcess(clients, wire=w), **options) for w in (0, 1))
    assert one.state.Z.tobytes() == other.state.Z.tobytes()
    assert one.ledger.bytes_up == other.ledger.bytes_up


def test_views_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of GCCA; the weights, which are no sums, are not asked for before the end."""
    rng = np.random.default_rng(9)
    common = rng.normal(size=(120, 3))
    views = {f"v{i}": common @ rng.normal(size=(3, 8)) + rng.normal(size=(120, 8)) for i in range(3)}

    def start() -> Any:
        algorithm = MaxVarKrylov(k=2, tol=1e-9, rounded=True)
        return run(algorithm, InProcess(views), rounds=2, seed=0, channel=PACKED, secure=Secure())

    narrow = start()
    widen(monkeypatch)
    wide = start()
    assert narrow.state.AQt.tobytes() == wide.state.AQt.tobytes()
    assert narrow.ledger.bytes_up < wide.ledger.bytes_up


def test_plain_sums_take_no_notice() -> None:
    """One question in a plain session: the same bytes with and without."""
    Y = np.arange(6).reshape(3, 2)
    ask = Ask("multiply_on_grid", {"Z": Y}, Sum("Y"))
    asked = []
    generator = narrow_sums.ask_near(ask, "Y", Narrow(Y, np.zeros(3, np.int8), np.zeros(2, np.int8)))
    asked.append(next(generator))
    with pytest.raises(StopIteration) as stop:
        generator.send(Replies(("a",), total={"Y": Y + 100}))
    np.testing.assert_array_equal(stop.value.value, Y + 100)
    assert asked[0].everyone
    assert asked[0].arrays is ask.arrays


def test_the_known_part_of_a_product_is_predicted() -> None:
    """With all of M known in the span, nothing is left but rounding: a few bits."""
    rng = np.random.default_rng(10)
    A = rng.normal(size=(50, 20))
    M, Q = A.T @ A, np.linalg.qr(rng.normal(size=(20, 20)))[0]
    V = np.linalg.qr(rng.normal(size=(20, 3)))[0]
    step = 1e-4
    expected = narrow_sums.predict_sum(Q.T, (M @ Q).T, V, step, float(np.trace(M)), 4)
    assert np.abs(expected.center - M @ V / step).max() < 1
    assert expected.center.dtype == np.int64
    assert find_widths(expected.rows, expected.columns).shape == (20, 3)
