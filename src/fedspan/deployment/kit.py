"""The files of a FLARE kit that fedspan writes or tightens: the project, a site's configuration, the server's.

What FLARE's own defaults leave open is closed here: no code in jobs, no classes but the named ones, no shell commands,
no streaming of logs, and a job store inside the kit instead of the temporary folder.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedspan._files import close_tree, write_whole
from fedspan.deployment.policy import ALGORITHM_NAMES, FILE, Policy
from fedspan.deployment.site_budget import place_budget
from fedspan.errors import InputError, MissingExtraError
from fedspan.privacy.budget import Budget

CLASSES = [
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "fedspan.deployment.operations.flare_server.FlareServer",
    "fedspan.deployment.flare.FlareClient",
    "fedspan.deployment.flare.FlareServer",  # its place before
    "fedspan.engines.flare.FlareServer",  # their places in version 0.1, so that a site can go back to it
    "fedspan.engines.flare.FlareClient",
]
GATE = {"path": "fedspan.deployment.approval.gate.SiteGate", "args": {}}
SCHEDULER = {"path": "fedspan.deployment.approval.scheduler.PatientScheduler", "args": {"max_jobs": 4}}
_STREAMERS = ("nvflare.app_common.logging.job_log_streamer.JobLogStreamer",)  # added to every job by FLARE itself
_RECEIVERS = ("nvflare.app_common.logging.job_log_receiver.JobLogReceiver",)
_NO_RIGHTS = {"shell_commands": "none", "byoc": "none", "report_resources": "any"}  # the last: `federation status`
_WATCH_RIGHTS = {"app_command": "n:submitter"}  # a researcher may watch the jobs that he or she submitted
# A coordinator cuts off sites, and sends the list of removed names as a job that every site refuses.
_COORDINATOR_RIGHTS = {
    **{"submit_job": "any", "manage_job": "n:submitter"},
    **dict.fromkeys(("disable_client", "enable_client", "remove_client"), "any"),
}


def project_file(server: str, sites: Sequence[str], researcher: str, *, port: int, name: str, days: int) -> str:
    """FLARE's project file (YAML, of which JSON is a part) for one server, those sites and one researcher."""
    if len(sites) < 2 or len(set(sites)) < len(sites):
        raise InputError(
            f"A federation needs at least two sites with different names, but these are {', '.join(sites) or 'none'}."
        )
    for site in sites:
        if not site.replace("-", "").replace("_", "").isalnum() or not site.isascii():
            raise InputError(f"A site's name consists of letters, digits, - and _, but one is {site!r}.")
    if "@" not in researcher or "." not in researcher.split("@")[-1]:
        raise InputError(f"The researcher must be given as an e-mail address, but is {researcher!r}.")
    domain = researcher.split("@")[1]
    people = [{"name": researcher, "type": "admin", "org": _org(domain), "role": "lead"}]
    tree = {
        "api_version": 3,
        "name": name,
        "description": "made by fedspan federation new",
        "participants": [
            {"name": server, "type": "server", "org": _org(domain), "fed_learn_port": port, "admin_port": port + 1},
            *({"name": site, "type": "client", "org": _org(site)} for site in sites),
            *people,
        ],
        "builders": [
            {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder"},
            {
                "path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc"},
            },
            {"path": "nvflare.lighter.impl.cert.CertBuilder", "args": {"root_valid_days": days}},
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ],
    }
    return json.dumps(tree, indent=2) + "\n"


