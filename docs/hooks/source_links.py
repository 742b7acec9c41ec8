"""A hook of mkdocs: links to source files work in a checkout; the site, which holds no sources, shows their text."""

from __future__ import annotations

import re

_LINK = re.compile(r"\[([^\]]+)\]\(\.\./(?:(?:src|tests)/[^)]+|SECURITY\.md)\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page without links to source files."""
    return _LINK.sub(r"\1", markdown)
