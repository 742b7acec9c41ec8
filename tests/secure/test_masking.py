"""Secure aggregation as a protocol: right sums, masks that hide, and clients that refuse what would show more."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_world import Router, ask_sum, marks, met, numbers, session

from fedspan.core.protocol import Array, Arrays
from fedspan.errors import InputError, ProtocolError
from fedspan.secure import fixed, keys, masking, shamir
from fedspan.secure.masking import Party, Secure, own_seed, stack_bytes, to_bytes

RARE = 1e-7  # the chance of a false alarm of one test on random bytes; there are about ten of them
HERE = (1, 0)


def check_sum(data: dict[str, Arrays], replies: Any) -> None:
    """The sum of those that are not missing: the integers exactly, the others to the step."""
    present = [name for name in data if name not in replies.missing]
    assert replies.total["n"] == sum(int(data[name]["n"]) for name in present)
    want = np.apply_along_axis(math.fsum, 0, np.stack([data[name]["x"] for name in present]))  # correctly rounded
    np.testing.assert_allclose(replies.total["x"], want, rtol=2.0**-52, atol=len(present) * 2.0**-53)


@pytest.mark.parametrize(("m", "t"), [(2, 2), (3, 3), (3, 2), (5, 4), (10, 7), (10, 10), (24, 17)])
def test_the_sum_is_right(m: int, t: int) -> None:
    data = numbers(m)
    secure = session(Router(data, t), t)
    for exchange in range(3):
        replies, event = ask_sum(secure, tuple(data), (1, exchange))
        assert replies.missing == event.missing == ()
        check_sum(data, replies)


def test_keys_are_agreed_once_and_without_losses_nothing_is_shared_but_seeds() -> None:
    router = Router(numbers(5), 4)
    secure = session(router, 4)
    for exchange in range(3):
        ask_sum(secure, tuple(router.data), (1, exchange))
    tasks = [task for task, client, _ in router.seen if client == "c000"]
    assert tasks == ["@keys", "@roster", *["give", "@agree", "@unmask"] * 3]


def test_where_all_must_answer_there_is_nothing_to_unmask() -> None:
    router = Router(numbers(5), 5)
    secure = session(router, 5)
    for exchange in range(3):
        ask_sum(secure, tuple(router.data), (1, exchange))
    assert [task for task, client, _ in router.seen if client == "c000"] == ["@keys", "@roster", *["give"] * 3]


# Dropping out

STAGES = ["@keys", "@roster", "give", "@agree", "@unmask", "@recover"]
fates = st.tuples(st.sampled_from([*STAGES, "never"]), st.booleans())


def dying(plan: dict[str, tuple[str, bool]]) -> Any:
    """Each client goes for good at its stage: before it hears of it, or after it has answered, which nobody hears."""
    gone: set[str] = set()

    def fate(task: str, client: str) -> tuple[bool, bool]:
        stage, heard = plan.get(client, ("never", True))
        if client in gone:
            return False, False
        if task == stage:
            gone.add(client)
            return heard, False
        return True, True

    return fate


def can_be_summed(m: int, t: int, need: int, stages: list[str]) -> bool:
    """By the rules: who is lost at set-up is left out; losses before or after masking can be mended, not both."""
    roster = m - stages.count("@keys") - stages.count("@roster")
    present = roster - stages.count("give")
    if present < max(t, need):
        return False
    unmasking = present - stages.count("@agree") - stages.count("@unmask")
    if roster == t or unmasking == present:
        return True
    return present == roster and unmasking - stages.count("@recover") >= t


@settings(max_examples=150)
@given(st.data())
def test_whoever_drops_out_the_sum_is_that_of_the_others_or_there_is_none(data: st.DataObject) -> None:
    m = data.draw(st.integers(2, 10))
    t = data.draw(st.integers(2, m))
    need = data.draw(st.integers(1, m))
    clients = numbers(m)
    plan = {name: data.draw(fates) for name in clients if data.draw(st.booleans())}
    router = Router(clients, t, dying(plan))
    secure = session(router, t, need)
    for exchange in range(2):
        replies, _ = ask_sum(secure, tuple(clients), (1, exchange))
        present = m - len(replies.missing)
        if replies.total:
            assert present >= max(t, need)
            check_sum(clients, replies)
        else:
            assert present == 0
        if exchange == 0:
            assert bool(replies.total) == can_be_summed(m, t, need, [stage for stage, _ in plan.values()])


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.3, 0.6]))
def test_on_a_network_that_loses_anything_no_sum_is_ever_wrong(seed: int, lost: float) -> None:
    rng, clients = np.random.default_rng(seed), numbers(7)
    router = Router(clients, 4, lambda task, client: tuple(rng.random(2) >= lost / 2))
    secure = session(router, 4, 4)
    for exchange in range(4):
        replies, _ = ask_sum(secure, tuple(clients), (1, exchange))
        if replies.total:
            check_sum(clients, replies)
        else:
            assert len(replies.missing) == 7


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "unanswered"])
@pytest.mark.parametrize("stage", STAGES[:5])
def test_thirty_per_cent_go_at_any_stage_and_the_sum_of_the_others_is_right(stage: str, heard: bool) -> None:
    clients = numbers(10)
    router = Router(clients, 7, dying(dict.fromkeys(("c001", "c004", "c009"), (stage, heard))))
    replies, _ = ask_sum(session(router, 7, 7), tuple(clients))
    early = stage in STAGES[:3]
    assert replies.missing == (("c001", "c004", "c009") if early else ())  # later losses are in the sum
    assert set(replies.failures) == set(replies.missing)
    check_sum(clients, replies)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["give", "@unmask"])
def test_thirty_of_a_hundred_go_and_the_sum_of_the_others_is_right(stage: str) -> None:
    clients = numbers(100)
    lost = np.random.default_rng(0).choice(list(clients), 30, replace=False)
    router = Router(clients, 67, dying(dict.fromkeys(lost.tolist(), (stage, True))))
    replies, _ = ask_sum(session(router, 67, 67), tuple(clients))
    assert len(replies.missing) == (30 if stage == "give" else 0)
    check_sum(clients, replies)


def test_losses_before_and_after_masking_end_without_a_sum() -> None:
    clients = numbers(10)
    router = Router(clients, 7, dying({"c001": ("give", True), "c004": ("@unmask", True)}))
    replies, event = ask_sum(session(router, 7, 7), tuple(clients))
    assert (replies.total, replies.missing) == ({}, tuple(clients))
    assert set(event.failures) == {"c001", "c004"}


def test_too_few_are_never_summed() -> None:
    clients = numbers(10)
    router = Router(clients, 7, dying({f"c00{i}": ("give", False) for i in range(4)}))
    replies, _ = ask_sum(session(router, 7, 5), tuple(clients))
    assert (replies.total, len(replies.missing)) == ({}, 10)
    assert not [task for task, *_ in router.seen if task in ("@agree", "@unmask")]


# What the masks hide


def chi_square(x: Array) -> float:
    """The p-value of "these bytes are uniform"."""
    counts = np.bincount(np.ascontiguousarray(x).view(np.uint8).ravel(), minlength=256)
    return float(scipy.stats.chisquare(counts).pvalue)


def view(x: float, t: int) -> Array:
    """What the server sees of one client among three with 784×10 numbers equal to x."""
    data: dict[str, Arrays] = {name: {"x": np.full((784, 10), x)} for name in "abc"}
    router, _ = met(3, t, data)
    return router.parties["b"].mask(data["b"], HERE)["x"]


@pytest.mark.parametrize("t", [2, 3])
def test_what_one_client_sends_is_uniform_whatever_it_holds(t: int) -> None:
    views = {x: view(x, t) for x in (0.0, -12345.678)}
    for y in views.values():
        assert chi_square(y) > RARE
        for byte in range(8):
            assert chi_square(y.view(np.uint8).reshape(-1, 8)[:, byte]) > RARE / 8
    bytes_of = [np.bincount(y.view(np.uint8).ravel(), minlength=256) for y in views.values()]
    assert scipy.stats.chi2_contingency(bytes_of).pvalue > RARE  # the two cannot be told apart


def test_that_test_fails_without_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "stream", lambda key, words, out=None: np.zeros(words, dtype=np.uint64))
    assert chi_square(view(-12345.678, 2)) < 1e-100


def test_that_test_fails_if_masks_are_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two exchanges is uniform; if the seeds did not depend on the exchange it would be zero."""

    def difference() -> Array:
        router, _ = met(3, 2)
        party, x = router.parties["c001"], {"x": np.ones((784, 10))}
        return party.mask(x, (1, 0))["x"] - party.mask(x, (1, 1))["x"]

    assert chi_square(difference()) > RARE
    monkeypatch.setattr(masking, "purpose_key", lambda secret, *what: keys.purpose_key(secret, what[0]))
    assert not difference().any()


