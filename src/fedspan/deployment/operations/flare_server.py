"""NVIDIA FLARE at the server: the object that a job names there, and how it reaches the sites of the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.collab import collab
from nvflare.collab.api.exceptions import CollabCallError, RunAborted

from fedspan.deployment.flare_job import TOPIC
from fedspan.deployment.operations.flare_process import do_without_torch, end_with_parent, unwrap_blob, wrap_blob
from fedspan.deployment.run_request import RunRequest
from fedspan.deployment.server_job import ServerJob
from fedspan.errors import ClientError

_LINES = 2000  # of the ledger in one answer to a researcher who watches
do_without_torch()


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
            return unwrap_blob(self.proxies[site](timeout=timeout).exchange(wrap_blob(blob), kept))


@contextmanager
def _raise_timeouts() -> Iterator[None]:
    """Raise a TimeoutError where FLARE says in words that a call took too long, and say what an aborted run is."""
    try:
        yield
    except CollabCallError as error:
        if "timed out" in str(error):
            raise TimeoutError(str(error)) from None
        raise
    except RunAborted:
        raise ClientError(
            "FLARE has stopped the job: a site's process for it has ended, or somebody aborted it"
        ) from None


class FlareServer:
    """The server's half of one job: it carries out the requests, one after the other."""

    def __init__(self, orders: list[dict[str, object]]) -> None:
        self.orders = orders  # the name in jobs of all versions
        self.job: ServerJob | None = None

    @collab.main
    def run(self) -> None:
        end_with_parent()
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
