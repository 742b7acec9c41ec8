"""A transport without a network: sites in this process, and whatever a network may do to their messages.

Use it to try a federation in milliseconds, and to test it: messages can be lost, delayed, changed, swapped, repeated.
Requests and replies are the same, byte for byte, as between machines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Literal, NamedTuple

from fedspan.engines.transport import SiteEndpoint


class Call(NamedTuple):
    """One call of the server to a site. `kept` goes with questions only: the last round that was surely saved."""

    site: str
    method: Literal["describe", "open", "exchange"]
    message: str | bytes
    kept: int = -1


Deliver = Callable[[Call], bytes | str]
"""Brings a call to its site, and returns the site's answer."""

Tamper = Callable[[Call, Deliver], bytes | str]
"""Stands between the server and the sites: what it returns, or raises, is what the server gets."""


class Loopback:
    """A `Transport` to sites in this process.

    Every call runs in a thread of its own, as it would on the site's machine. A site that takes longer than the
    caller's time-out goes on working; its caller gets a `TimeoutError`.

    Parameters:
        sites: The sites' ends by name, for example `fedspan.deployment.site_service.SiteService`.
        tamper: `tamper(call, deliver)` is called in place of the site, and `deliver(call)` asks the site. So a test can
            lose a message (raise), delay it (wait), change the answer (`deliver`, then return something else), or
            change the question (`deliver(call._replace(message=…))`).
    """

    def __init__(self, sites: Mapping[str, SiteEndpoint], tamper: Tamper | None = None) -> None:
        self.sites, self.tamper = sites, tamper

    def describe(self, site: str, asked: str, timeout: float) -> str:
        """Ask a site what it has."""
        return self._call(Call(site, "describe", asked), timeout)  # type: ignore[return-value]  # or what `tamper` made

    def open(self, site: str, start: str, timeout: float) -> str:
        """Begin a run at a site."""
        return self._call(Call(site, "open", start), timeout)  # type: ignore[return-value]

    def exchange(self, site: str, blob: bytes, kept: int, timeout: float) -> bytes | str:
        """Ask a site a question of the run."""
        return self._call(Call(site, "exchange", blob, kept), timeout)

    def _call(self, call: Call, timeout: float) -> bytes | str:
        answer: Future[bytes | str] = Future()
        # Not a pool: Python waits for the threads of a pool when it ends, and a site may hang.
        threading.Thread(target=self._run, args=(call, answer), daemon=True, name=f"fedspan-{call.site}").start()
        try:
            return answer.result(timeout)
        except TimeoutError:
            if answer.done():  # the site, or `tamper`, raised it
                raise
            raise TimeoutError(f"Site {call.site!r} did not answer within {timeout:g} s.") from None

    def _run(self, call: Call, answer: Future[bytes | str]) -> None:
        try:
            answer.set_result(self.tamper(call, self._deliver) if self.tamper else self._deliver(call))
        except BaseException as error:
            answer.set_exception(error)

    def _deliver(self, call: Call) -> bytes | str:
        """Let the site answer. What could not travel over a network is refused here, too."""
        site, message = self.sites[call.site], call.message
        if call.method == "exchange":
            if not isinstance(message, bytes) or type(call.kept) is not int:
                raise TypeError(f"A question travels as bytes, but this one is a {type(message).__name__}.")
            return site.exchange(message, call.kept)
        if not isinstance(message, str):
            raise TypeError(f"Only text travels to {call.method!r} of a site, but this is a {type(message).__name__}.")
        return site.describe(message) if call.method == "describe" else site.open(message)
