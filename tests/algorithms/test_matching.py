"""Matching of ids: the right rows in one order for 2 to 10 parties, and nothing that is not needed for it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matching_world import Watched, match, overlapping, spelled

from fedspan.algorithms.matching import points as points_module
from fedspan.algorithms.matching.canonical_ids import canonical
from fedspan.algorithms.matching.match_by_tags import (
    IdClient,
    IdList,
    MatchByTags,
    MatchedRows,
    find_entities,
    pad_size,
)
from fedspan.algorithms.matching.match_digests import MatchDigests
from fedspan.algorithms.matching.match_ring import MatchRing, RingClient
from fedspan.algorithms.matching.point_worker import Blinder, InvalidPointError
from fedspan.algorithms.matching.points import Pool, digest_ids, draw_key, to_rows
from fedspan.core import protocol
from fedspan.core.rng import Streams
from fedspan.core.run import run
from fedspan.errors import ClientError, InputError, PolicyRefusal, ProtocolError

pytest.importorskip("cryptography", reason="needs fedspan[privacy]")

both = pytest.mark.parametrize("kind", [MatchRing, MatchDigests])


@both
@pytest.mark.parametrize("parties", [2, 3, 10])
def test_the_intersection_is_that_of_the_sets(kind: type[MatchByTags], parties: int) -> None:
    lists = overlapping(parties, 40, 15)
    found = match(kind(parties=parties), lists)
    entities = spelled(lists, found)
    want = set.intersection(*({canonical(one) for one in ids} for ids in lists.values()))
    assert found.entities == len(want) == 15
    first, *others = entities.values()
    assert set(first) == want
    assert all(other == first for other in others), "all have the same order"


@both
@pytest.mark.parametrize("parties", [2, 4])
def test_the_union_is_that_of_the_sets(kind: type[MatchByTags], parties: int) -> None:
    lists = overlapping(parties, 30, 12)
    lists["p0"] = lists["p0"][:25]  # sets of different sizes, and entities that only some have
    found = match(kind(parties=parties, how="union"), lists)
    entities = spelled(lists, found)
    want = set.union(*({canonical(one) for one in ids} for ids in lists.values()))
    assert found.entities == len(want)
    for place in range(found.entities):
        assert len({own[place] for own in entities.values() if own[place] is not None}) == 1
    for name, own in entities.items():
        assert {one for one in own if one is not None} == {canonical(one) for one in lists[name]}


@both
def test_every_way_to_write_an_id_matches(kind: type[MatchByTags]) -> None:
    lists: dict[str, list[Any]] = {
        "a": [1, "É", "007", 5, " Ann  Lee "],
        "b": [7, "1.0", "E\u0301", "007", "ann lee"],
        "c": [np.float64(1.0), "7", "é", " 007", "ANN LEE"],
    }
    found = match(kind(parties=3), lists)
    assert set(spelled(lists, found)["a"]) == {canonical(one) for one in (1, "É", "007", "Ann Lee")}


@both
def test_no_entity_in_common_is_said_before_positions_are_told(kind: type[MatchByTags]) -> None:
    with pytest.raises(InputError, match="no entity in common"):
        match(kind(), {"a": [1, 2], "b": ["x", "y"]})


@both
@pytest.mark.parametrize("how", ["intersection", "union"])
def test_fewer_than_the_least_is_refused_before_positions_are_told(
    kind: type[MatchByTags], how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    keep = IdClient.keep_rows
    monkeypatch.setattr(IdClient, "keep_rows", lambda *given: told.append("") or keep(*given))
    with pytest.raises(PolicyRefusal, match="at least 5 entities are common"):
        match(kind(how=how), overlapping(2, 20, 4), least=5)
    assert not told
    assert match(kind(how=how), overlapping(2, 20, 5), least=5).entities == (5 if how == "intersection" else 35)


@both
def test_larger_sets_than_allowed_are_refused(kind: type[MatchByTags]) -> None:
    with pytest.raises(InputError, match="At most 19 ids"):
        match(kind(), overlapping(2, 20, 4), most=19)


@both
def test_duplicates_gaps_and_fractions_are_refused_before_anything_leaves(kind: type[MatchByTags]) -> None:
    for bad, says in ((["a", "A"], "differ only in upper"), (["a", None], "no id in row 2"), ([1.0, 2.5], "fraction")):
        with pytest.raises(InputError, match=f"client 'q': .*{says}"):
            match(kind(), {"p": ["a", "b"], "q": bad})


@both
def test_clients_with_different_secrets_are_told_so(kind: type[MatchByTags]) -> None:
    for other in ("", "another"):
        data = {"a": IdList([1, 2], secret="shared"), "b": IdList([1, 2], secret=other)}  # noqa: S106
        with pytest.raises(InputError, match="different secrets for ids"):
            run(kind(), Watched(data, threads=1), rounds=0, seed=0)


def test_more_than_ten_or_one_party_is_refused() -> None:
    for parties in (1, 11):
        with pytest.raises(InputError, match=f"From 2 to 10 clients can be matched, but there are {parties}"):
            MatchRing(parties=parties)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 100, 999, 4097, 100_000, 3_000_001])
def test_padding_is_at_most_an_eighth(n: int) -> None:
    assert n <= pad_size(n) <= max(n + 1, 1.12 * n)
    assert pad_size(pad_size(n)) == pad_size(n)


def test_many_sizes_look_alike() -> None:
    assert len({pad_size(n) for n in range(1, 100_001)}) < 300


def test_entities_are_found_as_by_sets() -> None:
    """Also where tags end with zeros, which numpy's text would lose."""
    rng = np.random.default_rng(1)
    pool = rng.integers(0, 2, size=(60, 16)).astype(np.uint8)
    pool[:, -3:] = 0
    pool = np.unique(pool, axis=0)
    tags = {name: pool[rng.permutation(len(pool))[:n]] for name, n in (("a", 30), ("b", 25), ("c", 41))}
    sets = {name: {row.tobytes() for row in own} for name, own in tags.items()}
    for how, want in (("intersection", set.intersection(*sets.values())), ("union", set.union(*sets.values()))):
        found = find_entities(tags, how)  # type: ignore[arg-type]
        assert found.entities == len(want)
        order = [None] * found.entities
        for name, at in found.at.items():
            for j, place in enumerate(at):
                if place >= 0:
                    one = tags[name][place].tobytes()
                    assert order[j] in (None, one)
                    order[j] = one
            assert found.common[name] == len(sets[name] & set.union(*(s for n, s in sets.items() if n != name))) or (
                how == "intersection" and found.common[name] == len(want)
            )
        assert set(order) == want


