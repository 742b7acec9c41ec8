"""The loop over rounds: what it counts, tells, keeps, and when it stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy import CLIENTS, Adder

from fedspan.channel import Channel, quantize
from fedspan.core.checkpoint import Checkpoint
from fedspan.core.ledger import Exchange, Ledger, Note, RoundEnd, Started
from fedspan.core.participation import Participation
from fedspan.core.protocol import Sum
from fedspan.core.run import Info, run
from fedspan.engines import InProcess
from fedspan.errors import CheckpointError, ClientError, InputError, ProtocolError


def start(algorithm: Any = None, clients: Any = CLIENTS, **options: Any) -> Any:
    options = {"rounds": 3, "seed": 1} | options
    return run(algorithm or Adder(), InProcess(clients, threads=1), **options)


def test_rounds_are_run_counted_and_told() -> None:
    told: list[Info] = []
    result = start(rounds=4, callback=told.append)
    assert (result.rounds, result.converged, result.ledger.rounds) == (4, False, 4)
    assert result.state.total[0] == 4 * (1 + 2 + 3)
    assert [info.round for info in told] == [1, 2, 3, 4]
    assert [info.metrics["t"] for info in told] == [1, 2, 3, 4]
    assert told[-1].estimate is result.state.total


def test_the_algorithm_says_when_it_is_done() -> None:
    result = start(Adder(stop=2), rounds=100)
    assert (result.rounds, result.converged) == (2, True)


def test_no_rounds_is_the_opening_only() -> None:
    result = start(rounds=0)
    assert result.rounds == 0
    assert [type(e) for e in result.ledger.events] == [Started, RoundEnd]


def test_every_exchange_is_in_the_ledger() -> None:
    events = start(Adder(exchanges=2), rounds=2).ledger.events
    asked = [(e.round, e.exchange, e.task, e.clients) for e in events if isinstance(e, Exchange)]
    assert asked == [(r, x, "give", ("ada", "bo", "cy")) for r in (1, 2) for x in (0, 1)]
    assert [e.round for e in events if isinstance(e, RoundEnd)] == [0, 1, 2]


@pytest.mark.parametrize("need", [0, -1, 4, 2.5, True])
def test_min_clients_must_be_possible(need: Any) -> None:
    with pytest.raises(InputError, match=rf"min_clients must be a whole number from 1 to 3 .*, but is {need}"):
        start(min_clients=need)


def test_a_client_that_raises_ends_the_run_with_its_name_and_task() -> None:
    with pytest.raises(
        ClientError,
        match=r"'fail' needs answers from 3 clients, but only 2 answered in round 1 in 4 tries \(client 'cy' failed: "
        r"RuntimeError: the disk is gone\)\. Bring the missing clients back and run again, or set min_clients to go on",
    ):
        start(Adder("fail"))


def test_enough_clients_are_enough_and_the_algorithm_hears_who_is_missing() -> None:
    result = start(Adder("fail"), min_clients=2)
    assert result.state.missing == ("cy",)
    assert result.state.total[0] == 3 * (1 + 2)
    (event, *_) = (e for e in result.ledger.events if isinstance(e, Exchange))
    assert event.missing == ("cy",)
    assert event.failures == {"cy": "RuntimeError"}
    assert event.bytes_up[:2] > (0, 0)
    assert event.bytes_up[2] == 0


def test_a_client_that_never_answers_is_given_up_by_name() -> None:
    with pytest.raises(
        ClientError, match=r"'fail' needs answers from 3 clients, but only 2 .* in 31 tries \(client 'cy' failed: Runt"
    ):
        start(Adder("fail", every_client=True), min_clients=2, retries=30)


def test_wrong_input_at_a_client_names_the_client() -> None:
    with pytest.raises(InputError, match=r"^client 'cy': need rows, got none$"):
        start(Adder("complain"), min_clients=1)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("peek", "'peek' is not a declared task"),
        ("leak", r"Task 'leak' declares \['x'\], but returned \['secret', 'x'\]"),
        ("forget", r"Task 'forget' declares \['x'\], but returned \[\]"),
        ("poison", "Task 'poison' would release NaN or infinity in 'x', so nothing was sent"),
        ("write", "Task 'write' must release numeric arrays"),
    ],
)
@pytest.mark.parametrize("channel", [None, Channel(up=quantize(4))], ids=["plain", "quantised"])
def test_nothing_leaves_a_client_that_was_not_declared(task: str, why: str, channel: Channel | None) -> None:
    ledger = Ledger()
    with pytest.raises(ClientError, match=why):
        start(Adder(task), ledger=ledger, channel=channel, retries=0)
    (event,) = (e for e in ledger.events if isinstance(e, Exchange))
    for name, sent in zip(event.clients, event.bytes_up, strict=True):
        assert (sent == 0) == (name in event.failures)


@pytest.mark.parametrize(
    ("want", "why"),
    [
        (Sum("x"), r"'x' of client 'cy' has shape \(3,\), but that of the clients before it has shape \(2,\)"),
        (Sum("x", "absent"), r"The reply of client 'ada' to 'grow' does not contain 'absent'"),
    ],
)
def test_a_reply_that_does_not_fit_is_named_by_client(want: Sum, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        start(Adder("grow", want=want))


def cohorts(result: Any) -> list[tuple[str, ...]]:
    return [e.clients for e in result.ledger.events if isinstance(e, Exchange)]


MANY = [float(i) for i in range(30)]


def test_cohorts_are_named_by_the_seed() -> None:
    one, same, other = (
        cohorts(start(clients=MANY, rounds=6, seed=seed, participation=Participation(count=7))) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert len(set(one)) == 6
    for cohort in one:
        assert len(set(cohort)) == 7
        assert list(cohort) == sorted(cohort)


def test_a_cohort_is_drawn_evenly() -> None:
    """Each client is drawn with probability 1/3 a round: 100 of 300, with deviation 8.2."""
    drawn = cohorts(start(clients=MANY, rounds=300, participation=Participation(fraction=1 / 3)))
    counts = [sum(name in cohort for cohort in drawn) for name in {n for cohort in drawn for n in cohort}]
    assert len(counts) == 30
    assert all(abs(count - 100) < 50 for count in counts)


def test_a_cohort_may_miss_no_more_than_min_clients_allows() -> None:
    with pytest.raises(ClientError, match=r"from 2 clients, but (none|only 1) answered"):
        start(Adder("fail"), clients=[5.0] * 4, min_clients=3, participation=Participation(count=2))


def snapshot(result: Any) -> tuple[bytes, int]:
    return result.state.total.tobytes(), result.state.t


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_that_was_killed_goes_on_to_the_same_end(tmp_path: Path, cut: int, every: int) -> None:
    options: dict[str, Any] = {"rounds": 5, "participation": Participation(count=2)}
    want = start(**options)

    def kill(info: Info) -> None:
        if info.round == cut:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(**options, checkpoint=Checkpoint(tmp_path, every), callback=kill)
    got = start(**options, checkpoint=Checkpoint(tmp_path, every))
    assert snapshot(got) == snapshot(want)
    resumed = [e.text for e in got.ledger.events if isinstance(e, Note)]
    assert resumed == ([f"resumed after round {cut // every * every}"] if cut >= every else [])


def test_clients_remember_across_a_resumption(tmp_path: Path) -> None:
    start(rounds=2, checkpoint=Checkpoint(tmp_path))
    asked = []

    class Watch(Adder):
        def round(self, state: Any, rng: Any) -> Any:
            ask = next(generator := super().round(state, rng))
            replies = yield ask
            asked.extend(int(a["times"]) for a in replies.each.values())
            try:
                generator.send(replies)
            except StopIteration as stop:
                return stop.value

    Watch.__qualname__ = "Adder"  # the same run by name
    start(Watch(), rounds=3, checkpoint=Checkpoint(tmp_path))
    assert asked == [3, 3, 3]


def test_a_run_that_is_over_is_not_run_again(tmp_path: Path) -> None:
    want = start(rounds=3, checkpoint=Checkpoint(tmp_path))
    again = start(rounds=3, checkpoint=Checkpoint(tmp_path))
    assert snapshot(again) == snapshot(want)
    assert again.ledger.exchanges == 0
    longer = start(rounds=5, checkpoint=Checkpoint(tmp_path))
    assert snapshot(longer) == snapshot(start(rounds=5))


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("seed", {"seed": 2}),
        ("algorithm", {"algorithm": Adder(exchanges=2)}),
        ("clients", {"clients": {**CLIENTS, "dee": 1.0}}),
        ("clients", {"clients": {"ada": 1.0, "bo": 2.0, "cyd": 3.0}}),
        ("channel", {"channel": Channel(up=quantize(8))}),
        ("rows", {"about": {"rows": 4}}),
    ],
    ids=["seed", "algorithm", "one more", "renamed", "channel", "about"],
)
def test_another_runs_checkpoint_is_refused_with_what_differs(tmp_path: Path, key: str, other: dict[str, Any]) -> None:
    start(checkpoint=Checkpoint(tmp_path), about={"rows": 3})
    before = (tmp_path / "round.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=rf"belongs to another run: {key} is "):
        start(**{"about": {"rows": 3}, "checkpoint": Checkpoint(tmp_path)} | other)
    assert (tmp_path / "round.safetensors").read_bytes() == before


def test_the_session_is_closed_whatever_happens() -> None:
    closed = []

    class Closing(InProcess):
        def start(self, *args: Any) -> Any:
            session = super().start(*args)
            close = session.close
            session.close = lambda: (closed.append(True), close())  # type: ignore[method-assign,assignment]
            return session

    run(Adder(), Closing(CLIENTS), rounds=1, seed=0)
    with pytest.raises(ClientError):
        run(Adder("fail"), Closing(CLIENTS), rounds=1, seed=0)
    with pytest.raises(KeyboardInterrupt):
        run(Adder(), Closing(CLIENTS), rounds=1, seed=0, callback=_interrupt)
    assert len(closed) == 3


def _interrupt(_: Info) -> None:
    raise KeyboardInterrupt
