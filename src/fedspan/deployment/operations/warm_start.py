"""Switch the warm start of jobs on or off, in the kit of a site or of the server."""

from __future__ import annotations

import json
from pathlib import Path

from fedspan._files import write_whole
from fedspan._foreign import parse_json
from fedspan.deployment.kit import role
from fedspan.errors import InputError

_WARM_MODULE = "fedspan.deployment.operations.warm_launcher"
_LAUNCHERS = {
    "site": ("nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher", "WarmSite"),
    "server": ("nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher", "WarmServer"),
}


def switch_warm(kit: Path, *, on: bool) -> bool:
    """Put our launcher into a kit, or FLARE's own back; whether that changed anything. The kit has to be restarted."""
    kind, path = role(kit), kit / "local" / "resources.json"
    if kind not in _LAUNCHERS:
        raise InputError(f"{kit} is a researcher's kit; only sites and the server start jobs.")
    if not path.is_file():
        raise InputError(f"{path} is missing: set the kit up first, with fedspan site init.")
    own, name = _LAUNCHERS[kind]
    wanted = f"{_WARM_MODULE}.{name}" if on else own
    resources = parse_json(path.read_bytes())
    found = [part for part in resources["components"] if part.get("id") == "process_launcher"]
    if len(found) != 1 or found[0]["path"] not in (own, f"{_WARM_MODULE}.{name}"):
        raise InputError(f"{path} starts jobs in a way of its own, which is left alone.")
    changed = found[0]["path"] != wanted
    found[0]["path"] = wanted
    write_whole(path, json.dumps(resources, indent=2))
    return changed
