"""Verified sums of honest runs: every algorithm that qualifies is accepted, and learns the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kernel_runs import QUALIFYING, SEED, cases, read_runs, record_run
from table import SIMULATED, TABLE, deep_views, hospitals, labelled

from fedspan import FederatedPCA, Secure
from fedspan.algorithms import (
    DeepMaxVar,
    Gram,
    Known,
    Krylov,
    NoisyGram,
    NoisyPower,
    NoisyRefine,
    PerPca,
    PersonalEigen,
    PersonalPaper,
    Ssca,
)
from fedspan.algorithms.learning.count_samples import CountClasses, CountSamples
from fedspan.algorithms.spectral import krylov
from fedspan.algorithms.spectral.private_bounds import Census, PrivateMean
from fedspan.core.checkpoint import Checkpoint, flatten, unflatten
from fedspan.core.ledger import Exchange
from fedspan.core.participation import Participation
from fedspan.core.protocol import Narrow, declared_releases
from fedspan.core.run import run
from fedspan.engines import Faults, InProcess, inprocess
from fedspan.engines.start import algorithm_from, plain_fields
from fedspan.errors import InputError, ProtocolError
from fedspan.privacy.plan import plan_for
from fedspan.secure import fixed
from fedspan.secure.keys import purpose_key
from fedspan.secure.opening import make_groups
from fedspan.secure.replica import Heard, Replica, ReplicaMemory
from fedspan.secure.tags import PRIME, from_limbs, is_tag_of, make_tag, to_limbs

KERNELS = ("Haswell", "Nehalem", "SkylakeX")


def assert_same_state(one: object, other: object) -> None:
    (names, arrays), (names_too, arrays_too) = flatten(one), flatten(other)
    assert repr(names) == repr(names_too)
    for key, array in arrays.items():
        np.testing.assert_array_equal(array, arrays_too[key])


# ---------------------------------------------------------------------------------------- honest runs


@pytest.mark.parametrize("groups", [None, 2], ids=["one group", "groups of two"])
@pytest.mark.parametrize("name", QUALIFYING)
def test_an_honest_run_is_accepted_and_learns_the_same_bits(name: str, groups: int | None) -> None:
    """Sums are of integers, so the same numbers add up to the same bits, in whichever order and groups."""
    row = TABLE[name]
    options = {"rounds": row.rounds, "seed": 3, "privacy": row.plan()}
    plain = run(row.server, InProcess(row.clients(), threads=1), secure=Secure(), **options)
    secure = Secure(verified=True, groups=groups)
    verified = run(row.server, InProcess(row.clients(), threads=1, wire=True), secure=secure, **options)
    assert_same_state(plain.state, verified.state)


SUMS_ONLY: dict[str, Any] = {"share": "sums", "collect": False, "k": 2, "rounds": 3}
MORE = {
    "personal eigen": (PersonalEigen(**SUMS_ONLY, center="global", scale=True), hospitals),
    "personal paper": (PersonalPaper(**SUMS_ONLY, start="random"), hospitals),
    "perpca": (PerPca(**SUMS_ONLY), hospitals),
    "count of classes": (CountClasses(2), labelled),
    "deep": (DeepMaxVar(k=2, steps=2, batch_size=16), deep_views),
}


@pytest.mark.parametrize("name", MORE)
def test_options_with_which_others_qualify(name: str) -> None:
    server, clients = MORE[name]
    if name == "deep":
        pytest.importorskip("torch")
    assert set(server.replay()) == server.asks()
    plain = run(server, InProcess(clients(), threads=1), rounds=4, seed=3, secure=Secure())
    verified = run(server, InProcess(clients(), threads=1), rounds=4, seed=3, secure=Secure(verified=True))
    assert_same_state(plain.state, verified.state)


LOCATED = Known(100.0, tuple(np.arange(12) * 0.5))  # as found by an earlier part of the run
NOISED: dict[str, tuple[Any, Any]] = {
    "census": (Census(), hospitals),
    "census and lengths": (Census(search=True), hospitals),
    "mean": (PrivateMean(prior=100.0), hospitals),
    "mean and lengths": (PrivateMean(search=True, prior=100.0), hospitals),
    "count of samples": (CountSamples(), labelled),
    "count of classes": (CountSamples(2), labelled),
    "gram of counted rows": (NoisyGram(k=2, counted=True, prior=Known(100.0), spent=0.01), hospitals),
    "gram around a mean": (NoisyGram(k=2, counted=True, located=True, prior=LOCATED, spent=0.08), hospitals),
    "block around a mean": (
        NoisyPower(k=2, d=12, width=4, counted=True, located=True, prior=LOCATED, spent=0.08),
        hospitals,
    ),
    "refined gram of counted rows": (NoisyRefine(k=2, counted=True, prior=Known(100.0), spent=0.01), hospitals),
}


@pytest.mark.parametrize("name", NOISED)
def test_parts_of_private_runs_qualify(name: str) -> None:
    """A site repeats them from what it is told of the algorithm, which has the noised number of rows in it."""
    server, clients = NOISED[name]
    assert set(server.replay()) == server.asks()
    assert algorithm_from(type(server).__name__, plain_fields(server)) == server
    plan = plan_for(SIMULATED, declared_releases(server.client), server.planned(), spread=len(clients()))
    plain = run(server, InProcess(clients(), threads=1), rounds=4, seed=3, secure=Secure(), privacy=plan)
    secure = Secure(verified=True)
    verified = run(server, InProcess(clients(), threads=1), rounds=4, seed=3, secure=secure, privacy=plan)
    assert_same_state(plain.state, verified.state)


@pytest.mark.parametrize("name", QUALIFYING)
def test_an_algorithm_says_how_each_of_its_questions_is_compared(name: str) -> None:
    server = TABLE[name].server
    assert set(server.replay()) == server.asks()


@pytest.mark.parametrize("name", [name for name in TABLE if name not in QUALIFYING])
def test_an_algorithm_that_cannot_be_verified_says_why(name: str) -> None:
    row = TABLE[name]
    why = row.server.replay()
    assert isinstance(why, str)
    with pytest.raises(InputError, match="cannot run with verified sums, because"):
        run(row.server, InProcess(row.clients()), rounds=1, seed=0, secure=Secure(verified=True), privacy=row.plan())


@pytest.mark.parametrize("name", QUALIFYING)
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(name: str, tmp_path: Path) -> None:
    """Cut off after every round in turn, with new sites, new keys and a new epoch each time."""
    row = TABLE[name]
    options: dict[str, Any] = {"seed": 3, "secure": Secure(verified=True), "privacy": row.plan()}
    whole = run(row.server, InProcess(row.clients(), threads=1), rounds=row.rounds, **options)

    class Cut(Exception):
        pass

    def cut(info: Any) -> None:
        raise Cut

    checkpoint = Checkpoint(tmp_path)
    for _ in range(row.rounds):
        try:
            run(
                row.server,
                InProcess(row.clients(), threads=1),
                rounds=row.rounds,
                checkpoint=checkpoint,
                callback=cut,
                **options,
            )
        except Cut:
            continue
        break
    last = run(row.server, InProcess(row.clients(), threads=1), rounds=row.rounds, checkpoint=checkpoint, **options)
    assert_same_state(whole.state, last.state)


@pytest.mark.parametrize("name", ["krylov", "krylov rounded", "ssca limited", "vertical ssca"])
def test_lost_messages_are_asked_for_again_with_the_same_bytes(name: str) -> None:
    row = TABLE[name]
    options: dict[str, Any] = {"rounds": row.rounds, "seed": 3, "secure": Secure(verified=True), "retries": 30}
    whole = run(row.server, InProcess(row.clients(), threads=1), **options)
    faults = Faults(lose_request=0.15, lose_reply=0.15)
    lossy = run(row.server, InProcess(row.clients(), threads=1, faults=faults), **options)
    assert_same_state(whole.state, lossy.state)


def test_a_missing_client_leaves_its_group_out_and_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One does not hear a question, another's answer is lost: both are shown later what they missed, and go on."""
    row, lost = TABLE["ssca"], {("bo", 2): (False, True), ("dee", 4): (True, False)}

    def draw_fate(self: Any, client: str, message: Any) -> tuple[bool, bool]:
        return (True, True) if message.task.startswith("@") else lost.get((client, message.round), (True, True))

    monkeypatch.setattr(inprocess.LocalSession, "_draw_fate", draw_fate)
    secure = Secure(verified=True, groups=2)
    engine = InProcess(row.clients(), threads=1)
    result = run(row.server, engine, rounds=5, seed=0, secure=secure, min_clients=2, retries=1)
    missing = {event.round: event.missing for event in result.ledger.events if isinstance(event, Exchange)}
    assert missing == {0: (), 1: (), 2: ("ada", "bo"), 3: (), 4: ("cy", "dee", "eve"), 5: ()}