@pytest.mark.parametrize("t", [3, 5])
def test_all_but_two_clients_and_the_server_see_no_more_than_the_sum_of_those_two(t: int) -> None:
    """They take off every mask they know of c000's message; one mask remains, that between c000 and c001."""
    m, x = 5, {"x": np.ones((784, 10))}
    router, _ = met(m, t)
    y = router.parties["c000"].mask(x, HERE)["x"]
    known = [own_seed(router.parties["c000"].root, router.parties["c000"].circle.context, HERE)] if t < m else []
    for i in range(2, m):
        circle = router.parties[f"c00{i}"].circle
        known.append(circle.pair(0, "mask", HERE, b""))
    words = y.size + 3  # the counts come last
    rest = np.concatenate([y.ravel(), np.zeros(3, np.uint64)])
    for key in known:
        rest = rest - keys.stream(key, words)
    rest = rest[:-3] - fixed.to_lanes(x, m)["x"].ravel()
    assert chi_square(rest) > RARE
    last = keys.stream(router.parties["c001"].circle.pair(0, "mask", HERE, b""), words)[:-3]
    assert not (rest - last).any()  # with it, nothing remains: those were all


def late_message(m: int, t: int) -> tuple[Router, dict[str, Array], Array]:
    """c000 answered too late, the others have revealed what they share with it: only its own mask covers it."""
    router, shares = met(m, t)
    late = np.array(router.parties["c000"].mask(router.data["c000"], HERE)["n"])
    for name in list(router.parties)[1:]:
        router.parties[name].mask(router.data[name], HERE)
    others = marks(m, *range(1, m))
    tags = {n: router.parties[n].answer("@agree", {"present": others}, HERE)["tags"] for n in list(router.data)[1:]}
    for i, name in enumerate(router.data):
        if i:
            mine = np.stack([np.zeros(16, np.uint8), *[tags[j][i] for j in tags]])
            told = router.parties[name].answer("@unmask", {"tags": mine}, HERE)
            late = late - keys.stream(told["pairs"][0].tobytes(), 1)
    return router, shares, late


