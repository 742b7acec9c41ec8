"""Why a cell is not a number: a guess, and the line that would help."""

from __future__ import annotations

import json
import re
from datetime import datetime

from fedspan._foreign import printable

MISSING_WORDS = frozenset(
    [
        *("?", "-", "--", "---", ".", "..", "*", "#n/a", "#na", "n/a", "n.a.", "na", "none", "null", "nil"),
        *("missing", "unknown", "unk", "k.a.", "nd", "n.d."),
    ]
)
TRUE_WORDS = frozenset(["yes", "y", "true", "t", "ja", "oui", "si", "sí", "positive", "pos", "on"])
FALSE_WORDS = frozenset(["no", "n", "false", "f", "nein", "non", "negative", "neg", "off"])
DATE_FORMS = (
    "%Y-%m-%d",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%Y/%m/%d",
    "%d-%m-%Y",
    "%d.%m.%y",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%d.%m.%Y %H:%M",
)
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
_GROUPED = re.compile(r"[+-]?\d{1,3}([,.'’\s]\d{3})+([.,]\d+)?")
_WITH_UNIT = re.compile(r"[+-]?\d+(?:[.,]\d+)?\s*([A-Za-zµμ%°/²³]{1,10})")
_LIMIT = re.compile(r"[<>≤≥]\s*\d+([.,]\d+)?")
_SHOWN_OF_CELL = 40  # characters of a cell


def quote_cell(cell: str) -> str:
    """A cell as it may be shown: short, and without characters that would act on a terminal."""
    return repr(cell if len(cell) <= _SHOWN_OF_CELL else cell[:_SHOWN_OF_CELL] + "…")


def is_decimal_comma(cell: str) -> bool:
    return _DECIMAL_COMMA.fullmatch(cell) is not None


def is_grouped(cell: str) -> bool:
    """Whether a cell is a number with thousands separators; 1,234 may also be one with a decimal comma."""
    return _GROUPED.fullmatch(cell) is not None


def find_unit(cell: str) -> str | None:
    """The unit behind a number."""
    found = _WITH_UNIT.fullmatch(cell)
    return found.group(1) if found else None


def find_date_forms(cell: str) -> list[str]:
    """The forms of dates that a cell fits."""
    if not 6 <= len(cell) <= 30 or not cell[0].isdigit():
        return []
    return [form for form in DATE_FORMS if _is_date(cell, form)]


def _is_date(cell: str, form: str) -> bool:
    try:
        datetime.strptime(cell, form)
    except ValueError:
        return False
    return True


def guess_cause(column: str, cell: str, decimal: str = ".") -> str:
    """A sentence on what the cell may be and which line would help; nothing if it is just a word."""
    cell = cell.strip()
    shown = json.dumps(printable(cell), ensure_ascii=False)
    if cell.lower() in MISSING_WORDS:
        return f"If that means a missing value, set na_values = [{shown}]."
    if decimal == "," and "." in cell and is_grouped(cell):
        return "If that is a thousands separator, write the numbers without it."
    if decimal == "," and re.fullmatch(r"[+-]?\d*\.\d+", cell):
        return 'It has a decimal point, but decimal = ",". Write all numbers of the file alike.'
    if is_grouped(cell) and not re.fullmatch(r"[+-]?\d{1,3},\d{3}", cell):
        return "If that is a thousands separator, write the numbers without it."
    if is_decimal_comma(cell):
        or_grouped = " (if it is a thousands separator, write the numbers without it)" if is_grouped(cell) else ""
        return f'If that is a decimal comma, set decimal = ","{or_grouped}.'
    forms = find_date_forms(cell)
    if forms:
        return (
            f"If that is a date, set dates = {{ {json.dumps(column, ensure_ascii=False)} = {json.dumps(forms[0])} }}."
        )
    if cell.lower() in TRUE_WORDS | FALSE_WORDS:
        return 'If the column says yes or no, set true_values and false_values, such as ["yes"] and ["no"].'
    unit = find_unit(cell)
    if unit is not None:
        return f"If that is a number with the unit {printable(unit)!r}, write the number alone."
    if _LIMIT.fullmatch(cell):
        return "If that is a limit of detection, write a number or leave the cell empty."
    return ""
