"""A job of NVIDIA FLARE as a folder: files that name classes of this package, and what a researcher requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedspan.deployment.run_request import RunRequest

TOPIC = "fedspan"  # of what a researcher asks a running job
_ASK_EVERY = 0.05  # seconds after which a site that has nothing to do asks for its task; FLARE's own 2 delay the start
SIGNED = "fedspan"  # the order among what a job requires of each site


def write_job(
    path: Path, name: str, requests: Sequence[RunRequest], sites: Sequence[str], signed: Mapping[str, str] | None = None
) -> Path:
    """Write all of a job: three files that name classes, the requests, and the order that the researcher signed.

    The order is there twice: what a job requires of a site is seen by its queue, before the job is deployed there.
    """
    config = path / "app" / "config"
    config.mkdir(parents=True)
    collab_path, here = "nvflare.collab.runtime", "fedspan.deployment"
    server = {
        "format_version": 2,
        "server": {"task_request_interval": _ASK_EVERY},
        "workflows": [
            {
                "id": "controller",
                "path": f"{collab_path}.controller.CollabController",
                "args": {"server_obj_id": "_server"},
            }
        ],
        "components": [
            {
                "id": "_server",
                "path": f"{here}.operations.flare_server.FlareServer",
                "args": {"orders": [r.to_json() for r in requests]},
            }
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
        "components": [{"id": "_client", "path": f"{here}.flare.FlareClient", "args": {"signed": signed}}],
    }
    required = {} if signed is None else {site: {SIGNED: signed} for site in sites}
    meta = {
        "name": name,
        "resource_spec": required,
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
        "deploy_map": {"app": ["server", *sites]},  # who joins later is not part of this run
    }
    (path / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    (config / "config_fed_server.json").write_text(json.dumps(server), encoding="utf-8")
    (config / "config_fed_client.json").write_text(json.dumps(client), encoding="utf-8")
    return path
