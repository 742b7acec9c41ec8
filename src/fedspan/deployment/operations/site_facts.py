"""What a site says of itself when somebody asks how a federation is: version, certificate, whether it is paused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedspan._version import __version__
from fedspan.deployment.membership.signing import load_certificate
from fedspan.deployment.site_rules.pause import Pause
from fedspan.errors import InputError, PolicyRefusal


def describe_site(kit: Path) -> dict[str, object]:
    """Version, whole days until the certificate expires (None: it cannot be read), and whether the site is paused."""
    try:
        Pause(kit).check_running()
        paused = False
    except PolicyRefusal:
        paused = True
    return {"fedspan": __version__, "days": count_days(kit / "startup" / "client.crt"), "paused": paused}


def count_days(certificate: Path) -> int | None:
    """Whole days until a certificate expires; None if it cannot be read."""
    try:
        ends = load_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, InputError):
        return None
    return int((ends - datetime.now(UTC)).days)
