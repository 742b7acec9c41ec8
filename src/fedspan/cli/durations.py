"""Times that a user types: 30m, 24h, 7d."""

from __future__ import annotations

import re

from fedspan.errors import InputError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def read_duration(option: str, text: str | None) -> float:
    """The seconds in what was typed after an option; 0 if nothing was."""
    if text is None:
        return 0.0
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text.strip())
    if found is None or not float(found[1]):
        raise InputError(f"{option} must be a time such as 30m, 24h or 7d, but is {text!r}.")
    return float(found[1]) * _SECONDS[found[2]]
