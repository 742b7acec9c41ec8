"""What benchmarks/federation.py runs on the server and at the sites: bare `collab` calls beside our rounds.

Both kinds take turns in one job, in the same processes, so that a busy machine slows both alike.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.collab import collab

import fedspan
from fedspan.algorithms import Ssi
from fedspan.algorithms._moments import RowsClient
from fedspan.algorithms.spectral import power
from fedspan.core.ledger import Ledger
from fedspan.core.run import Info
from fedspan.deployment import flare
from fedspan.deployment.later_checkpoint import LaterCheckpoint
from fedspan.deployment.operations import flare_server
from fedspan.deployment.run_request import RunRequest
from fedspan.deployment.server_job import ServerJob
from fedspan.engines.remote import RemoteEngine
from fedspan.secure.masking import Secure

K = 10  # columns of the payload
ROWS = 5  # of each site


class Stopwatch:
    """Adds up the seconds that some functions take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


class Bench(ServerJob):
    """In place of carrying out an order, it measures; what it found is left in the server's kit."""

    def carry_out(self, order: RunRequest, results: Path) -> None:
        self.arithmetic = Stopwatch()
        for name in ("rayleigh_ritz", "polar"):  # all that the algorithm itself computes in a round
            setattr(power, name, self.arithmetic.around(getattr(power, name)))
        found: dict[str, dict[str, list[float]]] = {}
        for table, features, blocks, rounds in order.parameters["payloads"]:
            Z = np.random.default_rng(0).normal(size=(features, K))
            times: dict[str, list[float]] = {"bytes": [], "array": [], "ours": [], "secure": [], "product": []}
            for block in range(-1, blocks):  # the first is to warm up
                turn = {
                    "bytes": self.bare(Z.tobytes(), rounds),
                    "array": self.bare(Z, rounds),
                    "ours": self.ours(table, None, rounds),
                    "secure": self.ours(table, Secure(), rounds),
                    "product": self.product(Z, rounds),
                }
                for kind, seconds in turn.items() if block >= 0 else ():
                    times[kind] += seconds
            found[table] = times
        (self.folder.parent / "timings.json").write_text(json.dumps(found))

    def bare(self, payload: Any, rounds: int) -> list[float]:
        """The payload to all sites and back, by a call of the group as FLARE's own examples make it."""
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            answers = dict(collab.clients(timeout=120.0).echo(payload))
            seconds.append(time.perf_counter() - started)
            assert len(answers) == len(self.sites)
        return seconds

    def ours(self, table: str, secure: Secure | None, rounds: int) -> list[float]:
        """Rounds of subspace iteration from end to end (checkpoint and ledger too), less the algorithm's arithmetic."""
        run, seconds = secrets.token_hex(16), []
        engine = RemoteEngine(self.transport, self.sites, run, timeout=120.0)
        engine.where = {"name": table}
        place = self.folder / run
        place.mkdir(parents=True)
        last = (0.0, 0.0)

        def tick(info: Info) -> None:
            nonlocal last
            now = (time.perf_counter(), self.arithmetic.seconds)
            if info.round > 1:  # in the first the sites are opened
                seconds.append(now[0] - last[0] - (now[1] - last[1]))
            last = (time.perf_counter(), self.arithmetic.seconds)

        ledger, checkpoint = Ledger(place / "ledger.jsonl"), LaterCheckpoint(place / "checkpoint")
        fedspan.run(
            Ssi(k=K, tol=0.0), engine, rounds=rounds + 1, seed=0, secure=secure, ledger=ledger, callback=tick,
            checkpoint=checkpoint,
        )  # fmt: skip
        checkpoint.settle()
        engine.close()
        ledger.close()
        return seconds

    def product(self, Z: np.ndarray, rounds: int) -> list[float]:
        """A site's own part of such a round: its product, here in the server's process."""
        client = RowsClient(np.random.default_rng(1).normal(size=(ROWS, len(Z))))
        state, watch = client.init(), Stopwatch()
        multiply = watch.around(lambda: client.product(state, Z))
        for _ in range(rounds):
            multiply()
        return [watch.seconds / rounds] * rounds


class BenchServer(flare_server.FlareServer):
    """FLARE's door to it."""

    def __init__(self, orders: list[dict[str, Any]]) -> None:
        super().__init__(orders)
        flare_server.ServerJob = Bench  # type: ignore[misc]


class BenchClient(flare.FlareClient):
    """A site that also sends back what it is sent."""

    @collab.publish
    def echo(self, payload: Any) -> Any:
        return payload
