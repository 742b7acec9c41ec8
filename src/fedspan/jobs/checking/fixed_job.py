"""A job file with another [data] in it; the rest of its text stays as it is."""

from __future__ import annotations

import re

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")


def replace_data(text: str, data: str) -> str:
    """The text with `data` in place of [data] and of the tables below it."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            inside = header.group(1).split(".")[0].strip(" \"'") == "data"
        if not inside:
            kept.append(line)
    return "\n".join([*kept, "", data.rstrip("\n")]).lstrip("\n") + "\n"
