"""Runs that are not verified: questions that no server of the algorithm would ask are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from verified_world import AT, SITES, Refused, World, replace_block, rows, second_moments, tell

from fedspan.algorithms import FedSgd, Krylov, NoisyPower
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.channel import Channel
from fedspan.core.protocol import Ask, Sum
from fedspan.deployment.site_rules.asked_questions import QuestionsOnDisk
from fedspan.engines.loopback import Call, Deliver
from fedspan.engines.questions import AGAIN, AskedOnce, CourseCheck, QuestionCheck
from fedspan.errors import InputError, ProtocolError
from fedspan.numerics.swish import Swish
from fedspan.secure.masking import Secure

ONE_HOT = np.eye(6)[:, 3:5]
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
        with pytest.raises(
            Refused, match=r"tells mean, but this question tells others|does not ask for 'settle' in round 3"
        ):
            server.ask(again, (round, 7))
    else:
        assert server.ask(again, (round, 7)).total["energy"] > 1e6


@defences
def test_a_unit_for_all_but_one(defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one are told to divide by 2^400, so that sums would be of one site alone. Masks know what was told."""
    if not defended:
        monkeypatch.setattr("fedspan.engines.questions.UNIT", ())
    mean, checks = np.zeros(6), {}
    for name, unit in (("ada", None), ("bo", np.array(2.0**400)), ("cy", np.array(2.0**400))):
        check = CourseCheck(Krylov(k=2).course())
        check.check(0, "count", {})
        check.check(0, "settle", {"mean": mean})
        if unit is not None:
            check.check(0, "settle", {"mean": mean, "unit": unit})
        checks[name] = check.told
    assert checks["bo"] == checks["cy"]
    assert (checks["ada"] != checks["bo"]) == defended


def test_only_one_unit_is_told_in_a_run() -> None:
    check, mean = CourseCheck(Krylov(k=2).course()), np.zeros(6)
    check.check(0, "count", {})
    check.check(0, "settle", {"mean": mean, "unit": np.array(2.0)})
    with pytest.raises(ProtocolError, match="The unit in 'settle' is not the one that was told before"):
        check.check(0, "settle", {"mean": mean, "unit": np.array(4.0)})


