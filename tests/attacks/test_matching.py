"""Attacks on the matching of ids: each succeeds when its defence is taken away, and fails when it is there."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from fedspan.algorithms.matching import match_by_tags, match_ring
from fedspan.algorithms.matching.canonical_ids import canonical
from fedspan.algorithms.matching.match_by_tags import IdList, MatchByTags, MatchedRows
from fedspan.algorithms.matching.match_digests import MatchDigests
from fedspan.algorithms.matching.match_ring import TAG_BYTES, MatchRing, RingClient, make_tags
from fedspan.algorithms.matching.point_worker import Blinder
from fedspan.algorithms.matching.points import Pool, digest_ids, to_rows
from fedspan.core.protocol import Ask
from fedspan.core.rng import Streams
from fedspan.core.run import Session, run
from fedspan.engines import InProcess
from fedspan.errors import InputError, PolicyRefusal

pytest.importorskip("cryptography", reason="needs fedspan[privacy]")

SECRET = "known to all clients"  # noqa: S105 - a text, for a test
ONE = (1).to_bytes(32, "big")  # the key that blinds nothing
PATIENTS = [f"patient {j}" for j in range(0, 120, 2)]
OTHERS = [f"patient {j}" for j in range(0, 120, 3)]
GUESSES = [f"patient {j}" for j in range(120)]


class Eavesdropper(InProcess):
    """A server that keeps all that it asks and is told."""

    def start(self, *given: Any, **named: Any) -> Session:
        session: Any = super().start(*given, **named)
        self.heard: list[tuple[Ask, dict[str, Any]]] = []
        exchange = session.exchange

        def listen(ask: Ask, *more: Any) -> Any:
            replies, event = exchange(ask, *more)
            self.heard.append((ask, dict(replies.each)))
            return replies, event

        session.exchange = listen
        return session

    def told(self, task: str, client: str = "clinic") -> list[Any]:
        """All that a client answered to a task."""
        return [(ask, each[client]) for ask, each in self.heard if ask.task == task]


def listen_to(server: MatchByTags, ids: list[str] = PATIENTS, **demands: Any) -> Eavesdropper:
    data = {"clinic": IdList(ids, workers=1, **demands), "shop": IdList(OTHERS, workers=1, **demands)}
    engine = Eavesdropper(data, threads=1)
    run(server, engine, rounds=0, seed=0)
    return engine


def as_set(rows: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in rows}


def guess_digests(engine: Eavesdropper, secret: str) -> set[str]:
    """The guesses that are among the clinic's ids, by whoever has the secret and the server's messages."""
    (ask, reply), *_ = engine.told("digest_rows")
    key = sha256(secret.encode() + ask.arrays["key"].tobytes()).hexdigest()
    tags = digest_ids([canonical(one) for one in GUESSES], key)[:, :TAG_BYTES]
    return {one for one, tag in zip(GUESSES, tags, strict=True) if tag.tobytes() in as_set(reply["tags"])}


def guess_points(engine: Eavesdropper, secret: str) -> set[str]:
    """The same for the ring: all that can be made of a guess without a key, compared with all that was sent."""
    points = Pool(ONE, 1).hash_and_multiply(digest_ids([canonical(one) for one in GUESSES], secret))
    seen: set[bytes] = set()
    for task, client in (("blind_ids", "clinic"), ("blind_again", "clinic"), ("blind_again", "shop")):
        for _, reply in engine.told(task, client):
            seen |= as_set(reply["points"])
    tags = make_tags(points)
    return {one for one, *made in zip(GUESSES, points, tags, strict=True) if {x.tobytes() for x in made} & seen}


def test_a_server_that_one_client_helps_guesses_digests_but_not_blinded_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guess_digests(listen_to(MatchDigests(), secret=SECRET), SECRET) == set(PATIENTS), "digests are guessed"
    assert guess_digests(listen_to(MatchDigests(), secret=SECRET), "not the secret") == set()
    assert guess_points(listen_to(MatchRing(), secret=SECRET), SECRET) == set()
    assert guess_points(listen_to(MatchRing()), "") == set()
    monkeypatch.setattr(match_ring, "draw_key", lambda: ONE)
    assert guess_points(listen_to(MatchRing(), secret=SECRET), SECRET) >= set(PATIENTS), "without keys they would be"


def test_runs_cannot_be_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that keeps what it saw does not recognise a person in the next run, nor in one that begins again."""

    def points_of_two_runs() -> list[set[bytes]]:
        engines = [listen_to(MatchRing()) for _ in range(2)]
        return [as_set(engine.told("blind_ids")[0][1]["points"]) for engine in engines]

    one, other = points_of_two_runs()
    assert not one & other
    monkeypatch.setattr(match_ring, "draw_key", lambda: (7).to_bytes(32, "big"))
    one, other = points_of_two_runs()
    assert len(one & other) >= len(PATIENTS), "with a key that is used again, everybody is recognised"


