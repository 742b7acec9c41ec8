"""What a site can show to an auditor: its book in lines for a terminal, and a folder of evidence of one run."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import parse_json, printable
from fedspan._types import Json
from fedspan._version import __version__
from fedspan.deployment.site_rules.book import Book, BookLine
from fedspan.deployment.site_rules.model_card import write_card
from fedspan.deployment.site_rules.run_list import list_site_runs
from fedspan.deployment.site_service import ORDER
from fedspan.errors import InputError

_CERTIFICATES = ("rootCA.pem", "client.crt")  # of the kit's startup folder; its keys stay where they are
_CONTEXT = "https://w3id.org/ro/crate/1.1/context"
_PROFILE = "https://w3id.org/ro/crate/1.1"


def describe_book(kit: Path, run: str | None = None, last: int | None = None) -> Iterator[str]:
    """The book in plain words, one line per entry, the oldest first; of one run or of all, all or the last lines."""
    entries = list(find_entries(kit, run))
    for entry in entries if last is None else entries[-last:]:
        yield f"{entry.number:6}  {entry.when[:19].replace('T', ' ')}  {describe_entry(entry)}"


def find_entries(kit: Path, run: str | None) -> Iterator[BookLine]:
    """The lines of the book that are about a run, or all of them. `run` may be the beginning of its name."""
    for entry in Book(kit).read():
        if run is None or str(entry.facts.get("run", "")).startswith(run):
            yield entry


def verify_book(kit: Path, head: str | None = None) -> list[str]:
    """Say that the chain of the book is whole, or refuse it; with `head`, that it still holds a digest noted before."""
    book = Book(kit)
    audit = book.verify()
    if audit.broken:
        lines = ", ".join(map(str, audit.broken[:10]))
        raise InputError(
            f"The book {book.path} was changed: line {lines} does not follow from the line before it. A line before "
            "each of these was changed, taken out or put in."
        )
    if head is not None and head not in {entry.digest for entry in book.read()}:
        raise InputError(
            f"The book {book.path} has no line with the digest {printable(head)}: its end was cut off, or it was "
            "written anew."
        )
    return [f"the book is whole: {audit.lines} lines", f"digest of the last line: {audit.head}"]


def collect_evidence(kit: Path, run: str, folder: Path, results: Path | None = None) -> list[str]:
    """Write what this site knows of a run into a new folder: its orders, certificates and the book; no data, no keys.

    Returns the names of the files. The whole book goes with it, because only the whole chain can be verified.
    `results` is the researcher's run folder, if it was handed over: ledger, report and model card are added.
    """
    entries = list(find_entries(kit, run))
    names = sorted({str(entry.facts["run"]) for entry in entries})
    if len(names) != 1:
        found = "no run" if not names else f"{len(names)} runs"
        raise InputError(f"The book has {found} whose name begins with {run!r}. See: fedspan site log {kit}")
    verify_book(kit)
    if folder.exists():
        raise InputError(f"{folder} already exists; choose another folder.")
    if results is not None:
        _check_results(results, names[0])
    make_private_folder(folder)
    shutil.copyfile(Book(kit).path, folder / "book.jsonl")
    for place in sorted((kit / "fedspan" / "runs" / names[0]).glob(f"*/{ORDER}")):
        shutil.copyfile(place, folder / f"order-{place.parent.name}.json")
    for name in _CERTIFICATES:
        if (kit / "startup" / name).is_file():
            shutil.copyfile(kit / "startup" / name, folder / name)
    for digest in sorted({str(entry.facts["signed"]) for entry in entries if "signed" in entry.facts}):
        record = kit / "fedspan" / "orders" / f"{digest}.json"
        if record.is_file():
            shutil.copyfile(record, folder / f"signed-{digest[:16]}.json")
    summary = next(iter(list_site_runs(entries)), None)
    if summary is not None:
        write_whole(folder / "model-card.md", write_card(summary, entries, results))
    if results is not None:
        for name in ("ledger.jsonl", "report.html"):
            shutil.copyfile(results / name, folder / name)
    words = [f"{entry.when}  {describe_entry(entry)}" for entry in entries]
    write_whole(folder / "log.txt", "\n".join(words) + "\n")
    files = sorted(path.name for path in folder.iterdir())
    write_whole(folder / "ro-crate-metadata.json", json.dumps(_describe_crate(folder, names[0], files), indent=1))
    for path in folder.iterdir():
        path.chmod(0o600)
    return [*files, "ro-crate-metadata.json"]


def describe_entry(entry: BookLine) -> str:
    """One line of the book in plain words."""
    facts = defaultdict(lambda: "?", {key: printable(str(value)) for key, value in entry.facts.items()})
    run = facts["run"][:12] if "run" in facts else "-"
    if entry.event == "asked":
        return f"asked     {facts['order_digest'][:12]}  an order of {facts['by']} waits for approval"
    if entry.event == "opened":
        noise = f"epsilon {facts['epsilon']} at delta {facts['delta']}"
        sums = f"secure sums of {facts['secure']} sites or more"
        protection = [
            sums if entry.facts.get("secure") is not None else "no secure sums",
            *(["verified"] if entry.facts.get("verified") is True else []),
            noise if entry.facts.get("epsilon") is not None else "no noise",
        ]
        by = f", asked by {facts['by']}" if "by" in entry.facts else ""
        return f"opened    {run}  {facts['algorithm']} on table {facts['table']}; {', '.join(protection)}{by}"
    if entry.event == "answered":
        arrays = entry.facts.get("arrays")
        listed = ", ".join(_describe_array(array) for array in arrays) if isinstance(arrays, list) else ""
        where = f"round {facts['round']}, {facts['task']}"
        return f"answered  {run}  {where}: {listed or 'nothing'} ({facts['bytes']} bytes)"
    if entry.event == "refused":
        return f"refused   {run}  {facts['reason'] if 'reason' in facts else 'code ' + facts['code']}"
    if entry.event == "ended":
        charged = f", epsilon {facts['charged']} spent at delta {facts['delta']}" if "charged" in entry.facts else ""
        why = " by the refusal" if entry.facts.get("refused") is True else ""
        return f"ended     {run}  {facts['answers']} answers, {facts['bytes']} bytes left{charged}{why}"
    if entry.event == "administrator":
        return f"changed   {facts['act']}"
    return "(a line that a crash cut off)"


def _check_results(results: Path, run: str) -> None:
    """Refuse a run folder of another run."""
    try:
        told = parse_json((results / "federation.json").read_bytes())
    except (OSError, ValueError):
        told = None
    if not isinstance(told, dict) or told.get("run") != run:
        raise InputError(
            f"{results} is not the researcher's folder of this run: its federation.json names another one."
        )
    for name in ("ledger.jsonl", "report.html", "model.safetensors"):
        if not (results / name).is_file():
            raise InputError(f"{results} has no {name}; the run has not ended there.")


def _describe_array(array: Json) -> str:
    if not isinstance(array, list) or len(array) != 3 or not isinstance(array[1], list):
        return "?"
    return f"{printable(str(array[0]))} {' × '.join(map(str, array[1])) or 'one number'}"


def _describe_crate(folder: Path, run: str, files: list[str]) -> Mapping[str, Json]:
    """The folder as an RO-Crate: what each file is, with its digest."""
    parts: Json = [{"@id": name} for name in files]
    creator: Json = {"@id": "#fedspan"}
    described: list[Json] = [
        {
            "@id": name,
            "@type": "File",
            "name": _say_what(name),
            "sha256": sha256((folder / name).read_bytes()).hexdigest(),
        }
        for name in files
    ]
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Evidence of run {run} at one site",
        "description": "What a site was asked in a federated run, and what left it, by name and size. No data.",
        "datePublished": datetime.now(UTC).isoformat(timespec="seconds"),
        "hasPart": parts,
        "creator": creator,
    }
    tool: Json = {"@id": "#fedspan", "@type": "SoftwareApplication", "name": "fedspan", "version": __version__}
    about: Json = {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "conformsTo": {"@id": _PROFILE},
        "about": {"@id": "./"},
    }
    return {"@context": _CONTEXT, "@graph": [about, root, tool, *described]}


def _say_what(name: str) -> str:
    if name.startswith("order-"):
        return "What the run, or a part of it, was opened with, as it came"
    if name.startswith("signed-"):
        return "The order as the researcher signed it, with certificate, signature and this site's decision"
    known = {
        "book.jsonl": "The site's book, whole, so that its chain can be verified",
        "log.txt": "The lines of the book that are about this run, in words",
        "rootCA.pem": "The certificate of the federation",
        "client.crt": "The certificate of the site",
        "model-card.md": "What the model is, who asked for it, what protected the rows, and what this site gave",
        "ledger.jsonl": "The ledger of the run, from the researcher's folder",
        "report.html": "The report of the run, from the researcher's folder",
    }
    return known[name]
