"""Noise that several sites share is too little if a server invents the others: who shares it must be sure of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from verified_world import SITES, LyingServer, Refused, World, rows

from fedspan import RowDP
from fedspan.algorithms import NoisyGram
from fedspan.channel import Channel
from fedspan.core.protection import Protection
from fedspan.core.protocol import Ask, Sum, declared_releases, tasks_of
from fedspan.deployment.policy import Policy
from fedspan.privacy.guard import Guard
from fedspan.privacy.keyring import read_key
from fedspan.privacy.plan import Plan, plan_for
from fedspan.secure.masking import Secure

RUNS = 12
SERVER = NoisyGram(k=2, center=False)
defences = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])


def make_plan(sharers: int) -> Plan:
    dp = RowDP(epsilon=1.0, delta=1e-6, row_norm=20.0)
    return plan_for(dp, declared_releases(SERVER.client), SERVER.planned(), spread=sharers)


def learn_gram(world: World, secure: Secure, sharers: int) -> np.ndarray:
    """The noised sum of Gram matrices that a server gets whose plan says how many sites share the noise."""
    server, plan = LyingServer(world, algorithm=SERVER, secure=secure), make_plan(sharers)
    server.session = server.engine.start(SERVER, Channel(), 0, Protection(plan, secure, retries=0, rounds=2))
    server.ask(Ask("census", want=Sum("n", "longer")), (0, 0))
    total = server.ask(Ask("triangle", {}, Sum("G")), (1, 0)).total
    return np.asarray(plan.to_numbers("triangle", tasks_of(SERVER.client)["triangle"].releases, total)["G"])


def answer_for_all_but(site: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other sites are the server's inventions: they have no rows, and add no noise."""
    protect = Guard.protect

    def protect_one(self: Guard, *given: Any) -> Any:
        noised = protect(self, *given)
        own = read_key(Policy.read(world.folder / site).noise_key)
        return noised if self.source.key == own else {name: np.zeros_like(x) for name, x in noised.items()}

    monkeypatch.setattr(Guard, "protect", protect_one)


def pack(M: np.ndarray) -> np.ndarray:
    """The triangle of a symmetric matrix as it is released: what stands twice in it, times √2."""
    i, j = np.triu_indices(len(M))
    return np.asarray(M[i, j] * np.where(i == j, 1.0, np.sqrt(2)))


@defences
def test_a_server_that_invents_the_other_sites(tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the keys of its inventions, and is left with one site's numbers and a small part of the noise."""
    world = World(tmp_path, verified=False, sites=None)
    answer_for_all_but("ada", world, monkeypatch)
    if defended:
        with pytest.raises(Refused, match="share the noise of a sum only in verified runs"):
            learn_gram(world, Secure(), len(SITES))
        return
    monkeypatch.setattr(Policy, "_check_noise", lambda *_: None)
    A = rows("ada")
    left = [learn_gram(world, Secure(), len(SITES)) - pack(A.T @ A) for _ in range(RUNS)]
    planned = make_plan(1).noise["triangle"]["G"] * 20.0**2
    assert np.std(left) / planned == pytest.approx(1 / np.sqrt(len(SITES)), rel=0.15)


def test_noise_that_is_not_shared_protects_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a threshold below all, each site adds all of the noise, whoever the others are."""
    world = World(tmp_path, verified=False, sites=None)
    answer_for_all_but("ada", world, monkeypatch)
    A = rows("ada")
    left = [learn_gram(world, Secure(threshold=3), 1) - pack(A.T @ A) for _ in range(RUNS)]
    planned = make_plan(1).noise["triangle"]["G"] * 20.0**2
    assert np.std(left) / planned == pytest.approx(1.0, rel=0.15)


def test_sites_that_know_each_other_share_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert np.isfinite(learn_gram(world, Secure(verified=True), len(SITES))).all()