def test_the_order_of_a_table_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are often sorted by name or by date, so a place in them says who it is."""

    def first_places() -> set[int]:
        """Where the first row of the table is in what the clinic sends."""
        places = set()
        for _ in range(6):
            client = RingClient(IdList(PATIENTS), "intersection", 2)
            places.add(int(np.flatnonzero(client.order == 0)[0]))
        return places

    assert len(first_places()) > 1
    monkeypatch.setattr(match_by_tags.secrets, "token_bytes", lambda n: np.arange(n // 8, dtype=np.uint64).tobytes())
    assert first_places() == {0}, "without the secret order it is"


@pytest.mark.parametrize("kind", [MatchRing, MatchDigests])
def test_padding_hides_how_many_ids_there_are(kind: type[MatchByTags], monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes_seen(**demands: Any) -> list[int]:
        lists = [PATIENTS, PATIENTS[:59], PATIENTS[:58]]
        task, array = ("blind_ids", "points") if kind is MatchRing else ("digest_rows", "tags")
        return [len(listen_to(kind(), ids, **demands).told(task)[0][1][array]) for ids in lists]

    assert len(set(sizes_seen())) == 1
    assert sizes_seen(pad=500) == [512] * 3
    monkeypatch.setattr(match_by_tags, "pad_size", lambda n: n)
    assert sizes_seen() == [60, 59, 58], "without padding they are seen"


def test_a_server_that_asks_about_guesses_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It breaks the protocol: in place of another client's points it sends those of guesses to be blinded.

    Without a common secret this works, and only bounds limit it (max_ids, once in a run): the pages say so. With one
    it does not, for as long as no client helps the server.
    """

    def guess(client_secret: str, server_secret: str) -> set[str]:
        client = RingClient(IdList(PATIENTS, client_secret, workers=1), "intersection", 2)
        rng = Streams(0, 0, 0, "clinic")
        own = as_set(client.blind_ids(MatchedRows(), {}, rng)[1]["points"])
        points = Pool(ONE, 1).hash_and_multiply(digest_ids([canonical(one) for one in GUESSES], server_secret))
        question = {"points": points, "last": np.array(0)}
        blinded = client.blind_again(MatchedRows(), question, rng)[1]["points"]
        return {one for one, point in zip(GUESSES, blinded, strict=True) if point.tobytes() in own}

    assert guess("", "") == set(PATIENTS)
    assert guess(SECRET, "") == set()
    assert guess(SECRET, SECRET) == set(PATIENTS), "with a client's help it works again"


def send(points: np.ndarray, **demands: Any) -> None:
    client = RingClient(IdList(PATIENTS, workers=1, **demands), "intersection", 2)
    rng = Streams(0, 0, 0, "clinic")
    client.blind_ids(MatchedRows(), {}, rng)
    client.blind_again(MatchedRows(), {"points": points, "last": np.array(1)}, rng)


def test_points_that_would_tell_something_of_a_key_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off the curve there are groups of small order, in which k·P says k modulo a small number."""
    good = to_rows(Blinder(ONE).hash_and_multiply(bytes(range(64))))
    send(good)
    on_twist = good.copy()
    on_twist[1] = np.frombuffer((1).to_bytes(32, "big"), dtype=np.uint8)
    not_reduced = good.copy()
    not_reduced[1] = 255
    for bad in (on_twist, not_reduced):
        with pytest.raises(PolicyRefusal, match="points that are not on the curve"):
            send(bad)
    for bad in (good[:, :31], good.astype(np.int16), good[:0], good.ravel()):
        with pytest.raises(PolicyRefusal, match="something else than points"):
            send(bad)
    with pytest.raises(PolicyRefusal, match="some points more than once"):
        send(good[[0, 0]])
    with pytest.raises(InputError, match="At most 1 ids"):
        send(good, most=1)
    with pytest.raises(PolicyRefusal, match="Sets of at most 60 ids"):
        send(to_rows(Blinder(ONE).hash_and_multiply(b"".join(sha256(b"%d" % i).digest() for i in range(61)))), most=60)


def test_few_people_in_common_are_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with one person's id in its list would learn whether that person is at the other one."""

    def probe(least: int) -> Any:
        clinic, probing = IdList(PATIENTS, workers=1, least=least), IdList(["patient 4", "x", "y"], workers=1)
        engine = Eavesdropper({"clinic": clinic, "probe": probing}, threads=1)
        run(MatchRing(), engine, rounds=0, seed=0)
        (ask, _), *_ = engine.told("keep_rows", "probe")
        return ask.privately["probe"]["at"]

    with pytest.raises(PolicyRefusal, match="at least 10 entities are common"):
        probe(least=10)
    assert len(probe(least=1)) == 1, "without a least number it learns that"
