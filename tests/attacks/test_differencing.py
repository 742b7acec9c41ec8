"""Sums over different sets of sites show their differences: fixed groups leave none that is smaller than a group."""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))

from verified_world import SITES, Refused, World, second_moments

from fedspan.algorithms import Gram
from fedspan.algorithms.spectral.oneshot import unpack_triangle
from fedspan.channel import wire
from fedspan.cli.site.site_commands import site as site_commands
from fedspan.deployment.site_rules import rosters as rosters_module
from fedspan.deployment.site_rules.rosters import Rosters, extend_groups
from fedspan.engines.loopback import Call, Deliver, Tamper
from fedspan.secure.masking import Secure

Names = tuple[str, ...]
defences = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])


def allow_everything(known: Any, asked: Any, me: str) -> Any:
    """Fixed groups switched off."""
    return asked


# ---------------------------------------------------------------------------------------- two ordinary jobs


def learn_moments(world: World, sites: Names, secure: Secure) -> np.ndarray:
    """The sum of second moments that an ordinary job over those sites gives."""
    server = world.server(algorithm=Gram(k=2, center=False), sites=sites, secure=secure)
    return unpack_triangle(server.drive()[(1, 0)].total["G"])


@defences
@pytest.mark.parametrize("secure", [Secure(), Secure(verified=True)], ids=["secure", "verified"])
@pytest.mark.parametrize("restarted", [False, True])
def test_two_jobs_over_four_and_over_three_sites(
    tmp_path: Path, secure: Secure, restarted: bool, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, verified=False, sites=None)
    if not defended:
        monkeypatch.setattr(rosters_module, "extend_groups", allow_everything)
    four = learn_moments(world, SITES, secure)
    if restarted:
        world.restart()
    if defended:
        with pytest.raises(Refused, match="Table 'default' was summed with these groups of sites before: ada, bo, cy"):
            learn_moments(world, SITES[:3], secure)
        np.testing.assert_array_equal(learn_moments(world, SITES, secure), four)  # a repeated job goes through
        return
    alone = four - learn_moments(world, SITES[:3], secure)
    np.testing.assert_allclose(alone, second_moments("dee", mean=np.zeros(6)), rtol=1e-9)


def lose(site: str) -> Tamper:
    """Nothing reaches that site once the run has begun."""

    def tamper(call: Call, deliver: Deliver) -> Any:
        if call.site == site and isinstance(call.message, bytes) and wire.decode(call.message).round > 0:
            raise TimeoutError
        return deliver(call)

    return tamper


@defences
def test_the_same_job_with_and_without_a_site_that_was_away(tmp_path: Path, defended: bool) -> None:
    """A job that may go on without some sites is run twice, and once a site is away, by chance or by the server."""
    world = World(tmp_path, verified=False, sites=None, partial_sums=not defended)
    options: dict[str, Any] = {"algorithm": Gram(k=2, center=False), "secure": Secure(threshold=3), "min_clients": 3}
    if defended:
        with pytest.raises(Refused, match="sums over 3 of its 4 sites, and the difference of two such sums may be a"):
            world.server(**options).drive()
        return
    four, three = (
        unpack_triangle(world.server(tamper=tamper, **options).drive()[(1, 0)].total["G"])
        for tamper in (None, lose("dee"))
    )
    np.testing.assert_allclose(four - three, second_moments("dee", mean=np.zeros(6)), rtol=1e-9)