@defences
def test_a_round_that_is_over(server: Any, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server.drive(until=AT)
    back = Ask("multiply", {"Z": np.linalg.qr(ONE_HOT)[0]}, Sum("Y"))
    if not defended:
        monkeypatch.setattr(QuestionCheck, "check", lambda self, message, arrays: None)
    with pytest.raises(Refused, match="out of order" if defended else "was masked already, or is over"):
        server.ask(back, (0, 9))


BLOCKS = [np.eye(6)[:, at : at + 2] for at in (0, 2, 4)]
SUMS = {"count": Sum("n", "total"), "spread": Sum("squares"), "settle": Sum("n", "energy", "features")}


def switch_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all other checks of questions on."""
    monkeypatch.setattr(CourseCheck, "check", lambda self, round, task, question: None)


@defences
@pytest.mark.parametrize("how", ["in one round", "by going back"])
def test_more_questions_than_the_algorithm_has(
    tmp_path: Path, how: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the one block of round 1, enough of them for the whole matrix of second moments."""
    world = World(tmp_path, verified=False, sites=None)
    if not defended:
        switch_off(monkeypatch)

    def ask_all() -> list[np.ndarray]:
        got, server = [], world.server(secure=Secure())
        for i, block in enumerate([*BLOCKS, *(np.linalg.qr(block + 0.1)[0] for block in BLOCKS)]):
            if how == "by going back" and i:
                server = world.server(secure=Secure(), run=server.run)
            if how == "by going back" or not i:
                server.drive(until=(1, 0))
            got.append(server.ask(Ask("multiply", {"Z": block}, Sum("Y")), (1, i)).total["Y"])
        return got

    if defended:
        with pytest.raises(Refused, match="'multiply' is asked in at most 1 way in round 1, but comes in another one"):
            ask_all()
    else:
        np.testing.assert_allclose(np.hstack(ask_all()[:3]), second_moments(*SITES), rtol=1e-9, atol=1e-9)


@defences
def test_more_rounds_than_an_algorithm_asks_in(tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rounds` of an opening is the server's word, but a batch is asked for in no more rounds than the options say."""
    course = FedSgd(Swish(2, 2), rounds=3).course()
    check = CourseCheck(course)
    if not defended:
        switch_off(monkeypatch)
    check.check(0, "open", {})
    answered = 0
    for round in range(1, 100):
        try:
            check.check(round, "gradient", {"omega": np.full(4, float(round))})
        except ProtocolError as error:
            assert "at most 3 rounds" in str(error)  # noqa: PT017
            break
        answered += 1
    assert answered == (3 + AGAIN if defended else 99)


@defences
@pytest.mark.parametrize(
    ("first", "ask", "place", "why"),
    [
        ((), Ask("multiply", {"Z": BLOCKS[0]}, Sum("Y")), (1, 0), "asked after 'settle' only"),
        ((), Ask("settle", {"mean": np.zeros(6)}, SUMS["settle"]), (0, 0), "asked after 'count' only"),
        (("count",), Ask("multiply", {"Z": BLOCKS[0]}, Sum("Y")), (0, 1), "does not ask for 'multiply' in the opening"),
        (("count", "settle"), Ask("count", {}, SUMS["count"]), (0, 2), "'count' is out of order"),
        (("count", "settle"), Ask("count", {}, SUMS["count"]), (1, 0), "does not ask for 'count' in round 1"),
    ],
)
def test_a_task_out_of_order(
    server: Any, first: tuple[str, ...], ask: Ask, place: Any, why: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of rows that were not centered show their means, for example."""
    if not defended:
        switch_off(monkeypatch)
    server.drive(until=(0, len(first)) if len(first) < 2 else (1, 0))
    if defended:
        with pytest.raises(Refused, match=why):
            server.ask(ask, place)
    else:
        got = server.ask(ask, place).total
        if ask.task == "multiply" and not first:
            raw = second_moments(*SITES, mean=np.zeros(6))
            np.testing.assert_allclose(got["Y"], raw @ BLOCKS[0], rtol=1e-9, atol=1e-9)


def scaled(tmp_path: Path, **options: Any) -> Any:
    world = World(tmp_path, verified=False, sites=None)
    return world.server(secure=Secure(), algorithm=Krylov(k=2, scale=True, **options))


@defences
@pytest.mark.parametrize("after", ["spread", "settle"])
def test_a_second_mean(tmp_path: Path, after: str, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares around two points differ by a multiple of the sums, and a mean far away shows how many rows there are."""
    server = scaled(tmp_path)
    if not defended:
        switch_off(monkeypatch)
    server.drive(until=(0, 2) if after == "spread" else (1, 0))
    far = {"mean": np.full(6, 1e3), "scale": np.ones(6)}
    if after == "settle":
        ask, place, why = Ask("spread", {"mean": far["mean"]}, SUMS["spread"]), (0, 3), "out of order"
    else:
        ask, place, why = Ask("settle", far, SUMS["settle"]), (0, 2), "mean in 'settle' is not the one that was told"
    if defended:
        with pytest.raises(Refused, match=why):
            server.ask(ask, place)
    else:
        assert server.ask(ask, place).total[SUMS[ask.task].names[-2 if after == "spread" else 0]].max() > 1e7


@defences
@pytest.mark.parametrize(
    ("scale", "why"),
    [
        (np.r_[np.ones(5), -1.0], "above 0"),
        (np.r_[np.ones(5), 0.0], "above 0"),
        (np.r_[np.ones(5), np.inf], "finite"),
        (np.ones(6, dtype=np.float32), "float64"),
    ],
)
def test_a_scale_that_is_none(
    tmp_path: Path, scale: np.ndarray, why: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = scaled(tmp_path)
    if not defended:
        monkeypatch.setattr(QuestionCheck, "check", lambda self, message, arrays: None)
    heard = server.drive(until=(0, 2))
    mean = heard[(0, 0)].total["total"] / heard[(0, 0)].total["n"]
    ask = Ask("settle", {"mean": mean, "scale": scale}, SUMS["settle"])
    if defended:
        with pytest.raises(Refused, match=why):
            server.ask(ask, (0, 2))
    elif np.all(scale != 0):
        assert server.ask(ask, (0, 2)).total["n"] == 80


@defences
def test_a_scale_that_isolates_a_column(server: Any, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm that does not scale has no scale to tell: one would blow up whichever column the server likes."""
    if not defended:
        switch_off(monkeypatch)
    heard = server.drive(until=(0, 1))
    mean = heard[(0, 0)].total["total"] / heard[(0, 0)].total["n"]
    one = {"mean": mean, "scale": np.r_[np.full(5, 1e9), 1e-3]}
    if defended:
        with pytest.raises(Refused, match="tells mean, but this question tells others"):
            server.ask(Ask("settle", one, SUMS["settle"]), (0, 1))
    else:
        energy = server.ask(Ask("settle", one, SUMS["settle"]), (0, 1)).total["energy"]
        np.testing.assert_allclose(energy, second_moments(*SITES)[5, 5] * 1e6, rtol=1e-9)  # of the last column alone


@defences
def test_a_scale_told_to_all_but_one(tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one divide by 1e100, so that the sum would be of one site alone: the masks know what was told."""
    poison = tell(("bo", "cy", "dee"), "settle", lambda arrays: {**arrays, "scale": np.full(6, 1e100)})
    world = World(tmp_path, verified=False, sites=None)
    server = world.server(secure=Secure(), algorithm=Krylov(k=2, scale=True), tamper=poison)
    if not defended:
        monkeypatch.setattr(QuestionCheck, "bind", lambda self, asked: asked)
    server.drive(until=(0, 1))
    mean = np.vstack([rows(site) for site in SITES]).mean(axis=0)
    server.ask(Ask("spread", {"mean": mean}, SUMS["spread"]), (0, 1))
    with pytest.raises(Refused, match="did not cancel"):  # they were asked different things; the liar does not mind
        server.ask(Ask("settle", {"mean": mean, "scale": np.ones(6)}, SUMS["settle"]), (0, 2))
    for i, block in enumerate(BLOCKS):
        ask = Ask("multiply", {"Z": block}, Sum("Y"))
        if defended:
            with pytest.raises(Refused, match="did not cancel"):
                server.ask(ask, (1 + i, 0))
        else:
            alone = server.ask(ask, (1 + i, 0)).total["Y"]
            np.testing.assert_allclose(alone, second_moments("ada") @ block, rtol=1e-9, atol=1e-9)


@defences
def test_other_openings_to_some(tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def tamper(call: Call, deliver: Deliver) -> Any:
        if call.method == "open" and call.site == "bo" and isinstance(call.message, str):
            call = call._replace(message=json.dumps({**json.loads(call.message), "seed": 77}))
        return deliver(call)

    server = World(tmp_path, verified=False, sites=None).server(secure=Secure(), tamper=tamper)
    if defended:
        with pytest.raises(Refused, match="did not cancel"):
            server.drive()
    else:
        monkeypatch.setattr(QuestionCheck, "bind", lambda self, asked: asked)
        server.drive()
        assert server.algorithm.done(server.state)


def test_a_retry_is_no_new_question(server: Any) -> None:
    """After a lost answer the same is asked again, under another number; as often as it takes."""
    server.drive(until=AT)
    block = np.linalg.qr(np.arange(12.0).reshape(6, 2) ** 2 + np.eye(6, 2))[0]
    sums = [server.ask(Ask("multiply", {"Z": block}, Sum("Y")), (2, i)).total["Y"] for i in range(20)]
    for one in sums:
        np.testing.assert_array_equal(one, sums[0])


def test_a_run_that_goes_on_may_differ_a_little(tmp_path: Path) -> None:
    """Once or twice a run comes back with another rounding, or without a client: that must not end it."""
    world = World(tmp_path, verified=False, sites=None)
    server = world.server(secure=Secure())
    for i in range(1 + AGAIN):
        server = world.server(secure=Secure(), run=server.run)
        server.drive(until=(1, 0))
        server.ask(Ask("multiply", {"Z": np.linalg.qr(BLOCKS[0] + i)[0]}, Sum("Y")), (1, 0))
        server.ask(Ask("multiply", {"Z": BLOCKS[1]}, Sum("Y")), (2, 0))
    server = world.server(secure=Secure(), run=server.run)
    server.drive(until=(1, 0))
    with pytest.raises(Refused, match="in at most 1 way in round 1"):
        server.ask(Ask("multiply", {"Z": np.linalg.qr(BLOCKS[0] + AGAIN + 1)[0]}, Sum("Y")), (1, 0))


def test_what_was_asked_is_its_owners_alone_and_a_torn_line_is_none(tmp_path: Path) -> None:
    record = QuestionsOnDisk(tmp_path / "run" / "0")
    asked = [AskedOnce(0, "count", b"1" * 32), AskedOnce(1, "multiply", b"2" * 32)]
    for one in asked:
        record.add(one)
    with record.path.open("a") as file:
        file.write("\n2 multiply abcd")
    record.add(asked[0])
    assert list(QuestionsOnDisk(tmp_path / "run" / "0").load()) == [*asked, asked[0]]
    assert record.path.stat().st_mode & 0o777 == 0o600


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
