"""What all pages of the local server share: their frame, their style, and the script that keeps them up to date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedspan.reports.format import Html, escape
from fedspan.reports.page import PAGE_STYLE

WEB_STYLE = (
    PAGE_STYLE
    + """
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 16px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 14px 16px;
  margin: 12px 0; }
.card.waiting { border-left: 5px solid var(--orange); }
.card h3 { margin: 0 0 10px; font-size: 1rem; overflow-wrap: anywhere; }
.told { border-left: 5px solid var(--p2); background: var(--card); border-radius: 4px 8px 8px 4px; margin: 12px 0;
  padding: 10px 14px; overflow-wrap: anywhere; }
.told.wrong { border-color: var(--p4); }
dl.words { display: grid; grid-template-columns: minmax(110px, max-content) 1fr; gap: 4px 16px; margin: 0 0 12px; }
dl.words dt { color: var(--soft); } dl.words dd { margin: 0; overflow-wrap: anywhere; }
form { display: inline-flex; flex-wrap: wrap; gap: 8px; align-items: center; margin: 0 16px 4px 0; }
button { font: inherit; padding: 6px 14px; border-radius: 6px; border: 1px solid var(--soft); background: var(--card);
  color: var(--ink); cursor: pointer; }
button:hover { border-color: var(--blue); } button.yes { background: #15803d; border-color: #15803d; color: #fff; }
button.no { border-color: var(--p4); color: var(--p4); }
:focus-visible { outline: 3px solid var(--blue); outline-offset: 2px; }
input { font: inherit; padding: 6px 8px; border-radius: 6px; border: 1px solid var(--soft); background: var(--paper);
  color: var(--ink); width: min(24rem, 60vw); }
progress { width: 110px; vertical-align: middle; } .empty { color: var(--soft); }
p { overflow-wrap: anywhere; } section summary, .card summary { font-size: .95rem; font-weight: 500; }
nav { margin: 0 0 12px; } #stale { color: var(--p4); }
@media (max-width: 560px) { dl.words { grid-template-columns: 1fr; gap: 0; } dl.words dd { margin-bottom: 8px; }
  table.wordy tr:first-child { display: none; } input { width: 100%; } form { display: flex; margin-right: 0; } }
"""
)

# Every two seconds the page is fetched again, and the parts of it that have changed are put in place, but never one in
# which somebody types or has typed.
LIVE_SCRIPT = """\
"use strict";
const parts = () => document.querySelectorAll("[data-live]");
const seen = new Map();
for (const part of parts()) seen.set(part.id, part.innerHTML);
function inUse(part) {
  if (part.contains(document.activeElement)) return true;
  return [...part.querySelectorAll("input")].some(field => field.value !== field.defaultValue);
}
function put(part, fresh) {
  const open = new Set([...part.querySelectorAll("details[open] > summary")].map(line => line.textContent));
  part.innerHTML = fresh;
  for (const line of part.querySelectorAll("details > summary")) {
    if (open.has(line.textContent)) line.parentElement.open = true;
  }
}
async function update() {
  if (document.hidden) return;
  const stale = document.getElementById("stale");
  try {
    const answer = await fetch(location.href, { headers: { "X-Live": "1" }, cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of parts()) {
      const other = page.getElementById(part.id);
      if (other === null || other.innerHTML === seen.get(part.id) || inUse(part)) continue;
      seen.set(part.id, other.innerHTML);
      put(part, other.innerHTML);
    }
    stale.textContent = "";
  } catch (error) {
    stale.textContent = "No answer: the command that serves this page has ended. What you see is no longer up to date.";
  }
}
setInterval(update, 2000);
"""


def render_frame(title: str, body: str, told: str = "", *, wrong: bool = False) -> str:
    """A whole page. `told` is what was done last, or what went wrong."""
    kind = "told wrong" if wrong else "told"
    said = f'<p class="{kind}" role="{"alert" if wrong else "status"}">{escape(told)}</p>' if told else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/style.css">'
        '<script src="/live.js" defer></script></head>\n'
        f'<body>\n<p id="stale" role="alert"></p>{said}\n{body}\n</body></html>\n'
    )


def render_live(name: str, heading: str, body: str) -> str:
    """A part of a page that is kept up to date."""
    return f'<section><h2>{escape(heading)}</h2><div id="{name}" data-live>{body}</div></section>'


def render_words(pairs: Iterable[tuple[str, str]]) -> str:
    """Words and what is to be said of them; a word that comes again is written once."""
    lines, before = [], None
    for word, text in pairs:
        shown = text if isinstance(text, Html) else escape(text)
        lines.append(f"<dt>{escape('' if word == before else word)}</dt><dd>{shown}</dd>")
        before = word
    return f'<dl class="words">{"".join(lines)}</dl>'


def render_form(
    action: str,
    token: str,
    label: str,
    hidden: Mapping[str, str] | None = None,
    *,
    ask: tuple[str, str] | None = None,
    kind: str = "",
) -> str:
    """A button that does something, and a field for words beside it if they are asked for (its name and label)."""
    fields = {"form_token": token, **(hidden or {})}
    inside = "".join(f'<input type="hidden" name="{escape(k)}" value="{escape(v)}">' for k, v in fields.items())
    if ask is not None:
        name, says = ask
        inside += (
            f'<input name="{escape(name)}" maxlength="500" placeholder="{escape(says)}" aria-label="{escape(says)}">'
        )
    button = f'<button class="{kind}">{escape(label)}</button>'
    return f'<form method="post" action="/do/{escape(action)}">{inside}{button}</form>'
