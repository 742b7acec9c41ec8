"""NVIDIA FLARE carries the messages: the adapter to its `collab` API.

A job carries no code: it names these two classes, which every site has installed, and requests in plain data. Arrays
travel as safetensors blobs: inline up to `_INLINE` bytes, above that FLARE lets the receiver download them in pieces.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from nvflare.apis.fl_context import FLContext
from nvflare.collab import collab
from nvflare.collab.api.exceptions import CollabCallError

from fedspan.deployment.approval.admission import Admission
from fedspan.deployment.approval.signed_order import SignedOrder
from fedspan.deployment.flare_job import TOPIC
from fedspan.deployment.server_job import RunRequest, ServerJob
from fedspan.deployment.site_service import SiteService

_INLINE = 32_000_000  # measured: at 8 MB inline is quicker, at 80 MB the download
_LINES = 2000  # of the ledger in one answer to a researcher who watches


Blob = bytes | str | np.ndarray  # an array of bytes is what FLARE downloads in pieces


def _to_blob(blob: bytes | str) -> Blob:
    """Bytes go inline; an array is downloaded."""
    return np.frombuffer(blob, dtype=np.uint8) if isinstance(blob, bytes) and len(blob) > _INLINE else blob


def _from_blob(blob: Blob) -> bytes | str:
    return blob.tobytes() if isinstance(blob, np.ndarray) else blob


def _end_with_parent() -> None:
    """A job's process whose site or server has died is cut off from the job, and must not go on by itself."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(3)

    threading.Thread(target=watch, daemon=True, name="fedspan-parent").start()


class FlareClient:
    """One site in one job: lives as long as the job's process there."""

    def __init__(self, signed: dict[str, str] | None = None) -> None:
        self.service: SiteService | None = None
        self.signed = signed  # the order that came with the job; the site verifies it

    @collab.init
    def begin(self) -> None:
        _end_with_parent()
        kit = Path(collab.workspace.get_site_config_dir()).parent
        signed = None if self.signed is None else SignedOrder.from_json(self.signed)
        self.service = SiteService(collab.site_name, kit, admission=Admission(kit, signed, required=True))

    @collab.final
    def finish(self) -> None:
        if self.service is not None:
            self.service.end()

    @collab.publish
    def describe(self, asked: str) -> str:
        return self._service().describe(asked)

    @collab.publish
    def open(self, start: str) -> str:
        return self._service().open(start)

    @collab.publish
    def exchange(self, blob: Blob, kept: int) -> Blob:
        question = _from_blob(blob)
        if not isinstance(question, bytes):
            raise TypeError("a question must be bytes")
        return _to_blob(self._service().exchange(question, kept))

    def _service(self) -> SiteService:
        if collab.caller != "server":
            raise PermissionError("only the server may ask a site")
        if self.service is None:
            raise RuntimeError("the site is not ready")
        return self.service


class FlareTransport:
    """Calls the sites of a job through FLARE's proxies of them."""

    def __init__(self) -> None:
        self.proxies = {proxy.name: proxy for proxy in collab.clients}

    def describe(self, site: str, asked: str, timeout: float) -> str:
        with _raise_timeouts():
            return str(self.proxies[site](timeout=timeout).describe(asked))

    def open(self, site: str, start: str, timeout: float) -> str:
        with _raise_timeouts():
            return str(self.proxies[site](timeout=timeout).open(start))

    def exchange(self, site: str, blob: bytes, kept: int, timeout: float) -> bytes | str:
        with _raise_timeouts():
            return _from_blob(self.proxies[site](timeout=timeout).exchange(_to_blob(blob), kept))


@contextmanager
def _raise_timeouts() -> Iterator[None]:
    """Raise a TimeoutError where FLARE says in words that a call took too long."""
    try:
        yield
    except CollabCallError as error:
        if "timed out" in str(error):
            raise TimeoutError(str(error)) from None
        raise


class FlareServer:
    """The server's half of one job: it carries out the requests, one after the other."""

    def __init__(self, orders: list[dict[str, object]]) -> None:
        self.orders = orders  # the name in jobs of all versions
        self.job: ServerJob | None = None

    @collab.main
    def run(self) -> None:
        _end_with_parent()
        workspace, context, transport = collab.workspace, collab.fl_ctx, FlareTransport()
        runs = Path(workspace.get_site_config_dir()).parent / "fedspan" / "runs"
        self.job = ServerJob(transport, list(transport.proxies), runs)
        context.get_engine().register_app_command(TOPIC, self._progress)
        results = Path(workspace.get_run_dir(context.get_job_id())) / "fedspan"
        for tree in self.orders:
            request = RunRequest.from_json(tree)
            self.job.carry_out(request, results / request.run)

    def _progress(
        self, topic: str, data: dict[str, int], fl_ctx: FLContext, *_: object, **__: object
    ) -> dict[str, str]:
        """What a researcher who watches has not yet seen of the ledger."""
        ledger = self.job.ledger if self.job else None
        rows = ledger.rows()[int(data["from"]) :][:_LINES] if ledger else []
        return {"rows": json.dumps(rows)}