def test_fewer_than_the_threshold_cannot_open_what_came_too_late() -> None:
    m, t = 5, 4
    router, shares, late = late_message(m, t)
    context = router.parties["c000"].circle.context
    circles = {j: router.parties[f"c00{j}"].circle for j in range(1, m)}
    held = {
        j + 1: keys.unseal(circle.pair(0, "share", 0, j), shares["c000"][j].tobytes(), context)
        for j, circle in circles.items()
    }  # by the points of the polynomial
    root = router.parties["c000"].root
    assert shamir.combine_shares(held) == root  # t of them open it,
    opened = late - keys.stream(own_seed(root, context, HERE), 1)
    assert opened.item() == router.data["c000"]["n"]
    few = {point: held[point] for point in (2, 3, 4)}  # t - 1 do not, see test_shamir.py
    with pytest.raises(ProtocolError, match="do not fit together"):
        shamir.combine_shares(few)


def test_what_is_revealed_of_a_missing_client_does_not_open_what_it_sent_before() -> None:
    """The paper's keys serve once. Here they serve many exchanges: so only this exchange's seeds are revealed."""
    clients, places = numbers(4), ((1, 0), (1, 1))
    quiet = {"now": False}
    router = Router(clients, 3, lambda task, client: (not (quiet["now"] and client == "c000"), True))
    secure = session(router, 3, 3)
    ask_sum(secure, tuple(clients), places[0])
    pairs = {j: router.parties[f"c00{j}"].circle.pair(0, "mask", places[0], b"") for j in (1, 2, 3)}
    quiet["now"] = True
    replies, _ = ask_sum(secure, tuple(clients), places[1])
    assert replies.missing == ("c000",)
    told = {c: a["pairs"] for task, c, a in router.seen if task == "@unmask" and len(a["pairs"])}
    assert set(told) == {"c001", "c002", "c003"}
    assert all(told[f"c00{j}"][0].tobytes() != pairs[j] for j in pairs)
    assert router.parties["c000"].key.private_bytes_raw() not in b"".join(a.tobytes() for a in told.values())


