"""A systemd unit that runs a kit: as a user of its own, who can write the kit and nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedspan.deployment.kit import role
from fedspan.errors import InputError

_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PLAIN = re.compile(r"[\w./@:+-]+")  # what systemd reads as it stands


def write_unit(kit: Path, user: str, *, proxy: str | None = None) -> tuple[str, str]:
    """The name of a unit and its text."""
    kind, kit = role(kit), kit.resolve()
    if kind == "researcher":
        raise InputError(f"{kit} is a researcher's kit; only sites and the server run as a service.")
    command = Path(sys.executable).with_name("fedspan")
    for path in (kit, command):
        if not _PLAIN.fullmatch(str(path)):
            raise InputError(f"{path} contains spaces or other characters that a unit cannot hold; move it.")
    if not _USER.fullmatch(user):
        raise InputError(f"{user!r} is not the name of a user of this machine.")
    if proxy is not None and not re.fullmatch(r"https?://[\w.:@%-]+/?", proxy):
        raise InputError(f"A proxy is given as http://HOST:PORT, not {proxy!r}.")
    privileged = "AmbientCapabilities=CAP_NET_BIND_SERVICE\n" if kind == "server" else ""
    bounding = "CAP_NET_BIND_SERVICE" if kind == "server" else ""
    text = f"""# Written by: fedspan site service. Install: systemctl enable --now fedspan-{kit.name}
[Unit]
Description=fedspan {kind} {kit.name}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
User={user}
UMask=0077
WorkingDirectory={kit}
Environment=PATH={command.parent}:/usr/bin:/bin
Environment=OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
{"" if proxy is None else f"Environment=https_proxy={proxy}{chr(10)}"}ExecStart={command} site start {kit}
# A site that was removed from its federation ends by itself, and is started again when it is taken back.
Restart=always
RestartSec=10
KillMode=control-group
TimeoutStopSec=30
# The user can write the kit (jobs, the book, budgets, what resumed runs need), read the data, and nothing else.
ProtectSystem=strict
ReadWritePaths={kit}
PrivateTmp=true
PrivateDevices=true
NoNewPrivileges=true
ProtectKernelTunables=true
ProtectKernelModules=true
ProtectControlGroups=true
RestrictSUIDSGID=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
LockPersonality=true
CapabilityBoundingSet={bounding}
{privileged}
[Install]
WantedBy=multi-user.target
"""
    return f"fedspan-{kit.name}.service", text
