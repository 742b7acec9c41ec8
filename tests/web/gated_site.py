"""Three hospitals over loopback whose sites approve each job, and a server of pages for one of them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from certificates import ADA, Authority
from orders import new_run, write_site

from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest
from fedspan.web.local_server import LocalPages, LocalServer

PLAIN = {"n_components": 2, "solver": "ssi", "max_rounds": 3, "tol": 0.0, "random_state": 0}


def make_hospitals(folder: Path, **rules: Any) -> LoopbackFederation:
    """Sites that have the columns lab0 … lab5, with kits of one authority; Ada signs the orders."""
    authority, rng = Authority(), np.random.default_rng(4)
    mix, kits = rng.normal(size=(6, 6)), {}
    names = [f"lab{i}" for i in range(6)]
    for site, rows in (("east", 40), ("north", 90), ("south", 25)):
        X = rng.normal(size=(rows, 6)) @ mix
        path = folder / f"{site}.csv"
        np.savetxt(path, X, delimiter=",", header=",".join(names), comments="", fmt="%.17g")
        table = {"path": str(path), "columns": names, "rows": rows}
        kits[site] = write_site(folder / site, {"default": table}, **{"approval": "each", **rules})
        authority.make_kit(kits[site], site)
        (kits[site] / "startup" / "fed_client.json").write_text("{}")
    return LoopbackFederation(folder / "server", kits, researcher=authority.make_kit(folder / "ada", ADA, "lead"))


def ask(**changes: Any) -> RunRequest:
    parameters = {**PLAIN, **changes.pop("parameters", {})}
    return RunRequest(new_run(), "FederatedPCA", parameters, **{"retries": 0, **changes})


@contextmanager
def serve(pages: LocalPages) -> Iterator[LocalServer]:
    """The pages, at an address of their own, as long as the context lasts."""
    server = LocalServer(pages)
    thread = threading.Thread(target=server.serve, kwargs={"say": lambda words: None}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(20)


class Visitor:
    """Sends requests as written, with any headers."""

    def __init__(self, server: LocalServer) -> None:
        self.server, self.cookie = server, ""

    def ask(self, path: str, form: dict[str, str] | None = None, **headers: str) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        head = {"Host": f"127.0.0.1:{self.server.port}", **({"Cookie": self.cookie} if self.cookie else {})}
        body = None if form is None else urlencode(form)
        if form is not None:
            head["Content-Type"] = "application/x-www-form-urlencoded"
        head |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET" if form is None else "POST", path, body, head)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, dict(answer.headers.items())

    def enter(self) -> str:
        """Open the link; returns the first page."""
        status, _, headers = self.ask(self.server.link.split(str(self.server.port), 1)[1])
        assert status == 303
        self.cookie = headers["Set-Cookie"].split(";")[0]
        status, page, _ = self.ask("/")
        assert status == 200
        return page