# A server that lies, and a network that is not to be trusted


def agreed(m: int = 5, t: int = 3, present: tuple[int, ...] | None = None) -> tuple[Router, dict[str, Any], Arrays]:
    """All have masked and agreed; the router, the sealed shares, and c000's good @unmask request."""
    router, shares = met(m, t)
    for name, party in router.parties.items():
        party.mask(router.data[name], HERE)
    who = marks(m, *(range(m) if present is None else present))
    names = [name for name, there in zip(router.parties, who, strict=True) if there]
    tags = {name: router.parties[name].answer("@agree", {"present": who}, HERE)["tags"] for name in names}
    mine = np.stack([tags[name][0] if name in tags else np.zeros(16, np.uint8) for name in router.parties])
    return router, shares, {"tags": mine}


def refused(party: Party, phase: str, arrays: Arrays, why: str, place: tuple[int, int] = HERE) -> None:
    with pytest.raises(ProtocolError, match=f"Secure aggregation refused: .*{why}|{why}"):
        party.answer(phase, arrays, place)


def test_a_good_request_is_answered_and_answered_alike_again() -> None:
    router, _, request = agreed()
    first, again = (router.parties["c000"].answer("@unmask", request, HERE) for _ in range(2))
    assert first["seed"].tobytes() == again["seed"].tobytes()
    assert len(first["pairs"]) == 0


def test_two_sets_for_one_exchange_are_refused() -> None:
    router, _, _ = agreed()
    refused(router.parties["c000"], "@agree", {"present": marks(5, 0, 1, 2)}, "two different sets of clients")


def test_a_set_below_the_threshold_is_refused() -> None:
    router, _ = met(5, 3)
    router.parties["c000"].mask(router.data["c000"], HERE)
    refused(
        router.parties["c000"],
        "@agree",
        {"present": marks(5, 0, 1)},
        "at least 3 clients, but 2 are",
    )


def test_a_client_that_answered_is_not_said_to_be_missing() -> None:
    router, _ = met(5, 3)
    router.parties["c000"].mask(router.data["c000"], HERE)
    refused(router.parties["c000"], "@agree", {"present": marks(5, 1, 2, 3, 4)}, "is said not to have")


def test_the_server_cannot_tell_one_client_that_it_is_in_and_the_others_that_it_is_not() -> None:
    """Both kinds of masks of one client, from different clients: the tags would have to be forged."""
    router, _ = met(5, 3)
    for name, party in router.parties.items():
        party.mask(router.data[name], HERE)
    everyone, others = marks(5, 0, 1, 2, 3, 4), marks(5, 1, 2, 3, 4)
    victim, *rest = router.parties.values()
    victim.answer("@agree", {"present": everyone}, HERE)
    tags = [party.answer("@agree", {"present": others}, HERE)["tags"] for party in rest]
    mine = np.stack([np.zeros(16, np.uint8), *[tag[0] for tag in tags]])
    refused(victim, "@unmask", {"tags": mine}, "at least 3 clients must agree, but 1 do")


