"""Tables that a benchmark measured, put into a page of the docs: so that no number there is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedspan._files import write_whole


def put(lines: Sequence[str], path: Path, mark: str) -> None:
    """Replace what stands between the two markers of that name in a Markdown file."""
    begin, end = f"<!-- {mark} begins -->\n", f"<!-- {mark} ends -->"
    text = path.read_text(encoding="utf-8")
    before, after = text.split(begin)[0], text.split(end)[1]
    write_whole(path, before + begin + "\n".join(lines) + "\n" + end + after, public=True)
