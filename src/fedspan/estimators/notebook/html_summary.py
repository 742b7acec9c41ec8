"""What a notebook shows of a model: a small table without scripts, every value escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from fedspan._foreign import printable
from fedspan.core.ledger import Ledger

_LONGEST_VALUE = 120  # characters of a value
_STYLE = "border-spacing:10px 2px;font-size:90%"


def render_model(name: str, given: Mapping[str, object], learned: Mapping[str, object], ledger: Ledger | None) -> str:
    """A model: the parameters that were given, what was learned, and what it cost."""
    rows = [("parameters", ", ".join(f"{key}={value!r}" for key, value in given.items()) or "as by default")]
    rows += [(key, _describe(value)) for key, value in learned.items() if value is not None]
    if ledger is not None:
        rows.append(("sent", f"{ledger.bytes_up:,} bytes up, {ledger.bytes_down:,} bytes down"))
    title = name if learned else f"{name} (not fitted)"
    body = "".join(
        f'<tr><th style="text-align:left">{_show(key)}</th><td style="text-align:left">{_show(text)}</td></tr>'
        for key, text in rows
    )
    return f'<div><b>{_show(title)}</b><table style="{_STYLE}"><tbody>{body}</tbody></table></div>'


def _describe(value: object) -> str:
    """A number as it is, an array by its shape, anything else by its type."""
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}" if value.size > 6 else np.array2string(value, precision=4)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str | int | bool):
        return str(value)
    if isinstance(value, list | tuple):
        return f"{len(value)} entries"
    return type(value).__name__


def _show(text: str) -> str:
    plain = printable(text)
    return escape(plain if len(plain) <= _LONGEST_VALUE else f"{plain[: _LONGEST_VALUE - 3]}...")