KEY, OTHER = draw_key(), draw_key()


def some_digests(n: int) -> np.ndarray:
    return digest_ids((b"%d" % i for i in range(n)), "")


def test_blindings_commute_and_hide() -> None:
    a, b, digests = Pool(KEY, 1), Pool(OTHER, 1), some_digests(20)
    np.testing.assert_array_equal(b.multiply(a.hash_and_multiply(digests)), a.multiply(b.hash_and_multiply(digests)))
    assert not np.isin(a.hash_and_multiply(digests), b.hash_and_multiply(digests)).all()


def test_processes_do_the_same_as_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points_module, "_TOO_FEW", 0)
    monkeypatch.setattr(points_module, "_POINTS_AT_ONCE", 7)
    digests, seen = some_digests(40), list[int]()
    here, apart = Pool(KEY, 1), Pool(KEY, 3, seen.append)
    points = here.hash_and_multiply(digests)
    np.testing.assert_array_equal(apart.hash_and_multiply(digests), points)
    assert sum(seen) == 40
    np.testing.assert_array_equal(apart.multiply(points), here.multiply(points))
    bad = points.copy()
    bad[33] = 255
    with pytest.raises(InvalidPointError):
        apart.multiply(bad)


@pytest.mark.parametrize("broken", ["cannot start", "ends at once", "says nonsense"])
def test_without_processes_this_one_does_the_work(broken: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(points_module, "_TOO_FEW", 0)
    if broken == "cannot start":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    else:
        script = tmp_path / "worker.py"
        script.write_text("import sys; sys.stdout.write('?' * 100)" if broken == "says nonsense" else "")
        monkeypatch.setattr(points_module.point_worker, "__file__", str(script))
    digests = some_digests(20)
    np.testing.assert_array_equal(Pool(KEY, 2).hash_and_multiply(digests), Pool(KEY, 1).hash_and_multiply(digests))


def test_a_script_without_a_main_guard_may_use_processes(tmp_path: Path) -> None:
    """Workers import nothing of the program that starts them."""
    script = tmp_path / "script.py"
    script.write_text(
        "from fedspan.algorithms.matching import points\n"
        "points._TOO_FEW = 0\n"
        "pool = points.Pool(points.draw_key(), 2)\n"
        "print(len(pool.hash_and_multiply(points.digest_ids([b'a', b'b'], ''))))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["2"]


def test_a_point_is_what_the_standard_says() -> None:
    """An oracle of its own: the curve's equation, and multiplication by additions in affine coordinates."""
    p = 2**256 - 2**224 + 2**192 + 2**96 - 1
    b = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B

    def add(P: tuple[int, int] | None, Q: tuple[int, int] | None) -> tuple[int, int] | None:
        if P is None or Q is None:
            return Q if P is None else P
        if P[0] == Q[0] and (P[1] + Q[1]) % p == 0:
            return None
        slope = ((3 * P[0] ** 2 - 3) * pow(2 * P[1], -1, p) if P == Q else (Q[1] - P[1]) * pow(Q[0] - P[0], -1, p)) % p
        x = (slope**2 - P[0] - Q[0]) % p
        return x, (slope * (P[0] - x) - P[1]) % p

    key = 1234567
    x = int.from_bytes(Blinder((1).to_bytes(32, "big")).hash_and_multiply(b"\x07" * 32), "big")
    y = pow(x**3 - 3 * x + b, (p + 1) // 4, p)
    assert (y * y - x**3 + 3 * x - b) % p == 0
    total, step = None, (x, y)
    for bit in bin(key)[:1:-1]:
        total = add(total, step) if bit == "1" else total
        step = add(step, step) or (0, 0)
    assert total is not None
    found = Blinder(key.to_bytes(32, "big")).hash_and_multiply(b"\x07" * 32)
    assert int.from_bytes(found, "big") == total[0]


@pytest.mark.parametrize(
    "x",
    [
        (2**256 - 1).to_bytes(32, "big"),
        (2**256 - 2**224 + 2**192 + 2**96 - 1).to_bytes(32, "big"),  # the prime itself: 0, written in another way
        (5 + 2**256 - 2**224 + 2**192 + 2**96 - 1).to_bytes(32, "big"),
        (1).to_bytes(32, "big"),  # on the twist
    ],
    ids=["too large", "the prime", "not reduced", "on the twist"],
)
def test_what_is_not_on_the_curve_is_refused(x: bytes) -> None:
    with pytest.raises(InvalidPointError):
        Blinder(KEY).multiply(x)


def test_a_client_without_its_key_does_not_answer() -> None:
    """A site that was started again in the middle of the ring has no key, and says so: the ring begins again."""
    client = RingClient(IdList([1, 2]), "intersection", 2)
    question = {"points": to_rows(Blinder(KEY).hash_and_multiply(bytes(64))), "last": np.array(1)}
    with pytest.raises(ProtocolError, match="must begin again"):
        client.blind_again(MatchedRows(), question, Streams(0, 0, 0, "a"))


@both
@pytest.mark.parametrize("lie", ["too few", "too many", "twice", "another type"])
def test_a_lying_reply_is_refused_by_the_server(
    kind: type[MatchByTags], lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "blind_ids" if kind is MatchRing else "digest_rows"
    client: Any = kind.client
    honest = protocol.tasks_of(client)[name]

    def spoil(rows: np.ndarray) -> np.ndarray:
        if lie == "too few":
            return rows[1:]
        if lie == "too many":
            return np.concatenate([rows, rows[:1] ^ 1])
        return np.concatenate([rows[:1], rows[:-1]]) if lie == "twice" else rows.astype(np.int16)

    def call(self: Any, *given: Any) -> Any:
        state, out = honest.call(self, *given)
        return state, {array: spoil(x) if self.spelled[0] == b"i1" else x for array, x in out.items()}

    tasks = {**protocol.tasks_of(client), name: replace(honest, call=call)}
    monkeypatch.setattr("fedspan.engines.site.tasks_of", lambda _: tasks)
    with pytest.raises(ClientError, match=r"Client 'liar' (must answer with|sent some points more than once)"):
        match(kind(), {"liar": [1, 2, 3], "other": [5, 3, 2]})


@both
@pytest.mark.parametrize("lie", ["padding", "twice", "beyond", "more", "none"])
def test_a_lying_server_is_refused_by_the_client(
    kind: type[MatchByTags], lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions that cannot be true: of padding, twice the same, of no row, of more entities than were counted."""
    keep = IdClient.keep_rows

    def told(self: IdClient, state: Any, arrays: Any, rng: Any) -> Any:
        at = np.array(arrays["at"])
        if lie == "padding":
            at[0] = int(np.flatnonzero(self.order >= len(self.spelled))[0])
        elif lie == "twice":
            at[0] = at[1]
        elif lie == "beyond":
            at[0] = self.size
        elif lie == "none":
            at[0] = -1
        else:
            at = np.concatenate([at, at[:1]])
        return keep(self, state, {"at": at}, rng)

    tasks = {**protocol.tasks_of(kind.client)}
    tasks["keep_rows"] = replace(tasks["keep_rows"], call=told)
    monkeypatch.setattr("fedspan.engines.site.tasks_of", lambda _: tasks)
    with pytest.raises(Exception, match=r"positions that were told|padding is an entity"):
        match(kind(), overlapping(2, 33, 20))
