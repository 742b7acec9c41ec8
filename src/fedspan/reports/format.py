"""Numbers and foreign text as people read them: bytes, counts, durations, how accurate an estimate is; HTML."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from fedspan._foreign import printable

_FORMULA = ("=", "+", "-", "@")  # how a cell begins that a spreadsheet would compute
_FOLDERS = re.compile(
    r"""(?<=["'])(?:[A-Za-z]:)?[\\/][^"'\n]*[\\/](?=[^"'\n])"""  # in quotes, where names may have spaces
    r"""|(?<![\w…:/.~-])(?:[A-Za-z]:)?(?:[\\/]{1,2}[^\s"'<>\\/?]+)+[\\/]{1,2}(?=[^\s"'<>\\/?])"""
    r"""|(?<=sqlite:///)/[^\s"'?]*/"""
)
_FILE_WORDS = 8  # of a caption in a file's name
_TAG = re.compile(r"<[^>]*>")
_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?\s?%?")


class Html(str):
    """Text that is already escaped."""


def escape(text: str) -> str:
    """Text for a page: no character of it is taken for HTML, and none that cannot be seen acts on the reader."""
    return html.escape(printable(text, lines=True))


def shorten_paths(text: str) -> str:
    """The text with the folders of absolute paths left out, because a page is passed on."""
    return _FOLDERS.sub("…/", text)


def to_file_name(caption: str) -> str:
    """A name for a file, made of the words of a caption."""
    words = re.findall(r"[a-z0-9]+", caption.lower())
    return "-".join(words[:_FILE_WORDS]) or "figure"


def to_csv(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells (text, or HTML of ours) as a CSV file whose cells no spreadsheet takes for formulas."""
    file = io.StringIO()
    csv.writer(file).writerows([_to_cell(text) for text in row] for row in rows)
    return file.getvalue()


def _to_cell(text: str) -> str:
    plain = printable(html.unescape(_TAG.sub("", text)) if isinstance(text, Html) else text)
    return f"'{plain}" if plain[:1] in _FORMULA and not _NUMBER.fullmatch(plain) else plain


def format_bytes(n: float) -> str:
    """A number of bytes: "512 B", "1.5 kB", "2 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def format_count(n: int, noun: str) -> str:
    """A number of things: "1 round", "1,200 rounds"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """A duration: "12 ms", "3.4 s", "2 min 5 s", "1 h 3 min"."""
    if seconds < 60:
        return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def accuracy_of(metrics: Mapping[str, float]) -> tuple[str, float]:
    """What the server knows of its accuracy: the KKT violation, or if it cannot see that, the estimate's change."""
    kkt, change = metrics.get("kkt", math.nan), metrics.get("change", math.nan)
    return ("change", change) if math.isnan(kkt) and not math.isnan(change) else ("KKT", kkt)


def format_number(value: float, digits: int = 3) -> str:
    """A number with a few digits: "0.123", "12,300", "1.2e7", "∞"."""
    if math.isinf(value):
        return "∞"
    text = f"{value:.{digits}g}"
    return f"{float(text):,.{digits + 3}g}" if value == 0 or 1e-3 <= abs(value) < 1e6 else text.replace("e+0", "e")
