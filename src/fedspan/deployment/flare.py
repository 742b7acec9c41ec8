"""NVIDIA FLARE carries the messages: the adapter to its `collab` API, and the only door to the package.

A job carries no code: it names these two classes, which every site has installed, and an order in plain data. Arrays
travel as safetensors blobs: inline up to `_INLINE` bytes, above that FLARE lets the receiver download them in pieces.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.fl_context import FLContext
from nvflare.collab import collab
from nvflare.collab.api.exceptions import CollabCallError

from fedspan.deployment.server_job import Desk, Order
from fedspan.deployment.site_service import Station

TOPIC = "fedspan"
_INLINE = 32_000_000  # measured: at 8 MB inline is quicker, at 80 MB the download
_LINES = 2000  # of the ledger in one answer to a researcher who watches


def _packed(blob: Any) -> Any:
    """Bytes go inline; an array is downloaded."""
    return np.frombuffer(blob, dtype=np.uint8) if isinstance(blob, bytes) and len(blob) > _INLINE else blob


def _unpacked(blob: Any) -> Any:
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

    def __init__(self) -> None:
        self.station: Station | None = None

    @collab.init
    def begin(self) -> None:
        _end_with_parent()
        self.station = Station(collab.site_name, Path(collab.workspace.get_site_config_dir()).parent)

    @collab.publish
    def describe(self, text: str) -> Any:
        return self._at().describe(text)

    @collab.publish
    def open(self, text: str) -> Any:
        return self._at().open(text)

    @collab.publish
    def exchange(self, blob: Any, kept: int) -> Any:
        return _packed(self._at().exchange(_unpacked(blob), kept))

    def _at(self) -> Station:
        if collab.caller != "server":
            raise PermissionError("only the server may ask a site")
        if self.station is None:
            raise RuntimeError("the site is not ready")
        return self.station


class FlareServer:
    """The server's half of one job: it carries out the orders, one after the other."""

    def __init__(self, orders: list[dict[str, Any]]) -> None:
        self.orders = orders
        self.desk: Desk | None = None

    @collab.main
    def run(self) -> None:
        _end_with_parent()
        sites = {proxy.name: proxy for proxy in collab.clients}
        workspace, context = collab.workspace, collab.fl_ctx

        def call(site: str, method: str, timeout: float, *arguments: Any) -> Any:
            try:
                answer = getattr(sites[site](timeout=timeout), method)(*map(_packed, arguments))
            except CollabCallError as error:
                if "timed out" in str(error):
                    raise TimeoutError(str(error)) from None
                raise
            return _unpacked(answer)

        self.desk = Desk(call, list(sites), Path(workspace.get_site_config_dir()).parent / "fedspan" / "runs")
        context.get_engine().register_app_command(TOPIC, self._progress)
        results = Path(workspace.get_run_dir(context.get_job_id())) / "fedspan"
        for tree in self.orders:
            order = Order.from_json(tree)
            self.desk.carry_out(order, results / order.run)

    def _progress(self, topic: str, data: Any, fl_ctx: FLContext, *_: Any, **__: Any) -> dict[str, Any]:
        """What a researcher who watches has not yet seen of the ledger."""
        ledger = self.desk.ledger if self.desk else None
        rows = ledger.rows()[int(data["from"]) :][:_LINES] if ledger else []
        return {"rows": json.dumps(rows)}


def job_folder(path: Path, name: str, orders: list[Order], sites: int) -> Path:
    """All of a job: three files that name classes, and the orders."""
    config = path / "app" / "config"
    config.mkdir(parents=True)
    collab_path, here = "nvflare.collab.runtime", "fedspan.deployment.flare"
    server = {
        "format_version": 2,
        "workflows": [
            {
                "id": "controller",
                "path": f"{collab_path}.controller.CollabController",
                "args": {"server_obj_id": "_server"},
            }
        ],
        "components": [
            {"id": "_server", "path": f"{here}.FlareServer", "args": {"orders": [o.to_json() for o in orders]}}
        ],
    }
    client = {
        "format_version": 2,
        "executors": [
            {
                "tasks": ["*"],
                "executor": {"path": f"{collab_path}.executor.CollabExecutor", "args": {"client_obj_id": "_client"}},
            }
        ],
        "components": [{"id": "_client", "path": f"{here}.FlareClient", "args": {}}],
    }
    meta = {"name": name, "resource_spec": {}, "min_clients": sites, "deploy_map": {"app": ["@ALL"]}}
    (path / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    (config / "config_fed_server.json").write_text(json.dumps(server), encoding="utf-8")
    (config / "config_fed_client.json").write_text(json.dumps(client), encoding="utf-8")
    return path
