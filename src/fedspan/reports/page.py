"""The HTML that reports and audits share: one file that needs nothing else, its style, its tables and figures."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence

from fedspan.reports.drawing.charts import CHART_STYLE, to_standalone
from fedspan.reports.format import Html, escape, to_csv, to_file_name

# What a browser may do with a page: show its own style. No script runs and nothing is fetched or sent, even if some
# value came onto the page unescaped.
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
PAGE_STYLE = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #fff; --ink: #1d2126; --soft: #5c6570; --rule: #e1e4e8;
  --blue: #2563b8; --orange: #b34f08; --p2: #15803d; --p3: #a21caf; --p4: #b91c1c; --p5: #0e7490; --p6: #854d0e; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1c2024; --ink: #e6e8ea; --soft: #9aa4ae;
  --rule: #31373d; --blue: #6ea8f0; --orange: #f0a060; --p2: #5fd08a; --p3: #e08af0; --p4: #f87171; --p5: #4fd0e6;
  --p6: #d9b25c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 24px 16px 48px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 4px; } h2 { font-size: 1.1rem; margin: 32px 0 8px; }
p { margin: 0 0 12px; max-width: 75ch; } .soft, figcaption { color: var(--soft); font-size: .9rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(136px, 1fr)); gap: 8px; margin: 16px 0; }
.figures.large { grid-template-columns: repeat(auto-fit, minmax(min(150px, 45%), 1fr)); }
.figures.large dd { font-size: 1.6rem; line-height: 1.3; }
.verdict { border-left: 5px solid var(--soft); background: var(--card); border-radius: 4px 8px 8px 4px; margin: 12px 0;
  padding: 10px 14px; }
.verdict p, .verdict ul { margin-bottom: 0; } .verdict.good { border-color: var(--p2); }
.verdict.caution { border-color: var(--orange); } .verdict strong { margin-right: 6px; }
.badge { display: inline-block; padding: 1px 10px; border-radius: 12px; border: 1px solid var(--soft);
  margin-right: 8px; font-size: .9rem; font-weight: 600; white-space: nowrap; }
.badge.strong { border-color: var(--p2); color: var(--p2); }
.badge.partial { border-color: var(--blue); color: var(--blue); }
.badge.none { border-color: var(--orange); color: var(--orange); }
details { margin: 12px 0; border-top: 1px solid var(--rule); padding-top: 8px; }
summary { cursor: pointer; font-size: 1.1rem; font-weight: 600; } details > h2:first-of-type { margin-top: 12px; }
.save { font-size: .8rem; margin: 6px 0 0; text-align: right; max-width: none; }
.table + .save { margin: 2px 4px 12px; }
.figures div, figure, .table { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
.figures div { padding: 8px 12px; } .figures dt { color: var(--soft); font-size: .82rem; }
.figures dd { margin: 0; font-size: 1.1rem; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 12px; }
figure { margin: 0; padding: 12px; } figcaption { margin-bottom: 6px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(84px, 1fr)); gap: 8px; }
.pictures figure { padding: 8px; text-align: center; } .pictures figcaption { margin: 4px 0 0; }
svg { display: block; width: 100%; height: auto; } svg.chart { max-width: 460px; margin: 0 auto; }
.meter { display: inline-block; width: 48px; height: 8px; margin-right: 8px; background: var(--rule); }
.meter span { display: block; height: 8px; background: var(--blue); }
a { color: var(--blue); } code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr:last-child td { border-bottom: 0; } th { color: var(--soft); font-weight: 500; font-size: .85rem; }
.number { text-align: right; white-space: nowrap; } td:first-child { white-space: nowrap; }
.keep { white-space: nowrap; display: inline-block; margin-right: 12px; }
.table + p, .charts + p, .charts + .table, .table + .charts { margin-top: 12px; }
@media (min-width: 760px) { .charts:has(> :nth-child(4):last-child) { grid-template-columns: 1fr 1fr; } }
@media (max-width: 560px) { th, td { padding: 5px 7px; } table { font-size: .84rem; } .meter { display: none; }
  .wordy tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--rule); }
  .wordy td, .wordy th { border: 0; }
  .wordy :last-child { flex-basis: 100%; } }
ul { padding-left: 20px; margin: 0 0 12px; } li { max-width: 85ch; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px;
  font: 13px/1.45 ui-monospace, monospace; }
"""


def render_page(title: str, parts: Iterable[str]) -> str:
    """The whole file."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{PAGE_STYLE}{CHART_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def render_notes(notes: Iterable[str]) -> str:
    """A list; what was said several times, once."""
    items = (f"<li>{escape(note)}{f' (×{n})' if n > 1 else ''}</li>" for note, n in Counter(notes).items())
    return f"<ul>{''.join(items)}</ul>"


def render_key_figures(figures: dict[str, str], *, large: bool = False) -> str:
    """Key figures, each with its label."""
    items = (f"<div><dt>{escape(label)}</dt><dd>{escape(text)}</dd></div>" for label, text in figures.items())
    return f'<dl class="figures{" large" if large else ""}">{"".join(items)}</dl>'


def render_figure(caption: str, svg: str) -> str:
    """A drawing with its caption, and a link that saves it as a file of its own."""
    link = _render_save_link(f"{to_file_name(caption)}.svg", "image/svg+xml", to_standalone(svg), "SVG")
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}{link}</figure>"


def render_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: set[int], kind: str = "", save_as: str = ""
) -> str:
    """Rows of text; the columns in `numbers` to the right. Of kind "wordy", the last column is a sentence.

    `save_as`: a name, under which a link saves the table as a CSV file.
    """

    def cell(tag: str, column: int, text: str) -> str:
        kind = ' class="number"' if column in numbers else ""
        return f"<{tag}{kind}>{text if isinstance(text, Html) else escape(text)}</{tag}>"

    body = [list(row) for row in rows]
    lines = ["".join(cell("th", i, text) for i, text in enumerate(head))]
    lines += ["".join(cell("td", i, text) for i, text in enumerate(row)) for row in body]
    drawn = "".join(f"<tr>{line}</tr>" for line in lines)
    link = _render_save_link(f"{save_as}.csv", "text/csv", to_csv([head, *body]), "CSV") if save_as else ""
    return f'<div class="table" tabindex="0"><table class="{kind}">{drawn}</table></div>{link}'


def _render_save_link(name: str, kind: str, content: str, says: str) -> str:
    """A link that saves what is in it: nothing is fetched, and no script runs."""
    data = b64encode(content.encode()).decode()
    where = f'download="{escape(name)}" href="data:{kind};charset=utf-8;base64,{data}"'
    return f'<p class="save"><a {where}>Save as {says}</a></p>'


def render_details(summary: str, body: str, *, open_: bool = False) -> str:
    """A part of the page that is folded until someone opens it."""
    return f"<details{' open' if open_ else ''}><summary>{escape(summary)}</summary>{body}</details>"


def render_charts(figures: Iterable[str]) -> str:
    """Figures beside each other, as many as fit; nothing if there are none."""
    drawn = "".join(figures)
    return f'<div class="charts">{drawn}</div>' if drawn else ""
