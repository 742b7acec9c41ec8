"""The model card of a run as one of its sites can write it: what is known there of the model and its protection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from fedspan._foreign import printable
from fedspan.deployment.site_rules.book import BookLine
from fedspan.deployment.site_rules.run_list import SiteRun


def write_card(run: SiteRun, entries: Sequence[BookLine], results: Path | None = None) -> str:
    """The card in Markdown. With the researcher's run folder it names the model's file by its digest."""
    opened = [entry.facts for entry in entries if entry.event == "opened"]
    last = opened[-1] if opened else {}
    sites = last.get("sites")
    names = ", ".join(map(str, sites)) if isinstance(sites, list) else "unknown"
    left: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        arrays = entry.facts.get("arrays")
        if entry.event == "answered" and isinstance(arrays, list):
            for array in arrays:
                if isinstance(array, list) and len(array) == 3 and isinstance(array[1], list):
                    shape = " × ".join(map(str, array[1])) or "one number"
                    left[str(entry.facts.get("task")), f"{array[0]} ({shape})"] += 1
    model = "not at this site; the researcher has it"
    if results is not None:
        digest = sha256((results / "model.safetensors").read_bytes()).hexdigest()
        model = f"`model.safetensors` of the researcher, SHA-256 `{digest}`"
    methods = ", ".join(dict.fromkeys(str(facts.get("algorithm")) for facts in opened))
    lines = [
        f"# Model of run {run.run}",
        "",
        f"- Model: {model}",
        f"- Asked for by: {run.by or 'not signed'}",
        f"- Method: {methods}; it ended here after round {run.round} of at most {run.rounds}",
        f"- Learned from the tables of: {names}",
        f"- Table at this site: {run.table}",
        f"- Protection: {_describe_sums_of(opened)}; {_describe_noise_of(run, opened)}",
        f"- At this site: opened {run.begun}, last word {run.last}, {run.answers} answers with {run.bytes} bytes, "
        f"state {run.state}{': ' + run.reason if run.reason else ''}",
        "",
        "What left this site, by task and array (no values are kept in the book):",
        "",
        *(f"- {task}: {array}, {count} times" for (task, array), count in left.items()),
        "",
        "What it was trained for, how good it is, and for whom it is not meant: ask the researcher; the site does not "
        "know.",
    ]
    return "\n".join(printable(line) for line in lines) + "\n"


def _describe_sums_of(opened: Sequence[object]) -> str:
    parts = [facts for facts in opened if isinstance(facts, dict)]
    if parts and all(facts.get("secure") is not None for facts in parts):
        checked = ", each step verified by this site" if all(facts.get("verified") is True for facts in parts) else ""
        return f"secure sums over at least {min(int(str(facts['secure'])) for facts in parts)} sites{checked}"
    return "not all sums were secure: the server saw numbers of this site alone"


def _describe_noise_of(run: SiteRun, opened: Sequence[object]) -> str:
    asked = [facts for facts in opened if isinstance(facts, dict) and facts.get("epsilon") is not None]
    if not asked:
        return "no noise"
    spent = "not known" if run.charged is None else f"at most {run.charged:.4g}"
    return f"noise for epsilon {asked[-1]['epsilon']} at delta {asked[-1]['delta']}; spent here: {spent}"
