"""A federation in memory whose server is in the hands of a test: it may ask, show and forge what it likes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan.algorithms import Krylov
from fedspan.channel import Channel, wire
from fedspan.core.protection import Protection
from fedspan.core.protocol import Ask, Replies, Sum
from fedspan.core.rng import SERVER, Streams
from fedspan.core.run import RefusedExchange
from fedspan.deployment.kit import policy_file
from fedspan.deployment.site_service import SiteService
from fedspan.engines.loopback import Call, Deliver, Loopback, Tamper
from fedspan.engines.remote import RemoteEngine
from fedspan.errors import FedspanError
from fedspan.secure.identity import make_identities
from fedspan.secure.masking import Secure
from fedspan.secure.replica import Replica, Step
from fedspan.secure.verified_session import VerifiedSession
from fedspan.secure.witness import Witness

SITES = ("ada", "bo", "cy", "dee")
AT = (2, 0)
ALGORITHM = Krylov(k=2, tol=1e-9)
SUMS = {"count": ("n", "total"), "settle": ("n", "energy", "features"), "multiply": ("Y",)}  # what tasks release
Lie = Callable[[tuple[int, int], Ask], Ask]


class Refused(Exception):
    """A site did not answer."""


def rows(site: str) -> np.ndarray:
    rng = np.random.default_rng(SITES.index(site))
    return np.round(rng.normal(size=(20, 6)) @ np.diag([4.0, 3, 2, 1.5, 1, 0.5]) + 1.0, 6)


def second_moments(*sites: str, mean: np.ndarray | None = None) -> np.ndarray:
    """Σ (a - μ)(a - μ)ᵀ of some sites, around the mean of all."""
    mu = np.vstack([rows(site) for site in SITES]).mean(axis=0) if mean is None else mean
    A = np.vstack([rows(site) for site in sites]) - mu
    return np.asarray(A.T @ A)


class World:
    """Sites in folders, and servers that a test makes. The sites may be restarted; their folders stay."""

    def __init__(self, folder: Path, members: tuple[str, ...] = SITES, **rules: Any) -> None:
        self.folder, self.sites = folder, members
        rules = {"verified": True, "sites": list(members), "others": 1, **rules}
        for site in members:
            (folder / site / "local").mkdir(parents=True, exist_ok=True)
            table = folder / f"{site}.csv"
            header = ",".join("abcdef")
            np.savetxt(table, rows(site), delimiter=",", header=header, comments="", fmt="%.17g")
            text = policy_file({"default": {"path": str(table), "columns": list("abcdef")}}, **rules)
            (folder / site / "local" / "fedspan.toml").write_text(text, encoding="utf-8")
        self.restart()

    def restart(self) -> None:
        identities = make_identities(self.sites)
        self.services = {site: SiteService(site, self.folder / site, identities[site]) for site in self.sites}

    def server(self, **options: Any) -> LyingServer:
        return LyingServer(self, **options)


class LyingServer:
    """Drives a verified session by hand. Sites that refuse are told of by `Refused`."""

    def __init__(
        self,
        world: World,
        *,
        algorithm: Any = ALGORITHM,
        rounds: int = 20,
        seed: int = 0,
        run: str | None = None,
        tamper: Tamper | None = None,
        groups: Any = None,
        sites: tuple[str, ...] | None = None,
        secure: Secure | None = None,
        min_clients: int | None = None,
    ) -> None:
        self.algorithm, self.rounds, self.seed = algorithm, rounds, seed
        self.run = run or secrets.token_hex(16)
        self.sites = sites or world.sites
        self.engine = RemoteEngine(Loopback(world.services, tamper), self.sites, self.run, timeout=60.0)
        self.least = min_clients or len(self.sites)
        secure = secure or Secure(verified=True, groups=groups)
        protection = Protection(secure=secure, retries=0, rounds=rounds, min_clients=min_clients)
        self.session: Any = self.engine.start(algorithm, Channel(), seed, protection)
        self.state: Any = None

    @property
    def verified(self) -> VerifiedSession:
        assert isinstance(self.session, VerifiedSession)
        return self.session

    def ask(self, ask: Ask, place: tuple[int, int]) -> Replies:
        """What the sites answer, all of them."""
        try:
            replies, _ = self.session.exchange(ask, self.sites, *place)
        except RefusedExchange as refused:
            raise Refused(str(refused)) from None
        except FedspanError as error:
            raise Refused(str(error)) from None
        if len(self.sites) - len(replies.missing) < self.least:
            raise Refused("; ".join(replies.failures.values()) or "no answer")
        return replies

    def drive(
        self,
        lie: Lie | None = None,
        *,
        until: tuple[int, int] | None = None,
        before: Callable[[tuple[int, int]], None] | None = None,
        algorithm: Any = None,
        seed: int | None = None,
    ) -> dict[tuple[int, int], Replies]:
        """Run the algorithm, with a lie in place of some questions; until before that place, or to the end."""
        server, heard = algorithm or self.algorithm, {}
        done = -1
        while done < 0 or (done < self.rounds and not server.done(self.state)):
            rng = Streams(self.seed if seed is None else seed, done + 1, 0, SERVER)
            generator = server.init(rng) if done < 0 else server.round(self.state, rng)
            exchange = 0
            with suppress(StopIteration):
                ask = next(generator)
                while True:
                    place = (done + 1, exchange)
                    if place == until:
                        return heard
                    if before:
                        before(place)
                    heard[place] = self.ask(lie(place, ask) if lie else ask, place)
                    try:
                        ask = generator.send(heard[place])
                    except StopIteration as stop:
                        self.state = stop.value
                        raise
                    exchange += 1
            done += 1
        return heard


def replace_block(at: tuple[int, int], block: np.ndarray) -> Lie:
    """Ask with another block Z at that place."""
    return lambda place, ask: replace(ask, arrays={**ask.arrays, "Z": block}) if place == at else ask


def answer_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch replays off: a site takes any question as the next one, and learns nothing of earlier exchanges."""

    def take(self: Replica, task: str, arrays: Mapping[str, Any], place: tuple[int, int]) -> Ask:
        self.ask = Ask(task, dict(arrays), Sum(*SUMS[task]))
        self.steps.append(Step({}))
        return self.ask

    monkeypatch.setattr(Replica, "take", take)
    monkeypatch.setattr(Replica, "place", (-1, -1))
    monkeypatch.setattr(Witness, "_learn", lambda self, past, asked: None)


def bind_places_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch transcripts off: masks and tags know where in the run they are, but not what was asked or shown."""

    def bind(self: Witness, place: tuple[int, int], what: bytes) -> None:
        self.h = sha256(self.h + repr(place).encode()).digest()

    monkeypatch.setattr(Witness, "_bind", bind)


def tell(sites: tuple[str, ...], task: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Change a question on its way to some sites."""

    def tamper(call: Call, deliver: Deliver) -> Any:
        if call.method == "exchange" and isinstance(call.message, bytes) and call.site in sites:
            message = wire.decode(call.message)
            if message.task == task and (task != "multiply" or (message.round, message.exchange) == AT):
                call = call._replace(message=wire.encode(message._replace(arrays=change(dict(message.arrays)))))
        return deliver(call)

    return tamper