def test_one_wrong_tag_does_no_harm_where_enough_agree() -> None:
    """A site that sends wrong tags cannot keep the others from their sum."""
    router, _, request = agreed(present=(0, 1, 2, 3))
    tags = np.array(request["tags"])
    tags[3] ^= 1
    assert router.parties["c000"].answer("@unmask", {"tags": tags}, HERE)["pairs"].shape == (1, 32)


def test_the_tag_of_a_client_that_did_not_answer_does_not_count() -> None:
    router, _, request = agreed(t=4, present=(0, 1, 2, 3))
    party = router.parties["c000"]
    tags = np.array(request["tags"])
    tags[4] = stack_bytes([masking._tag_set(party.circle, party.sent, 4, 0)], 16)[0]  # valid, if c004 were there
    tags[3] ^= 1
    refused(party, "@unmask", {"tags": tags}, "at least 4 clients must agree, but 3 do")


def test_the_mask_of_its_own_that_a_client_shows_opens_no_other_exchange() -> None:
    router, _, request = agreed()
    party = router.parties["c000"]
    seed = party.answer("@unmask", request, HERE)["seed"].tobytes()
    assert seed == own_seed(party.root, party.circle.context, HERE)
    for place in ((1, 1), (2, 0)):
        assert seed != own_seed(party.root, party.circle.context, place)
    assert seed != own_seed(party.root, b"another epoch", HERE)


def test_never_both_kinds_for_one_client() -> None:
    router, shares, request = agreed(present=(0, 1, 2, 3))
    party = router.parties["c000"]
    assert len(party.answer("@unmask", request, HERE)["pairs"]) == 1  # the mask between c000 and c004
    share = shares["c004"][:1]
    refused(party, "@recover", {"lost": marks(5, 4), "shares": share}, "were revealed already")
    with pytest.raises(ProtocolError, match="these keys were used up; a new epoch is needed"):
        party.mask(router.data["c000"], (1, 1))


def test_shares_only_once_and_only_of_clients_in_the_sum() -> None:
    router, shares, request = agreed()
    party = router.parties["c000"]
    lost = {"lost": marks(5, 4), "shares": shares["c004"][:1]}
    refused(party, "@recover", lost, "before all agreed")
    party.answer("@unmask", request, HERE)
    refused(party, "@recover", {"lost": marks(5, 0), "shares": shares["c000"][:1]}, "not in the sum")
    for _ in range(2):
        given = party.answer("@recover", lost, HERE)
        assert (given["shares"].shape, given["opened"].tolist()) == ((1, 32), [1])
    other = {"lost": marks(5, 3), "shares": shares["c003"][:1]}
    refused(party, "@recover", other, "two different sets")
    with pytest.raises(ProtocolError, match="a new epoch is needed"):
        party.mask(router.data["c000"], (1, 1))


@pytest.mark.parametrize("kind", ["tampered", "swapped", "of another", "replayed"])
def test_shares_that_are_not_what_was_sealed_for_this_client_do_not_open(kind: str) -> None:
    router, shares, request = agreed()
    party = router.parties["c000"]
    party.answer("@unmask", request, HERE)
    share = {
        "tampered": shares["c004"][:1] ^ np.eye(1, 48, 7, dtype=np.uint8),
        "swapped": shares["c004"][1:2],  # meant for c001
        "of another": shares["c003"][:1],
        "replayed": agreed()[1]["c004"][:1],  # of another epoch
    }[kind]
    given = party.answer("@recover", {"lost": marks(5, 4), "shares": share}, HERE)
    assert given["opened"].tolist() == [0]
    assert not given["shares"].any()