@defences
def test_other_groups_in_a_second_run(tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    if not defended:
        monkeypatch.setattr(rosters_module, "extend_groups", allow_everything)
    world.server(groups=[["ada", "bo"], ["cy", "dee"]]).drive()
    other = world.server(groups=[["ada", "cy"], ["bo", "dee"]])
    if defended:
        with pytest.raises(Refused, match="was summed with these groups of sites before: ada, bo; cy, dee"):
            other.drive()
    else:
        other.drive()


def test_groups_are_remembered_only_when_a_masked_answer_leaves(tmp_path: Path) -> None:
    """An opening that came to nothing binds nobody."""
    world = World(tmp_path)
    message = world.server(groups=2).session.inner.message
    assert "opened" in json.loads(world.services["ada"].open(message.to_json()))
    assert not (tmp_path / "ada" / "fedspan" / "rosters.json").exists()
    world.server().drive()
    held = json.loads((tmp_path / "ada" / "fedspan" / "rosters.json").read_text(encoding="utf-8"))
    assert [entry["groups"] for entry in held["tables"].values()] == [[list(SITES)]]


def test_a_second_name_for_a_table_changes_nothing(tmp_path: Path) -> None:
    held = Rosters(tmp_path / "rosters.json")
    held.record("default", "a.csv", (("a", "b", "c"),), "a")
    with pytest.raises(Exception, match="was summed with these groups"):
        held.record("again", "a.csv", (("a", "b"),), "a")
    held.record("other", "b.csv", (("a", "b"),), "a")


def test_an_administrator_may_let_a_table_begin_anew(tmp_path: Path) -> None:
    world = World(tmp_path, verified=False, sites=None)
    learn_moments(world, SITES, Secure())
    for site in SITES[:3]:
        done = CliRunner().invoke(site_commands, ["forget", str(tmp_path / site), "default"])
        assert done.exit_code == 0
        assert "no longer bound to ada, bo, cy, dee" in done.output
    learn_moments(world, SITES[:3], Secure())
    held = json.loads((tmp_path / "ada" / "fedspan" / "rosters.json").read_text(encoding="utf-8"))
    assert held["forgotten"][0]["table"] == "default"
    assert held["forgotten"][0]["groups"] == [list(SITES)]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rosters.json").write_text("{", encoding="utf-8")
    with pytest.raises(Exception, match="nobody knows which sums were taken"):
        Rosters(tmp_path / "rosters.json").check("default", "a.csv", (("a", "b"),), "a")


def test_two_processes_cannot_bring_two_partitions(tmp_path: Path) -> None:
    """Of many at once, one wins; the others are refused."""
    path, done = tmp_path / "rosters.json", []
    halves = [tuple(sorted((p, tuple(n for n in "abcdef" if n not in p)))) for p in itertools.combinations("abcdef", 3)]

    def record(groups: Any) -> None:
        try:
            Rosters(path).record("default", "a.csv", groups, "a")
            done.append(groups)
        except Exception as error:
            assert "was summed with" in str(error)  # noqa: PT017

    threads = [threading.Thread(target=record, args=(groups,)) for groups in set(halves)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 1


# ---------------------------------------------------------------------------------------- attackers at random


class Keeper:
    """One site's memory, by the rule under test."""

    def __init__(self, me: str, least: int, rule: Any) -> None:
        self.me, self.least, self.rule, self.known = me, least, rule, None

    def admits(self, groups: tuple[Names, ...], present: set[str]) -> bool:
        """Whether this site takes part in a sum over those, of a run with those groups."""
        if any(len(group) < self.least for group in groups):
            return False
        extended = self.rule(self.known, groups, self.me)
        if extended is None or self.me not in present:
            return False
        self.known = extended
        inside = [set(group) for group in groups if set(group) & present]
        return present == set().union(*inside)


def smallest_difference(sums: list[frozenset[str]], names: Names) -> int:
    """The fewest sites that a combination of the sums isolates: whether a set's indicator is in their span."""
    vectors = np.array([[name in one for name in names] for one in sums], dtype=float)
    rank = np.linalg.matrix_rank(vectors)
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(range(len(names)), size):
            target = np.zeros(len(names))
            target[list(chosen)] = 1.0
            if np.linalg.matrix_rank(np.vstack([vectors, target])) == rank:
                return size
    return len(names)


def random_partition(rng: random.Random, names: list[str], least: int) -> tuple[Names, ...]:
    rng.shuffle(names)
    groups = []
    while len(names) >= least:
        size = rng.randint(least, min(len(names), least + 2))
        size = len(names) if len(names) - size < least else size
        groups.append(tuple(sorted(names[:size])))
        names = names[size:]
    return tuple(sorted(groups))


def attack(rng: random.Random, names: Names, least: int, rule: Any, tries: int) -> list[frozenset[str]]:
    """The sets over which an attacker gets sums: new partitions, held ones, parts of them, and more."""
    sites = {name: Keeper(name, least, rule) for name in names}
    got = []
    for _ in range(tries):
        groups = random_partition(rng, rng.sample(names, rng.randint(least, len(names))), least)
        held = [site.known for site in sites.values() if site.known]
        if held and rng.random() < 0.7:
            groups = rng.choice(held)
            if rng.random() < 0.4:
                groups = tuple(rng.sample(groups, rng.randint(1, len(groups))))
            elif rng.random() < 0.5:
                free = [name for name in names if not any(name in group for group in groups)]
                groups = (*groups, tuple(rng.sample(free, least))) if len(free) >= least else groups
        chosen = rng.sample(groups, rng.randint(1, len(groups)))
        present = {name for group in chosen for name in group}
        if rng.random() < 0.3:
            present.discard(next(iter(sorted(present))))
        if present and all(sites[name].admits(groups, present) for name in sorted(present)):
            got.append(frozenset(present))
    return got


@defences
@pytest.mark.parametrize("size", [7, 9])
def test_attackers_at_random_isolate_no_less_than_a_group(size: int, defended: bool) -> None:
    names, least = tuple("abcdefghi"[:size]), 3
    rule = extend_groups if defended else allow_everything
    smallest, taken = [], 0
    for seed in range(25):
        got = attack(random.Random(1000 + seed), names, least, rule, tries=80)  # noqa: S311 - not for secrets
        taken += len(got)
        if got:
            smallest.append(smallest_difference(sorted(set(got), key=sorted), names))
    assert taken >= 200
    assert (min(smallest) >= least) == defended


@pytest.mark.parametrize("lost", [0.0, 0.05, 0.2])
def test_honest_runs_with_losses_are_never_refused(lost: float) -> None:
    """A missing member leaves its group out, and resumptions and repeated jobs bring the same groups again."""
    rng, names = random.Random(5), tuple("abcdefghi")  # noqa: S311
    groups = (("a", "b", "c"), ("d", "e", "f"), ("g", "h", "i"))
    sites = {name: Keeper(name, 3, extend_groups) for name in names}
    sums = 0
    for _ in range(200):
        there = {name for name in names if rng.random() >= lost}
        present = {name for group in groups if set(group) <= there for name in group}
        if present:
            assert all(sites[name].admits(groups, present) for name in present)
            sums += 1
    assert sums > 150
