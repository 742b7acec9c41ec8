"""A whole federation in one process: the real server's end and the real sites' ends, with memory in place of a network.

Use it to try a job on the folders of several sites, and to test what a network may do to messages, in milliseconds.
Requests, replies and checkpoints are the same, byte for byte, as between machines.

    federation = LoopbackFederation(Path("server"), {"north": Path("north"), "south": Path("south")})
    outcome = federation.carry_out(order)

Each site's folder has a `local/fedspan.toml`, as in its kit; the site obeys it here as it would anywhere.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from fedspan.deployment.server_job import Desk, Order
from fedspan.deployment.site_service import Station

METHODS = ("describe", "open", "exchange")


class Call(NamedTuple):
    """One call of the server to a site."""

    site: str
    method: str
    arguments: tuple[Any, ...]


Deliver = Callable[[Call], Any]
"""Brings a call to its site, and returns the site's answer."""

Tamper = Callable[[Call, Deliver], Any]
"""Stands between the server and the sites: what it returns, or raises, is what the server gets."""


class LoopbackTransport:
    """A `Transport` to sites in this process.

    Every call runs in a thread of its own, as it would on the site's machine. A site that takes longer than the
    caller's time-out goes on working; its caller gets a `TimeoutError`.

    Parameters
    ----------
    sites : mapping of name to Station
        The sites' ends.
    tamper : callable, optional
        `tamper(call, deliver)` is called in place of the site. `deliver(call)` asks the site. So a test can lose a
        message (raise), delay it (wait), change the answer (`deliver`, then return something else), or change the
        question (`deliver(call._replace(arguments=…))`).
    """

    def __init__(self, sites: Mapping[str, Station], tamper: Tamper | None = None) -> None:
        self.sites, self.tamper = sites, tamper

    def __call__(self, site: str, method: str, timeout: float, *arguments: Any) -> Any:
        """Call one site, and return what it said."""
        call = Call(site, method, arguments)
        answer: Future[Any] = Future()
        # Not a pool: Python waits for the threads of a pool when it ends, and a site may hang.
        threading.Thread(target=self._run, args=(call, answer), daemon=True, name=f"fedspan-{site}").start()
        try:
            return answer.result(timeout)
        except TimeoutError:
            if answer.done():  # the site, or `tamper`, raised it
                raise
            raise TimeoutError(f"Site {site!r} did not answer within {timeout:g} s.") from None

    def _run(self, call: Call, answer: Future[Any]) -> None:
        try:
            answer.set_result(self.tamper(call, self._deliver) if self.tamper else self._deliver(call))
        except BaseException as error:
            answer.set_exception(error)

    def _deliver(self, call: Call) -> Any:
        """Let the site answer. What could not travel over a network is refused here, too."""
        if call.method not in METHODS:
            raise ValueError(f"A site answers {', '.join(METHODS)}, not {call.method!r}.")
        for argument in call.arguments:
            if type(argument) not in (str, bytes, int):
                raise TypeError(
                    f"Only text, bytes and whole numbers travel to a site, but {call.method!r} was given a "
                    f"{type(argument).__name__}."
                )
        return getattr(self.sites[call.site], call.method)(*call.arguments)


class LoopbackFederation:
    """A server and its sites in this process.

    Parameters
    ----------
    folder : Path
        The server's own: the checkpoints and ledgers of its runs are in `runs`, what a researcher gets in `results`.
    sites : mapping of name to Path
        The sites' folders. Each has a `local/fedspan.toml`; what the site remembers is written to `fedspan`.
    tamper : callable, optional
        See `LoopbackTransport`; may be set anew between orders.
    """

    def __init__(self, folder: Path, sites: Mapping[str, Path], tamper: Tamper | None = None) -> None:
        self.folder, self.sites, self.tamper = folder, dict(sites), tamper

    def place(self, order: Order) -> Path:
        """The folder with the ledger, the model and the outcome of an order."""
        return self.folder / "results" / order.run

    def carry_out(self, order: Order) -> dict[str, Any]:
        """Carry out an order as one job, and return its outcome: `done`, and if not, `error` and `input`.

        Sites live as long as the job. An order that was carried out before goes on from its last checkpoint.
        """
        sent = Order.from_json(json.loads(json.dumps(order.to_json())))
        stations = {name: Station(name, kit) for name, kit in self.sites.items()}
        desk = Desk(LoopbackTransport(stations, self.tamper), list(stations), self.folder / "runs")
        desk.carry_out(sent, self.place(order))
        outcome: dict[str, Any] = json.loads((self.place(order) / "outcome.json").read_text(encoding="utf-8"))
        return outcome