def test_participation_cannot_be_verified() -> None:
    row = TABLE["ssca"]
    with pytest.raises(InputError, match="cannot be combined with participation"):
        run(
            row.server,
            InProcess(row.clients()),
            rounds=2,
            seed=0,
            secure=Secure(verified=True),
            participation=Participation(count=3),
        )
    run(
        row.server,
        InProcess(row.clients()),
        rounds=2,
        seed=0,
        secure=Secure(threshold=2, verified="auto"),
        participation=Participation(count=3),
    )


def test_estimators_take_verified_sums() -> None:
    clients = TABLE["krylov"].clients()
    plain = FederatedPCA(3, solver="krylov", secure=True, random_state=0).fit(clients)
    verified = FederatedPCA(3, solver="krylov", secure=Secure(verified=True), random_state=0).fit(clients)
    np.testing.assert_array_equal(plain.components_, verified.components_)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"groups": 2}, "groups are for verified sums"),
        ({"verified": True, "threshold": 3}, "A verified sum has no threshold"),
    ],
)
def test_requests_that_contradict_themselves(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        Secure(**options)


@pytest.mark.parametrize(
    ("wanted", "groups"),
    [
        (None, (("a", "b", "c", "d", "e"),)),
        (2, (("a", "b"), ("c", "d", "e"))),
        (5, (("a", "b", "c", "d", "e"),)),
        ([["e", "a"], ["d", "c", "b"]], (("a", "e"), ("b", "c", "d"))),
    ],
)
def test_groups(wanted: Any, groups: Any) -> None:
    assert make_groups(wanted, "edcba") == groups


@pytest.mark.parametrize(
    "wanted", [1, 6, True, [["a", "b"]], [["a", "b", "c"], ["c", "d", "e"]], [["a"], list("bcde")]]
)
def test_groups_that_are_none(wanted: Any) -> None:
    with pytest.raises(InputError, match=r"groups must|needs at least two"):
        make_groups(wanted, "abcde")


# ---------------------------------------------------------------------------------------- narrow lanes


def test_narrow_lanes_take_hardly_more_bytes_up_than_without_verification() -> None:
    """The sum that is shown comes on top of what goes down."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(200, 200)))[0]
    decay = 10 / np.sqrt(np.arange(1, 201))
    clients = {f"c{i}": rng.normal(size=(300, 200)) * decay @ turn.T for i in range(5)}
    runs = [
        run(Krylov(k=10, rounded=True), InProcess(clients, threads=1), rounds=50, seed=0, secure=secure)
        for secure in (Secure(), Secure(verified=True))
    ]
    assert_same_state(runs[0].state, runs[1].state)
    up, down = (getattr(runs[1].ledger, link) / getattr(runs[0].ledger, link) for link in ("bytes_up", "bytes_down"))
    assert up < 1.15  # keys and certificates are much of so small a run
    assert down < 3.6


def tighten(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Let the server expect sums closer to its prediction than they are."""
    original = krylov.predict_sum

    def predict(*args: Any) -> Narrow:
        narrow = original(*args)
        columns = narrow.columns.copy()
        columns[::2] -= np.int8(bits)
        return replace(narrow, columns=columns)

    monkeypatch.setattr(krylov, "predict_sum", predict)


def count_exchanges(result: Any) -> int:
    return sum(isinstance(event, Exchange) for event in result.ledger.events)


@pytest.mark.parametrize("bits", [3, 9], ids=["once", "twice"])
@pytest.mark.parametrize("groups", [None, 2], ids=["one group", "groups of two"])
def test_columns_that_wrap_are_asked_for_again(bits: int, groups: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    row = TABLE["krylov rounded"]
    whole = run(row.server, InProcess(row.clients(), threads=1), rounds=row.rounds, seed=3, secure=Secure())
    tighten(monkeypatch, bits)
    secure = Secure(verified=True, groups=groups)
    again = run(row.server, InProcess(row.clients(), threads=1, wire=True), rounds=row.rounds, seed=3, secure=secure)
    assert_same_state(whole.state, again.state)
    assert count_exchanges(again) >= count_exchanges(whole) + (2 if bits == 9 else 1) * whole.rounds // 2


def test_columns_that_wrap_do_not_disturb_losses_and_resumptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tighten(monkeypatch, 9)
    row = TABLE["krylov rounded"]
    options: dict[str, Any] = {"rounds": row.rounds, "seed": 3, "secure": Secure(verified=True), "retries": 30}
    whole = run(row.server, InProcess(row.clients(), threads=1), **options)
    faults = Faults(lose_request=0.1, lose_reply=0.1)

    class Cut(Exception):
        pass

    def cut(info: Any) -> None:
        raise Cut

    for _ in range(whole.rounds):
        with suppress(Cut):
            engine = InProcess(row.clients(), threads=1, faults=faults)
            run(row.server, engine, checkpoint=Checkpoint(tmp_path), callback=cut, **options)
    last = run(row.server, InProcess(row.clients(), threads=1), checkpoint=Checkpoint(tmp_path), **options)
    assert_same_state(whole.state, last.state)


def test_sites_use_no_prediction_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine it would be another one."""
    row = TABLE["krylov rounded"]
    whole = run(row.server, InProcess(row.clients(), threads=1), rounds=row.rounds, seed=3, secure=Secure())
    original = Replica._advance

    def advance(self: Replica, replies: Any) -> None:
        original(self, replies)
        if self.ask is not None:
            garbled = {
                name: Narrow(one.center * 3 + 2**40, one.rows + np.int8(5), one.columns - np.int8(9))
                for name, one in self.ask.narrow.items()
            }
            self.ask = replace(self.ask, narrow=garbled)

    monkeypatch.setattr(Replica, "_advance", advance)
    secure = Secure(verified=True)
    verified = run(row.server, InProcess(row.clients(), threads=1), rounds=row.rounds, seed=3, secure=secure)
    assert_same_state(whole.state, verified.state)


# ---------------------------------------------------------------------------------------- other machines


def recall(total: Any, each: Any, wrapped: Any) -> Heard:
    """What a site hears of a recorded exchange: no sum as long as columns of it are asked for again."""
    replies = {client: dict(reply) for client, reply in each.items()}
    return Heard(wrapped=dict(wrapped)) if wrapped else Heard(dict(total), replies)


def replay(name: str, steps: list[Any]) -> Replica:
    algorithm, clients, rounds, _ = cases()[name]
    replica = Replica(algorithm, SEED, tuple(sorted(clients())), rounds)
    for place, task, question, _, *heard in steps:
        replica.take(task, question, tuple(place))
        replica.feed(recall(*heard))
    return replica


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_site_follows_a_server_with_another_blas_kernel(kernel: str, tmp_path: Path) -> None:
    """Runs recorded in a process under that kernel, followed here under whichever this one has.

    Spectra that are flat, doubled or of low rank, tol 1e-12 and grids are among them: there the last bits decide what
    is asked.
    """
    script = Path(__file__).with_name("kernel_runs.py")
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    env = {**os.environ, **threads, "OPENBLAS_CORETYPE": kernel}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "runs")], env=env, capture_output=True, text=True
    )
    if done.returncode < 0:
        pytest.skip(f"this processor cannot run the kernel {kernel}")
    assert done.returncode == 0, done.stderr
    refused = {}
    for name, steps in read_runs(tmp_path / "runs").items():
        try:
            replay(name, steps)
        except ProtocolError as error:
            refused[name] = str(error)
    assert not refused


def test_without_adoption_a_site_would_drift_away() -> None:
    """The contract of `Ask`: an algorithm goes on with the very arrays that it sent, so a site can adopt them."""
    for name in ("krylov", "ssi", "faps", "ssca", "krylov rounded", "noisy block"):
        steps = record_run(name)
        nudge = np.random.default_rng(0)
        replica = Replica(cases()[name][0], SEED, tuple(sorted(cases()[name][1]())), cases()[name][2])
        for place, task, question, _, *heard in steps[:4]:
            moved = {key: x * (1 + 1e-12 * nudge.normal()) if x.dtype.kind == "f" else x for key, x in question.items()}
            ask = replica.take(task, moved, tuple(place))
            for key, x in moved.items():
                np.testing.assert_array_equal(ask.arrays[key], x)
            replica.feed(recall(*heard))


@pytest.mark.parametrize("name", ["krylov", "ssca limited", "vertical ssca", "personal auto, sums"])
def test_a_replica_goes_on_from_its_memory_at_every_step(name: str) -> None:
    steps = record_run(name)
    algorithm, clients, rounds, _ = cases()[name]
    who = tuple(sorted(clients()))
    replica = Replica(algorithm, SEED, who, rounds)
    for place, task, question, _, *heard in steps:
        kept, other = replica.snapshot(), Replica(algorithm, SEED, who, rounds)
        plain = None if kept.state is None else unflatten(*flatten(kept.state))  # as a file holds it
        other.restore(ReplicaMemory(kept.done, plain, kept.steps))
        replica = other
        replica.take(task, question, tuple(place))
        replica.feed(recall(*heard))
    assert replica.ask is None or replica.done <= rounds


# ---------------------------------------------------------------------------------------- tags


def tag_by_hand(key: bytes, group: int, x: np.ndarray, clients: int) -> int:
    """P(x + b) + s_g in Python's integers, as RFC 8439 has it, without the two highest bits of P."""
    r = int.from_bytes(purpose_key(key, "r")[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    words = [value + 2**63 // clients for value in x.tolist()] + [0] * (x.size % 2)
    assert all(0 <= word < 2**64 for word in words)
    found = 0
    for low, high in zip(words[::2], words[1::2], strict=True):
        found = (found + low + (high << 64) + (1 << 128)) * r % PRIME
    return (found % 2**128 + int.from_bytes(purpose_key(key, "pad", group), "little")) % PRIME


@pytest.mark.parametrize("size", [0, 1, 2, 7, 2**10])
@pytest.mark.parametrize("clients", [2, 3, 2047, 5000])
@pytest.mark.parametrize("kind", ["random", "largest", "smallest"])
def test_a_tag_is_the_polynomial(size: int, clients: int, kind: str) -> None:
    """Against Python's integers, at the ends of what a part may hold, too (fixed.py)."""
    key, most = bytes(range(32)), 2 ** fixed.count_step_bits(clients) if clients > 1000 else 2**62 // clients
    ends = {"largest": np.full(size, most), "smallest": np.full(size, -most)}
    x = ends.get(kind, np.random.default_rng(size).integers(-most, most, size))
    assert make_tag(key, 1, x, clients) == tag_by_hand(key, 1, x, clients)
    assert is_tag_of(make_tag(key, 1, x, clients), key, x, {1: 1}, clients)


@pytest.mark.parametrize("clients", [4, 600])
@pytest.mark.parametrize("kind", ["random", "largest"])
def test_tags_add_up_and_any_other_sum_is_recognised(clients: int, kind: str) -> None:
    key, rng = bytes(32), np.random.default_rng(1)
    half, most = clients // 2, 2**62 // clients
    parts = rng.integers(-most, most, (clients, 51)) if kind == "random" else np.full((clients, 51), most)
    tags = [to_limbs(make_tag(key, int(i >= half), part, clients)) for i, part in enumerate(parts)]
    sizes = {0: half, 1: clients - half}
    for inside in ({0: half}, sizes):
        m = sum(inside.values())
        tag, total = from_limbs(np.sum(tags[:m], axis=0)), parts[:m].sum(axis=0)
        assert tag is not None
        assert is_tag_of(tag, key, total, inside, clients)
        for at in (0, 1, 50):
            for much in (1, 2**32, 2**61 - 1, 2**62, -(2**63)):  # what moduli of other tags take for the same
                other = total.copy().view(np.uint64)
                other[at : at + 1] += np.int64(much).astype(np.uint64)
                assert not is_tag_of(tag, key, other, inside, clients)
        assert not is_tag_of((tag + 1) % PRIME, key, total, inside, clients)
        assert not is_tag_of(tag, bytes(31) + b"1", total, inside, clients)
    assert not is_tag_of(tag, key, total, {0: half}, clients)
    assert not is_tag_of(2 * tag % PRIME, key, 2 * total, sizes, clients)


def test_limbs_of_another_number_are_no_tag() -> None:
    assert from_limbs(np.zeros((1, 2), dtype=np.uint64)) is None
    assert from_limbs(to_limbs(PRIME - 1)) == PRIME - 1


@pytest.mark.parametrize("algorithm", [Krylov(k=2, tol=1e-13), Krylov(k=2, tol=0)])
def test_a_tolerance_of_rounding_errors_cannot_be_verified(algorithm: Any) -> None:
    assert "rounding decides" in str(algorithm.replay())


def test_auto_takes_what_qualifies() -> None:
    auto = Secure(verified="auto")
    assert auto.is_verified(Gram(), 3)
    assert not auto.is_verified(Gram(), 2)
    assert not auto.is_verified(Gram(), 5, min_clients=4)
    assert not auto.is_verified(Krylov(tol=0), 5)
    assert auto.is_verified(Ssca(), 5)