def _org(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def role(kit: Path) -> str:
    """Whether a kit is a site's, the server's or a researcher's."""
    for kind, file in (("site", "fed_client.json"), ("server", "fed_server.json"), ("researcher", "fed_admin.json")):
        if (kit / "startup" / file).is_file():
            return kind
    raise InputError(f"{kit} is not a FLARE kit: it has no startup folder. Give the folder that was handed out.")


def read_expiry_dates(kit: Path) -> dict[str, datetime]:
    """Until when each certificate of a kit is valid, by the name of its file."""
    return {name: ends for name, (_, ends) in _read_validity(kit).items()}


def _read_validity(kit: Path) -> dict[str, tuple[datetime, datetime]]:
    """From when until when each certificate of a kit is valid, by the name of its file."""
    try:
        from cryptography import x509
    except ImportError:
        raise MissingExtraError("A federation", "flare") from None
    dates = {}
    for path in [*sorted((kit / "startup").glob("*.crt")), kit / "startup" / "rootCA.pem"]:
        if path.is_file():
            found = x509.load_pem_x509_certificate(path.read_bytes())
            dates[path.name] = (found.not_valid_before_utc, found.not_valid_after_utc)
    return dates


def check_certificates(kit: Path) -> None:
    """Refuse a kit whose certificates are no longer valid, or not yet, before anything waits for a connection."""
    now = datetime.now(UTC)
    for name, (begins, ends) in _read_validity(kit).items():
        if ends < now:
            raise InputError(
                f"{name} of this kit expired on {ends:%Y-%m-%d}. Ask the coordinator for a new kit, or for a renewed "
                "certificate (fedspan federation renew)."
            )
        if begins > now:
            raise InputError(
                f"{name} of this kit is valid only from {begins:%Y-%m-%d %H:%M} (UTC), and by this machine's clock it "
                f"is {now:%Y-%m-%d %H:%M}. Set the clock, or wait."
            )


def server_port(kit: Path) -> int:
    """The port on which that kit's server listens for sites."""
    tree = json.loads((kit / "startup" / "fed_server.json").read_text(encoding="utf-8"))
    return int(tree["servers"][0]["service"]["target"].rsplit(":", 1)[1])


def tighten_rights(kit: Path) -> None:
    """Write who may do what at this kit: FLARE's own rules, without code and shells, with what fedspan needs."""
    local = kit / "local"
    permissions = json.loads((local / "authorization.json.default").read_text(encoding="utf-8"))
    for name, rights in permissions["permissions"].items():
        if isinstance(rights, dict):
            more = _COORDINATOR_RIGHTS if name == "org_admin" else {}
            closed = {**rights, **_NO_RIGHTS, **_WATCH_RIGHTS, **more}
            permissions["permissions"][name] = closed if "byoc" in rights else rights
        elif rights == "any":  # the project's administrator
            rest = {"submit_job": "any", "clone_job": "any", "manage_job": "any", "download_job": "any"}
            permissions["permissions"][name] = {**rest, "view": "any", "operate": "any", **_NO_RIGHTS, **_WATCH_RIGHTS}
    write_whole(local / "authorization.json", json.dumps(permissions, indent=2))


def tighten(kit: Path) -> None:
    """Close what the kit's defaults leave open, in its own `local` folder."""
    kit = kit.resolve()
    kind, local = role(kit), kit / "local"
    tighten_rights(kit)
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_list_enforcement_mode"] = "enforce"
    if kind == "site":
        resources["class_allow_list"] = [*CLASSES, *_STREAMERS]
        resources["allow_log_streaming"] = False
        resources["components"] = [c for c in resources["components"] if "log_streamer" not in c["id"]]
        _replace_component(resources, "resource_manager", GATE)
    else:
        resources["class_allow_list"] = [*CLASSES, *_RECEIVERS]
        _replace_component(resources, "job_scheduler", SCHEDULER)
        store = kit / "jobs"
        _replace_path(resources, "uri_root", "jobs-storage", str(store))
        _replace_path(resources, "root_dir", "snapshot-storage", str(kit / "snapshots"))
    write_whole(local / "resources.json", json.dumps(resources, indent=2))


def update_class_list(kit: Path) -> None:
    """Let an existing kit run the jobs of this version: add fedspan's own classes where its list does not name them.

    A kit that was tightened by an older version knows them under other names, and has neither the gate nor the queue
    that approvals need. Nothing else in the file is changed, and a kit without such a list is left as it is.
    """
    path = kit / "local" / "resources.json"
    if not path.is_file():
        return
    resources = json.loads(path.read_text(encoding="utf-8"))
    allowed = resources.get("class_allow_list")
    if not isinstance(allowed, list):
        return
    missing = [name for name in CLASSES if name.startswith("fedspan.") and name not in allowed]
    own = ("resource_manager", GATE) if role(kit) == "site" else ("job_scheduler", SCHEDULER)
    if _replace_component(resources, *own) or missing:
        resources["class_allow_list"] = [*allowed, *missing]
        write_whole(path, json.dumps(resources, indent=2))


def _replace_component(resources: Mapping[str, Any], name: str, component: Mapping[str, object]) -> bool:
    """Put one of ours in the place of a component of FLARE's; returns whether it was another one."""
    changed = False
    for own in resources.get("components", []):
        if own.get("id") == name and str(own.get("path")).startswith("nvflare."):
            own.update(component)
            changed = True
    return changed


def _replace_path(tree: Any, key: str, ends: str, value: str) -> None:
    """Replace a path that stands somewhere in a nested document."""
    if isinstance(tree, dict):
        for name, node in tree.items():
            if name == key and isinstance(node, str) and node.endswith(ends):
                tree[name] = value
            else:
                _replace_path(node, key, ends, value)
    elif isinstance(tree, list):
        for node in tree:
            _replace_path(node, key, ends, value)


def check_may_init(kit: Path, *, replace: bool) -> Path:
    """The place of a site's file, if it may be written now."""
    if role(kit) != "site":
        raise InputError(f"{kit} is a {role(kit)}'s kit, not a site's.")
    path = kit / "local" / FILE
    if path.exists() and not replace:
        raise InputError(f"{path} already exists; edit it, or replace it with --replace.")
    return path


def init_site(kit: Path, tables: Mapping[str, Mapping[str, Any]], *, replace: bool, **rules: Any) -> Policy:
    """Write the site's configuration, checked, and tighten its kit. What is there is replaced only if asked."""
    path = check_may_init(kit, replace=replace)
    text = policy_file(tables, **rules)
    policy = Policy.parse(tomllib.loads(text), kit, path)
    if policy.epsilon is not None and policy.delta is not None:
        own = policy.budget if policy.budget.exists() else place_budget(table.path for table in policy.tables.values())
        Budget.grant(own, policy.epsilon, policy.delta)
        text = policy_file(tables, **rules, budget=str(own))
        policy = Policy.parse(tomllib.loads(text), kit, path)
    tighten(kit)
    write_whole(path, text)
    close_tree(kit)  # it came over a network, or was unpacked under another umask
    return policy


def to_toml_value(value: object) -> str:
    """A word, a number, a truth value, or a list or table of them, in TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{to_toml_value(key)} = {to_toml_value(own)}" for key, own in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def policy_file(
    tables: Mapping[str, Mapping[str, Any]],
    *,
    algorithms: Sequence[str] = ALGORITHM_NAMES,
    secure: bool = True,
    others: int = 2,
    verified: bool = False,
    sites: Sequence[str] | None = None,
    row_norm: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rows: bool = True,
    names: bool = True,
    partial_sums: bool = False,
    budget: str | None = None,
    approval: str = "never",
    researchers: Sequence[str] | None = None,
    transcript_mb: int = 0,
) -> str:
    """A commented file: what jobs may use here, and what they must bring."""
    say = to_toml_value
    lines = ["# What fedspan jobs may do at this site. The site owns this file; no job can change it.", ""]
    for name, table in tables.items():
        lines += [f"[tables.{say(name)}]", *(f"{key} = {say(value)}" for key, value in table.items()), ""]
    lines += [
        "[allow]",
        f"algorithms = {say(list(algorithms))}",
        f"rows = {say(rows)}    # tell the figure in `rows` of a table",
        f"names = {say(names)}   # say what the columns are called; a digest of them is always compared",
        f"partial_sums = {say(partial_sums)}  # secure sums without noise over some of a run's sites (min_clients)",
        f"approval = {say(approval)}  # which jobs wait for your approval: each, researcher (others' jobs), never",
        "# researchers = […]  # whose jobs may run"
        if researchers is None
        else f"researchers = {say(list(researchers))}  # whose jobs may run",
        "",
        "[require]",
        f"secure = {say(secure)}  # secure sums only: the server sees no site's own numbers",
        f"others = {others}       # at least this many other sites in every secure sum",
        f"verified = {say(verified)}  # only runs in which this site checks what the server asks and shows",
    ]
    lines.append("# sites = […]  # of verified runs, all of them" if sites is None else f"sites = {say(list(sites))}")
    for key, value in (("row_norm", row_norm), ("epsilon", epsilon), ("delta", delta)):
        meaning = {"row_norm": "rows are shortened to it", "epsilon": "over all runs", "delta": "over all runs"}[key]
        lines.append(f"# {key} = …  # {meaning}" if value is None else f"{key} = {float(value)!r}  # {meaning}")
    if budget is not None:
        lines.append(f"budget = {say(budget)}  # what was spent; it stays if this kit is replaced")
    kept = f"transcript_mb = {transcript_mb}  # of messages that are kept of each run, for audits; 0: none"
    return "\n".join([*lines, "", "[keep]", kept]) + "\n"