@pytest.mark.parametrize("kind", ["tampered", "reflected", "replayed"])
def test_tags_that_are_not_for_this_exchange_and_client_are_refused(kind: str) -> None:
    router, _, request = agreed(t=4, present=(0, 1, 2, 3))
    tags = np.array(request["tags"])
    if kind == "tampered":
        tags[2, 3] ^= 1
    elif kind == "reflected":
        tags[2] = router.parties["c000"].answer("@agree", {"present": marks(5, 0, 1, 2, 3)}, HERE)["tags"][2]
    else:
        tags[2] = agreed(t=4, present=(0, 1, 2, 3))[2]["tags"][2]
    refused(router.parties["c000"], "@unmask", {"tags": tags}, "at least 4 clients must agree, but 3 do")


def test_masks_cancel_only_between_clients_that_were_asked_the_same() -> None:
    """A server that asks all but one for M·0 would read that one's M·Z."""
    data: dict[str, Arrays] = {name: {"x": np.ones(3)} for name in "abc"}
    for odd in (b"Z", b"0"):
        router, _ = met(3, 3, data)
        sent = [router.parties[n].mask(x, HERE, odd if n == "a" else b"Z") for n, x in data.items()]
        total = {name: np.sum([y[name] for y in sent], axis=0, dtype=np.uint64) for name in sent[0]}
        if odd == b"Z":
            assert fixed.from_lanes(total, 3)["x"].tolist() == [3, 3, 3]
        else:
            with pytest.raises(ProtocolError, match=r"The masks of 3 clients did not cancel, so there is no sum"):
                fixed.from_lanes(total, 3)


def test_a_request_is_known_by_all_of_it() -> None:
    base = {"Z": np.arange(4.0), "k": np.array(1)}
    others = [{**base, "Z": base["Z"].reshape(2, 2)}, {**base, "Z": base["Z"].astype("f4")}, {**base, "k": np.array(2)}]
    assert len({masking.digest_request("multiply", x) for x in [base, *others, {"Z": base["Z"]}]}) == 5
    assert masking.digest_request("gram", base) != masking.digest_request("multiply", base)


def test_an_exchange_is_masked_once() -> None:
    router, _ = met(3, 3)
    party = router.parties["c000"]
    sent = party.mask(router.data["c000"], (2, 1))
    assert party.find_sent((2, 1)) is sent  # the same again, whatever else the server may ask under that number
    for place in ((2, 1), (2, 0), (1, 9)):
        with pytest.raises(ProtocolError, match="was masked already, or is over"):
            party.mask(router.data["c001"], place)


def test_an_exchange_is_not_masked_again_under_new_keys() -> None:
    """The sum over all and, under new keys, over all but one: the difference would show that one."""
    clients = numbers(4)
    router = Router(clients, 3)
    ask_sum(session(router, 3), tuple(clients))
    replies, event = ask_sum(session(router, 3, 3), tuple(clients)[1:])
    assert replies.total == {}
    assert "was masked already, or is over" in event.failures["c001"]


def test_phases_out_of_order_are_refused() -> None:
    party = Party("a", 2)
    with pytest.raises(ProtocolError, match="no keys were agreed on"):
        party.mask({"x": np.ones(1)}, HERE)
    refused(party, "@agree", {"present": marks(2, 0, 1)}, "no keys were agreed on")
    refused(party, "@steal", {}, "'@steal' is not a phase")
    refused(party, "@roster", roster(["a", "b"], [os.urandom(32), os.urandom(32)]), "a roster came before the keys")
    router, _ = met(3, 2)
    refused(router.parties["c000"], "@unmask", {}, "has not answered in exchange")
    router.parties["c000"].mask(router.data["c000"], HERE)
    refused(
        router.parties["c000"],
        "@unmask",
        {"agreed": marks(3), "tags": np.zeros((3, 16), np.uint8)},
        "before all agreed",
    )


def roster(names: list[str], publics: list[bytes]) -> Arrays:
    return {"names": to_bytes(json.dumps(names)), "keys": stack_bytes(publics, 32)}


ZERO_POINT = bytes(32)  # a public key of small order: the shared secret would be all zero


