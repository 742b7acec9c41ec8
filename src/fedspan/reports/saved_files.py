"""The figures and tables of a page as files of their own: SVG and CSV as the page offers them, and PNG for slides."""

from __future__ import annotations

import importlib
import re
from base64 import b64decode
from typing import Protocol, cast

from fedspan.errors import MissingExtraError
from fedspan.reports.drawing.charts import W

_LINK = re.compile(r'<a download="([a-z0-9.-]+)" href="data:[a-z+/]+;charset=utf-8;base64,([A-Za-z0-9+/=]*)">')
_COLOUR = re.compile(r"var\(--[a-z0-9]+, (#[0-9a-f]+)\)")
_PNG_WIDTH = 4 * W


class _Rasteriser(Protocol):
    def svg_to_bytes(self, *, svg_string: str, width: int, background: str) -> bytes: ...


def list_saved_files(page: str, *, with_png: bool) -> dict[str, bytes]:
    """What the links of a page save, by the file's name; two of the same name are numbered.

    Parameters:
        page: The page, as `render_report` writes it.
        with_png: Whether every drawing is given as PNG, too; it needs the extra `figures`.
    """
    files: dict[str, bytes] = {}
    for name, data in _LINK.findall(page):
        stem, _, kind = name.rpartition(".")
        number = 1
        while name in files:
            number += 1
            name = f"{stem}-{number}.{kind}"
        files[name] = b64decode(data)
    if with_png:
        resvg = _load_rasteriser()
        drawings = {name: data.decode() for name, data in files.items() if name.endswith(".svg")}
        for name, drawing in drawings.items():
            plain = _COLOUR.sub(r"\1", drawing)  # the fallback colours, because there is no page around it
            png = resvg.svg_to_bytes(svg_string=plain, width=_PNG_WIDTH, background="#ffffff")
            files[name.removesuffix(".svg") + ".png"] = bytes(png)
    return files


def _load_rasteriser() -> _Rasteriser:
    try:
        return cast(_Rasteriser, importlib.import_module("resvg_py"))
    except ImportError:
        raise MissingExtraError("Writing PNG files", "figures") from None
