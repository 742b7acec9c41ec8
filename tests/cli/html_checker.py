"""A page that stands by itself: well-formed, and it fetches and runs nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Checker(HTMLParser):
    """Every element that is opened is closed, and nothing is fetched or run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "onload"} & {name for name, _ in attrs}
        link = dict(attrs)
        if "download" in link:  # what is saved is in the link itself
            assert re.match(r"data:(image/svg\+xml|text/csv);charset=utf-8;base64,[\w+/=]+$", link["href"] or "")
        else:
            assert link.get("href") in (None, "audit.html")  # beside it, for who wants to know more
        self.seen.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