@pytest.mark.parametrize(
    ("names", "edit", "why"),
    [
        ("abc", {"b": ZERO_POINT}, "all-zero secret"),
        ("abc", {"b": "c"}, "the same name or the same key"),
        ("abc", {"a": "new"}, "the key of 'a' in the roster is not its own"),
        ("bcd", {}, "'a' is not in the roster"),
        ("ab", {}, "a sum must be over at least 3 clients, but the roster has 2"),
        ("abb", {}, "the same name or the same key"),
    ],
)
def test_a_bad_roster_is_refused(names: str, edit: dict[str, Any], why: str) -> None:
    party = Party("a", 3)
    own = party.answer("@keys", {"epoch": stack_bytes([os.urandom(16)], 16)[0]}, HERE)["key"].tobytes()
    publics = {name: keys.new_key()[1] for name in "bcd"} | {"a": own}
    for name, key in edit.items():
        publics[name] = keys.new_key()[1] if key == "new" else publics[key] if isinstance(key, str) else key
    refused(party, "@roster", roster(list(names), [publics[n] for n in names]), why)
    with pytest.raises(ProtocolError, match="no keys were agreed on"):
        party.mask({"x": np.ones(1)}, HERE)


def test_one_roster_in_an_epoch() -> None:
    router, _ = met(3, 2)
    party = router.parties["c000"]
    other = roster(["c000", "eve"], [party.public, keys.new_key()[1]])
    refused(party, "@roster", other, "another roster in this epoch")


def test_two_clients_with_different_rosters_do_not_understand_each_other() -> None:
    """A key swapped for one client only: tags and shares do not open, since all keys are bound to the whole roster."""
    parties = {name: Party(name, 2) for name in "abc"}
    epoch = {"epoch": stack_bytes([os.urandom(16)], 16)[0]}
    publics = [party.answer("@keys", epoch, HERE)["key"].tobytes() for party in parties.values()]
    fake = [publics[0], publics[1], keys.new_key()[1]]
    for name, party in parties.items():
        party.answer("@roster", roster(list("abc"), fake if name == "a" else publics), HERE) if name != "c" else None
        party.mask({"x": np.ones(2)}, HERE) if name != "c" else None
    tag = parties["b"].answer("@agree", {"present": marks(3, 0, 1)}, HERE)["tags"][0]
    parties["a"].answer("@agree", {"present": marks(3, 0, 1)}, HERE)
    tags = np.stack([tag, tag, tag])
    refused(parties["a"], "@unmask", {"tags": tags}, "at least 2 clients must agree, but 1 do")


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"names": to_bytes("[1, 2]"), "keys": np.zeros((2, 32), np.uint8)},
        {"names": to_bytes("no json"), "keys": np.zeros((2, 32), np.uint8)},
        {"names": to_bytes('["a"]'), "keys": np.zeros((1, 31), np.uint8)},
        {"names": to_bytes('["a"]'), "keys": np.zeros((1, 32))},
    ],
    ids=["nothing", "numbers", "no json", "short", "floats"],
)
def test_malformed_messages_are_refused(arrays: Arrays) -> None:
    party = Party("a", 2)
    party.answer("@keys", {"epoch": stack_bytes([os.urandom(16)], 16)[0]}, HERE)
    refused(party, "@roster", arrays, "must be")


# Options


def test_the_threshold_follows_from_who_must_answer() -> None:
    assert Secure().threshold_for(10) == 10
    assert [Secure().threshold_for(m, 2) for m in (2, 3, 4, 5, 10, 100)] == [2, 3, 3, 4, 7, 67]
    assert Secure().threshold_for(10, 9) == 9
    assert Secure(4).threshold_for(10) == 4


@pytest.mark.parametrize(("t", "m"), [(1, 5), (0, 5), (6, 5), (2.5, 5), (True, 5), ("2", 5)])
def test_a_threshold_must_make_sense(t: Any, m: int) -> None:
    with pytest.raises(InputError, match=r"threshold must be from 2 to the 5 clients, but is "):
        Secure(t).threshold_for(m)


def test_one_client_is_no_sum() -> None:
    with pytest.raises(InputError, match="A secure sum needs at least two clients: the sum of one shows"):
        Secure().threshold_for(1)
