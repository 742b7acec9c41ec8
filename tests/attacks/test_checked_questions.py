"""Runs that are not verified: questions that no server of the algorithm would ask are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from verified_world import SITES, Refused, World, replace_block, second_moments

from fedspan.algorithms import Krylov, NoisyPower
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.channel import Channel
from fedspan.core.protocol import Ask, Sum
from fedspan.engines.questions import QuestionCheck
from fedspan.errors import InputError
from fedspan.secure.masking import Secure

AT, ONE_HOT = (2, 0), np.eye(6)[:, 3:5]
defences = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])


@pytest.fixture
def server(tmp_path: Path) -> Any:
    return World(tmp_path, verified=False, sites=None).server(secure=Secure())


@defences
@pytest.mark.parametrize(
    ("block", "why"),
    [
        (ONE_HOT * 1e9, "not orthonormal"),
        (ONE_HOT[:, :1] @ np.ones((1, 2)), "not orthonormal"),
        ((ONE_HOT * 2**32).astype(np.int64), "wide integers"),
        (ONE_HOT.astype(np.float32), "must be a block of float64"),
    ],
    ids=["huge", "one column twice", "integers", "float32"],
)
def test_a_block_that_is_not_orthonormal(
    server: Any, block: np.ndarray, why: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if defended:
        with pytest.raises(Refused, match=why):
            server.drive(replace_block(AT, block))
        return
    monkeypatch.setattr(QuestionCheck, "check", lambda self, message, arrays: None)
    got = server.drive(replace_block(AT, block), until=(3, 0))[AT].total["Y"]
    np.testing.assert_allclose(got, second_moments(*SITES) @ block, rtol=1e-9, atol=1e-3)


@defences
@pytest.mark.parametrize("round", [0, 3])
def test_another_settle(server: Any, round: int, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second mean and scale, in the opening or later."""
    if not defended:
        monkeypatch.setattr(QuestionCheck, "check", lambda self, message, arrays: None)
    server.drive(until=(1, 0) if round == 0 else AT)
    again = Ask("settle", {"scale": np.full(6, 1e-3)}, Sum("n", "energy", "features"))
    if defended:
        with pytest.raises(Refused, match="belongs to the opening of a run"):
            server.ask(again, (round, 7))
    else:
        assert server.ask(again, (round, 7)).total["energy"] > 1e6


@defences
def test_a_round_that_is_over(server: Any, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server.drive(until=AT)
    back = Ask("multiply", {"Z": np.linalg.qr(ONE_HOT)[0]}, Sum("Y"))
    if not defended:
        monkeypatch.setattr(QuestionCheck, "check", lambda self, message, arrays: None)
    with pytest.raises(Refused, match="out of order" if defended else "was masked already, or is over"):
        server.ask(back, (0, 9))


def test_an_honest_run_is_answered(server: Any) -> None:
    server.drive()
    assert server.algorithm.done(server.state)


def test_a_block_of_integers_does_not_wrap_the_check_of_a_private_site() -> None:
    """2^32 squared is 0 modulo 2^64: as integers, such a block would pass for a short one."""
    client = PrivateClient(np.ones((4, 3)), row_norm=1.0)
    block = np.eye(3, dtype=np.int64) * 2**32
    assert np.linalg.norm((block.T @ block).astype(float), 2) <= 1  # what the check saw
    with pytest.raises(InputError, match="must be a block of float64"):
        client.project(client.init(), {"Z": block}, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", [Krylov(k=2, rounded=True), NoisyPower(k=2, d=6)])
def test_blocks_are_declared(algorithm: Any) -> None:
    assert QuestionCheck(algorithm, Channel(), 5).how
