"""A researcher who submits ordinary-looking jobs, and a server that asks odd questions, to learn what no task declares.

The server and the sites are the real ones, over loopback. Every attack is shown to succeed with its defence taken away:

    believe_the_job   the site takes words from the job, and looks up in its rows what the job leaves open (version 0.1)
    speak_openly      the site tells every reason, whatever it depends on (version 0.1)
    never_shut        refusals are not counted
    refuse_numbers    numbers that are not finite, or too large for a secure sum, are refused (version 0.1)

How long an answer takes is not looked at: docs/federation.md names it as a limit.
"""

from __future__ import annotations

import ast
import hashlib
import hmac
import json
import math
import re
import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedspan
from fedspan import FederatedClassifier, FederatedPCA
from fedspan.algorithms import AltMaxVar, Ssi
from fedspan.algorithms.gcca.network_files import find_maker
from fedspan.channel import Channel, wire
from fedspan.data.cells.dialect import KEYS_OF_DIALECT
from fedspan.data.preparation import Preparation
from fedspan.data.tables import find_source, open_table
from fedspan.deployment import site_service
from fedspan.deployment.kit import policy_file
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import Policy, SiteTable, write_secret
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_rules.shutter import Shutter
from fedspan.deployment.site_service import SiteService
from fedspan.engines.questions import QuestionCheck
from fedspan.engines.site import Site, explain
from fedspan.engines.start import StartMessage, TableRequest, preparation_from
from fedspan.errors import InputError, PolicyRefusal, ProtocolError
from fedspan.secure import fixed
from fedspan.secure.masking import Party

SITES = ("east", "north", "south")
SURNAMES = [f"{first}{last}" for first in ("Al", "Bru", "Cor") for last in ("man", "ton", "ner", "sen")]
KEYS = {
    "columns": ["age", "glucose", "sex"],
    "label": "outcome",
    "classes": ["ill", "well"],
    "categories": {"sex": ["f", "m"]},
}
FEW_ROUNDS = {"hidden": 2, "batch_size": 2, "rounds": 1, "random_state": 0}


def patients(site: str) -> list[dict[str, Any]]:
    """Twelve patients of a site; all that is in a row would be worth knowing."""
    rng = np.random.default_rng(SITES.index(site))
    return [
        {
            "name": f"{SURNAMES[i]}{site}",
            "mrn": f"MRN{SITES.index(site)}{i:05d}",
            "age": int(rng.integers(20, 90)),
            "glucose": round(float(rng.normal(100, 20)), 2),
            "sex": "fm"[i % 2],
            "outcome": ("well", "ill")[i % 3 == 0],
        }
        for i in range(12)
    ]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_site(folder: Path, table: dict[str, Any], **rules: Any) -> Path:
    (folder / "local").mkdir(parents=True, exist_ok=True)
    (folder / "local" / "fedspan.toml").write_text(policy_file({"default": table}, **rules), encoding="utf-8")
    return folder


@pytest.fixture
def clinics(tmp_path: Path) -> LoopbackFederation:
    """Three sites that accept secure sums only; names of patients are in the files, and not open to jobs."""
    sites = {}
    for site in SITES:
        path = write_csv(tmp_path / f"{site}.csv", patients(site))
        sites[site] = write_site(tmp_path / site, {"path": str(path), **KEYS})
    return LoopbackFederation(tmp_path / "server", sites)


def order(estimator: str, parameters: dict[str, Any], **asked: Any) -> RunRequest:
    """An ordinary job; `asked` is its [data] table."""
    table: TableRequest = {"name": None, "preparation": asdict(Preparation(**asked))}
    return RunRequest(secrets.token_hex(16), estimator, parameters, table=table, timeout=60.0)


def believe_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    find = Policy.find_table

    def find_table(self: Policy, asked: TableRequest) -> SiteTable:
        table, wanted = find(self, asked), preparation_from(asked.get("preparation"))
        source = find_source(table.path)
        assert source is not None

        def look_up(column: str) -> tuple[str, ...]:
            return tuple(sorted({w for batch in source.batches([column], [column]) for w in batch[column] if w}))

        label = wanted.label or table.label
        chosen = [*(wanted.columns or table.columns or ()), *wanted.categories]
        return replace(
            table,
            columns=tuple(dict.fromkeys(name for name in chosen if name != label)),
            id=wanted.id or table.id,
            label=label,
            classes=look_up(str(label)),
            categories={**table.categories, **{c: words or look_up(c) for c, words in wanted.categories.items()}},
        )

    monkeypatch.setattr(Policy, "find_table", find_table)


def speak_openly(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: SiteService, work: Callable[[], Any]) -> Any:
        try:
            with self.lock:
                return work()
        except Exception as error:
            return json.dumps({"error": explain(error), "input": isinstance(error, InputError)})

    monkeypatch.setattr(SiteService, "_answer", answer)


def ask_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sites answer questions that no server would ask: what refuses those looks at the question alone."""
    monkeypatch.setattr(QuestionCheck, "check", lambda self, message, arrays: None)


def never_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shutter, "count", lambda self, table: 1)


LIMIT = 2.0**61 / len(SITES)  # of a number in a secure sum


def is_too_large(arrays: Any) -> bool:
    return any(not bool((np.abs(x) < LIMIT).all()) for x in arrays.values())


def refuse_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    make, to_lanes = Site.__init__, fixed.to_lanes

    def init(self: Site, *given: Any) -> None:
        make(self, *given[:6], None, *given[7:])  # without what would be told of numbers that are not finite

    def refuse(arrays: Any, clients: int) -> Any:
        if is_too_large(arrays):
            raise InputError("Numbers must be smaller for a secure sum.")
        return to_lanes(arrays, clients)

    monkeypatch.setattr(Site, "__init__", init)
    monkeypatch.setattr(fixed, "to_lanes", refuse)


def saturate_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secure sums in which a number that is too large counts as the largest one, and is noted at its client."""
    mask = Party.mask

    def saturate(self: Party, arrays: Any, *more: Any) -> Any:
        masked = mask(self, {name: np.clip(x, -LIMIT / 2, LIMIT / 2) for name, x in arrays.items()}, *more)
        self.saturated = is_too_large(arrays)
        return masked

    monkeypatch.setattr(Party, "mask", saturate)


def all_that_came_back(federation: LoopbackFederation, request: RunRequest) -> str:
    """The outcome, and every byte of the files that a researcher gets."""
    outcome = federation.carry_out(request)
    files = sorted(federation.place(request).iterdir())
    return json.dumps(outcome) + "".join(path.read_bytes().decode("latin-1") for path in files)


# --- the words of the job


@pytest.mark.parametrize("column", ["name", "glucose", "mrn"])
def test_a_label_does_not_return_the_values_of_a_column(
    clinics: LoopbackFederation, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    values = {str(row[column]) for site in SITES for row in patients(site)}
    attack = order("FederatedClassifier", FEW_ROUNDS, label=column, columns=("age",))
    said = all_that_came_back(clinics, attack)
    assert f"which column is the label, and it is not '{column}'" in said
    assert not [value for value in values if value in said]

    believe_the_job(monkeypatch)
    again = replace(attack, run=secrets.token_hex(16))
    assert clinics.carry_out(again) == {"done": True}
    classes = FederatedClassifier.load(clinics.place(again) / "model.safetensors").classes_
    assert {str(value) for value in classes.tolist()} == values  # every surname of every site


@pytest.mark.parametrize("words", [("MRN100007",), ("MRN199999",)], ids=["member", "stranger"])
def test_categories_do_not_answer_who_is_a_patient(
    clinics: LoopbackFederation, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The words of the job are compared with those of the file, never with a value."""
    rule = {"n_components": 1, "solver": "gram", "center": False, "random_state": 0}
    attack = order("FederatedPCA", rule, columns=("age", "mrn"), categories={"mrn": words})
    outcome = clinics.carry_out(attack)
    assert outcome["error"].endswith("Column 'mrn' is not open to jobs at this site.")

    believe_the_job(monkeypatch)
    sites = dict(clinics.sites)
    clinics.sites = {"north": sites["north"], "south": sites["north"], "east": sites["north"]}  # the same one thrice
    again = clinics.carry_out(replace(attack, run=secrets.token_hex(16)))
    assert again["done"] == (words == ("MRN100007",))  # a yes or a no


def test_categories_without_words_do_not_put_values_into_names(
    clinics: LoopbackFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {str(row["name"]) for row in patients("north")}
    rule = {"n_components": 1, "solver": "gram", "random_state": 0}
    attack = order("FederatedPCA", rule, columns=("age", "name"), categories={"name": ()})
    said = all_that_came_back(clinics, attack)
    assert "Column 'name' is not open to jobs" in said
    assert not [value for value in values if value in said]

    believe_the_job(monkeypatch)
    sites = clinics.sites
    clinics.sites = dict.fromkeys(SITES, sites["north"])
    again = replace(attack, run=secrets.token_hex(16))
    assert clinics.carry_out(again) == {"done": True}
    names = FederatedPCA.load(clinics.place(again) / "model.safetensors").feature_names_in_
    assert {f"name={value}" for value in values} <= set(names)


def test_an_id_does_not_count_the_repeats_in_a_column(
    clinics: LoopbackFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = order("FederatedGCCA", {"n_components": 1, "random_state": 0}, id="sex")
    attack = replace(attack, secure={"enabled": False})
    for site in clinics.sites.values():
        write_site(site, {**read_table(site), "secret_file": str(site / "secret")}, secure=False)
        write_secret(site / "secret")
    said = all_that_came_back(clinics, attack)
    assert "which column is the id, and it is not 'sex'" in said
    assert "repeat" not in said

    believe_the_job(monkeypatch)
    speak_openly(monkeypatch)
    assert "10 of 12 rows in column 'sex' repeat the id" in all_that_came_back(
        clinics, replace(attack, run=secrets.token_hex(16))
    )


def read_table(site: Path) -> dict[str, Any]:
    return {"path": str(site.parent / f"{site.name}.csv"), **KEYS, "id": "mrn"}


@pytest.mark.parametrize(
    "key", ["held_out", "network", "path", "secret_file", "classes", "min_rows", "reading", *KEYS_OF_DIALECT]
)
def test_a_job_cannot_bring_keys_of_the_sites_file(clinics: LoopbackFederation, key: str) -> None:
    """Neither past an honest server, nor past a site if the server is not honest."""
    request = order("FederatedPCA", {"n_components": 1})
    bad = {**request.table, key: "planted:run"}
    with pytest.raises(ProtocolError, match=key):
        clinics.carry_out(replace(request, table=bad))
    site = SiteService("north", clinics.sites["north"])
    start = json.loads(StartMessage(request.run, 0, Ssi(k=1), Channel(), 1, SITES, threshold=3).to_json())
    assert key in json.loads(site.open(json.dumps({**start, "table": bad})))["error"]
    asked = {"fedspan": fedspan.__version__, "table": bad}
    assert key in json.loads(site.describe(json.dumps(asked)))["error"]


@pytest.mark.parametrize("key", KEYS_OF_DIALECT)
def test_a_job_cannot_change_how_a_sites_file_is_read(clinics: LoopbackFederation, key: str) -> None:
    """Words that count as missing, factors, formats: each would be a question about single cells."""
    request = order("FederatedPCA", {"n_components": 1})
    how = {**asdict(Preparation()), key: ["?"]}
    outcome = clinics.carry_out(replace(request, table={**request.table, "preparation": how}))
    assert key in outcome["error"]
    start = json.loads(StartMessage(request.run, 0, Ssi(k=1), Channel(), 1, SITES, threshold=3).to_json())
    told = SiteService("north", clinics.sites["north"]).open(json.dumps({**start, "table": {"preparation": how}}))
    assert key in json.loads(told)["error"]


def test_the_network_of_the_sites_own_file_is_what_would_be_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why no job may name one: whatever the file names is imported and called."""
    (tmp_path / "planted.py").write_text("def run():\n    return 'called'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_maker("planted:run", 0)() == "called"


@pytest.mark.parametrize("fill", [1e308, -1e300, math.inf, math.nan])
def test_numbers_that_fill_gaps_cannot_show_by_an_overflow_whether_there_are_gaps(
    clinics: LoopbackFederation, monkeypatch: pytest.MonkeyPatch, fill: float
) -> None:
    rule = {"n_components": 1, "solver": "gram", "random_state": 0}
    attack = order("FederatedPCA", rule, columns=("age",), missing="mean", fill={"age": fill})
    assert "data.fill must be finite and at most 1e+100" in clinics.carry_out(attack)["error"]
    if fill != 1e308:
        return
    monkeypatch.setattr("fedspan.deployment.policy._check_fill", lambda fill: None)
    refuse_numbers(monkeypatch)
    whole = clinics.carry_out(replace(attack, run=secrets.token_hex(16)))
    write_csv(clinics.sites["north"].parent / "north.csv", [{**row, "age": ""} for row in patients("north")])
    gaps = clinics.carry_out(replace(attack, run=secrets.token_hex(16)))
    assert (whole["done"], gaps["done"]) == (True, False)


# --- what refusals say


def break_table(what: str, folder: Path) -> dict[str, Any]:
    """A table that cannot be used, and whose reason would tell something."""
    rows = patients("north")
    if what == "missing file":
        return {"path": str(folder / "private-place.csv"), **KEYS}
    if what == "database":
        return {"path": "postgresql://reader@127.0.0.1:1/wards?table=patients", **KEYS}
    if what == "sqlite":
        with sqlite3.connect(folder / "private-place.db") as db:
            db.execute("CREATE TABLE t (a)")
        return {"path": f"sqlite:///{folder / 'private-place.db'}?table=nobody", **KEYS}
    if what == "text":
        rows[4]["glucose"] = "HIV-positive"
        return {"path": str(write_csv(folder / "private-place.csv", rows)), **KEYS}
    if what == "short row":
        path = write_csv(folder / "private-place.csv", rows)
        path.write_text(path.read_text() + "Zimmer,MRN9\n")
        return {"path": str(path), **KEYS}
    if what == "shape":
        np.save(folder / "private-place.npy", np.ones((17, 5)))
        return {"path": str(folder / "private-place.npy"), "features": 3}
    assert what == "few rows"
    return {"path": str(write_csv(folder / "private-place.csv", rows[:2])), **KEYS, "min_rows": 3}


TELLING = ("private-place", "127.0.0.1", "nobody", "HIV", "row 5", "Zimmer", "it has 5", "2 rows")
BROKEN = ["missing file", "database", "sqlite", "text", "short row", "shape", "few rows"]


@pytest.mark.parametrize("what", BROKEN)
def test_a_refusal_says_nothing_of_paths_addresses_shapes_and_values(
    clinics: LoopbackFederation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    if what == "database":
        pytest.importorskip("adbc_driver_postgresql", reason="needs fedspan[data]")
    table = break_table(what, tmp_path)
    if what == "shape":
        np.save(tmp_path / "other.npy", np.ones((9, 3)))
        for site in ("east", "south"):
            write_site(clinics.sites[site], {"path": str(tmp_path / "other.npy"), "features": 3})
    write_site(clinics.sites["north"], table)
    asked = {} if what == "shape" else {"columns": ("age", "glucose")}
    attack = order("FederatedPCA", {"n_components": 1, "solver": "gram", "random_state": 0}, **asked)
    outcome = clinics.carry_out(attack)
    (code,) = re.findall(r"Site 'north' refused \[([0-9a-f]{8})\]\.", outcome["error"])
    ledger = (clinics.place(attack) / "ledger.jsonl").read_text()
    assert not [word for word in TELLING if word in outcome["error"]]
    assert not [word for word in TELLING[:6] if word in ledger]
    (reason,) = [record.getMessage() for record in caplog.records if f"refused [{code}]: " in record.getMessage()]
    assert [word for word in TELLING if word in reason]  # the administrator is told

    speak_openly(monkeypatch)
    said = clinics.carry_out(replace(attack, run=secrets.token_hex(16)))["error"]
    assert [word for word in TELLING if word in said]


TABLES = {
    "ordinary": [{"age": 40 + i, "glucose": 90.5 + i} for i in range(12)],
    "nan": [{"age": "", "glucose": ""} for _ in range(12)],
    "huge": [{"age": 1e300, "glucose": -1e308} for _ in range(12)],
    "empty": [],
}


def describe_as_in_version_0_1(monkeypatch: pytest.MonkeyPatch) -> None:
    describe = Policy.describe

    def look(self: Policy, asked: TableRequest, **more: Any) -> Any:
        table = self.find_table(asked)
        opened = open_table(table.path, Preparation(columns=table.columns))
        return {**describe(self, asked, **more), "rows": int(opened.X.shape[0])}

    monkeypatch.setattr(Policy, "describe", look)


def make_four(folder: Path) -> dict[str, SiteService]:
    made = {}
    for name, rows in TABLES.items():
        (folder / name).mkdir()
        path = folder / name / "t.csv"
        write_csv(path, rows) if rows else path.write_text("age,glucose\n")
        kit = write_site(folder / name / "kit", {"path": str(path), "columns": ["age", "glucose"], "min_rows": 5})
        made[name] = SiteService("north", kit)
    return made


def test_what_a_site_says_is_the_same_for_any_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of descriptions, of openings and of refusals, for a table that is ordinary, NaN, huge or empty."""
    ask_anything(monkeypatch)
    four = make_four(tmp_path)
    asked = json.dumps({"fedspan": fedspan.__version__, "table": {}})
    assert len({site.describe(asked) for site in four.values()}) == 1
    assert len({open_secure(site) for site in four.values()}) == 1
    answers = {name: settle(site, 1.0) for name, site in four.items()}
    refusals = {re.sub("[0-9a-f]{8}", "code", a) for a in answers.values() if isinstance(a, str)}
    assert refusals == {'{"error": "refused [code]", "input": false}'}
    assert isinstance(answers["ordinary"], bytes)
    for site in four.values():  # whatever follows in a run that was closed is the same refusal
        if site.closed_by:
            assert {site.exchange(b"x", 0), site.exchange(b"y", 1)} == {site.closed_by}

    describe_as_in_version_0_1(monkeypatch)
    speak_openly(monkeypatch)
    for name in ("ordinary", "nan", "huge"):
        open_secure(four[name])
    assert len({site.describe(asked) for site in four.values()}) > 1
    answers = {name: settle(site, 1.0) for name, site in four.items() if name in ("nan", "huge")}
    assert all("at least one row" in str(answer) for answer in answers.values())


# --- oracles: a refusal is an answer


def open_secure(site: SiteService) -> str:
    """Open a run with secure sums, as a lying server may, as often as it likes."""
    start = StartMessage(secrets.token_hex(16), 0, Ssi(k=1), Channel(), 1, SITES, threshold=3)
    return re.sub("[0-9a-f]{32}", "run", site.open(start.to_json()))


def ask(site: SiteService, task: str, exchange: int = 0, **arrays: Any) -> bytes | str:
    message = wire.Message(task, 0, exchange, {name: np.asarray(array) for name, array in arrays.items()})
    return site.exchange(wire.encode(message), -1)


def agree_on_keys(site: SiteService) -> None:
    """The other two are the server's own: what it is sent by the site is masked all the same."""
    epoch = np.frombuffer(secrets.token_bytes(16), dtype=np.uint8)
    others = {name: Party(name, 3) for name in ("east", "south")}
    keys = {name: party.answer("@keys", {"epoch": epoch}, (0, 0))["key"] for name, party in others.items()}
    answer = ask(site, "@keys", epoch=epoch)
    assert isinstance(answer, bytes)
    keys["north"] = wire.decode(answer).arrays["key"]
    names = np.frombuffer(json.dumps(SITES).encode(), dtype=np.uint8)
    ask(site, "@roster", names=names, keys=np.stack([keys[name] for name in SITES]))


def to_sum(*names: str) -> dict[str, Any]:
    return {"@sum": np.frombuffer(" ".join(names).encode(), dtype=np.uint8)}


def settle(site: SiteService, scale: float) -> bytes | str:
    """Energies divided by scale²: too large if the energy is larger than LIMIT·scale²."""
    agree_on_keys(site)
    return ask(site, "settle", scale=np.full(2, scale), **to_sum("n", "energy", "features"))


def multiply(site: SiteService, large: float) -> bytes | str:
    """Products with a block of the server's own: too large if an entry of the Gram matrix is above LIMIT/large."""
    agree_on_keys(site)
    return ask(site, "multiply", Z=np.array([[large], [0.0]]), **to_sum("Y"))


def overflows_in_energy(site: SiteService, value: float) -> bool | None:
    return was_refused(site, lambda: settle(site, math.sqrt(value / LIMIT)))


def overflows_in_products(site: SiteService, value: float) -> bool | None:
    return was_refused(site, lambda: multiply(site, LIMIT / value))


def was_refused(site: SiteService, question: Callable[[], bytes | str]) -> bool | None:
    """A new run for every question. None: the table is shut."""
    if "error" in open_secure(site):
        return None
    return isinstance(question(), str)


def bisect(site: SiteService, is_larger: Callable[[SiteService, float], bool | None], runs: int) -> tuple[float, float]:
    """Where the value must be, after so many runs: it is larger than what was refused."""
    low, high = 1.0, 1e12
    for _ in range(runs):
        middle = math.sqrt(low * high)
        larger = is_larger(site, middle)
        if larger is None:
            break
        low, high = (middle, high) if larger else (low, middle)
    return low, high


def bits_learned(interval: tuple[float, float], value: float) -> float:
    """How much smaller the attacker's interval has become, in bits; none if the value is not in it."""
    low, high = interval
    if not low * (1 - 1e-12) <= value <= high * (1 + 1e-12):
        return 0.0
    return math.log2(math.log(1e12) / max(math.log(high / low), 1e-14))


def make_clinic(folder: Path, X: np.ndarray, **rules: Any) -> SiteService:
    path = write_csv(folder.with_suffix(".csv"), [{"age": a, "glucose": g} for a, g in X])
    return SiteService("north", write_site(folder, {"path": str(path), "columns": ["age", "glucose"]}, **rules))


@pytest.mark.parametrize("oracle", [overflows_in_energy, overflows_in_products])
@pytest.mark.parametrize("seed", range(3))
def test_an_overflow_over_100_runs_tells_at_most_five_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oracle: Callable[[SiteService, float], bool], seed: int
) -> None:
    """In energies divided by the server's own scale, and in products with the server's own block."""
    ask_anything(monkeypatch)
    X = np.random.default_rng(seed).uniform(1, 50, size=(4, 2))
    value = float(np.sum(X**2)) if oracle is overflows_in_energy else float((X.T @ X)[:, 0].max())
    with monkeypatch.context() as on:
        saturate_numbers(on)
        assert bits_learned(bisect(make_clinic(tmp_path / "defended", X), oracle, 100), value) <= 5
        shut = make_clinic(tmp_path / "shut", X)
        answers = [oracle(shut, 1.0) for _ in range(100)]  # an overflow every time, and not a word of it
        assert answers == [False] * 5 + [None] * 95

    refuse_numbers(monkeypatch)
    counted = make_clinic(tmp_path / "counted", X)  # a code without a reason, and the fifth shuts the table
    assert [oracle(counted, 1.0) for _ in range(100)] == [True] * 5 + [None] * 95
    never_shut(monkeypatch)  # a code without a reason alone is no defence
    assert bits_learned(bisect(make_clinic(tmp_path / "open", X), oracle, 100), value) >= 35


def test_nan_over_100_runs_tells_at_most_five_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """inf - inf is NaN if an entry of the Gram matrix, times the server's number, overflows.

    Here without masks and noise, where the number itself leaves, too: the refusal must not add to that.
    """
    ask_anything(monkeypatch)
    x = np.random.default_rng(5).uniform(1, 50, size=(4, 1))
    X = np.hstack([x, x])
    largest, value = np.finfo(np.float64).max, float(np.sum(x**2))

    def is_nan(site: SiteService, size: float) -> bool | None:
        start = StartMessage(secrets.token_hex(16), 0, Ssi(k=1), Channel(), 1, SITES)
        if "error" in site.open(start.to_json()):
            return None
        large = largest / size
        return isinstance(ask(site, "multiply", Z=np.array([[large], [-large]])), str)

    defended = make_clinic(tmp_path / "defended", X, secure=False)
    assert bits_learned(bisect(defended, is_nan, 100), value) <= 5
    shut = make_clinic(tmp_path / "shut", X, secure=False)
    assert [is_nan(shut, 1.0) for _ in range(100)] == [False] * 5 + [None] * 95

    refuse_numbers(monkeypatch)
    never_shut(monkeypatch)
    assert bits_learned(bisect(make_clinic(tmp_path / "open", X, secure=False), is_nan, 100), value) >= 30


def test_too_few_rows_are_told_five_times_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a column has enough values would be a bit for every set of columns that a job may choose."""
    rng = np.random.default_rng(0)
    gaps = rng.random(40) < 0.5
    rows = [{f"x{j}": "" if gaps[j] and i > 2 else i * 1.5 for j in range(40)} for i in range(9)]
    names = list(rows[0])
    sites = {}
    for site in SITES:
        path = write_csv(tmp_path / f"{site}.csv", rows if site == "north" else [dict.fromkeys(names, 2)] * 9)
        sites[site] = write_site(tmp_path / site, {"path": str(path), "columns": names, "min_rows": 5})
    federation = LoopbackFederation(tmp_path / "server", sites)

    def learn() -> list[bool | None]:
        found: list[bool | None] = []
        for j in range(40):
            rule = {"n_components": 1, "solver": "gram", "center": False}
            request = replace(order("FederatedPCA", rule, columns=(f"x{j}",)), retries=0)
            error = federation.carry_out(request).get("error", "")
            found.append(None if "is shut" in error else "refused [" in error)
        return found

    learned = learn()
    assert sum(found is True for found in learned) == 5
    assert all(found is None for found in learned[np.flatnonzero(gaps)[4] + 1 :])
    assert "is shut at this site" in federation.carry_out(order("FederatedPCA", {"n_components": 1}))["error"]

    Shutter(sites["north"]).reopen("default")
    never_shut(monkeypatch)
    assert learn() == gaps.tolist()  # every bit


# --- ids


def digest_of(secret: str, key: bytes, one: str) -> int:
    text = b"t" + one.casefold().encode()  # as all clients spell it, which is no secret
    made = hmac.new(secret.encode(), key, hashlib.sha256)
    made.update(len(text).to_bytes(8, "little") + text)
    return int.from_bytes(made.digest()[:4], "little")


def test_ids_cannot_be_guessed_from_their_digests(clinics: LoopbackFederation, tmp_path: Path) -> None:
    """A dictionary of all possible ids finds every patient for whoever knows the secret, and nobody otherwise."""
    write_secret(tmp_path / "secret")
    secret = (tmp_path / "secret").read_text().strip()
    write_site(
        clinics.sites["north"],
        {**read_table(clinics.sites["north"]), "secret_file": str(tmp_path / "secret")},
        secure=False,
    )
    site = SiteService("north", clinics.sites["north"])
    key = np.arange(32, dtype=np.uint8)
    start = StartMessage(secrets.token_hex(16), 0, AltMaxVar(k=1), Channel(), 1, SITES)
    assert "opened" in site.open(start.to_json())
    ask(site, "identify", key=key)
    answer = ask(site, "identify_rows", exchange=1, key=key)
    assert isinstance(answer, bytes)
    digests = set(wire.decode(answer).arrays["digests"].tolist())
    dictionary = [f"MRN1{i:05d}" for i in range(1000)]
    patients_here = {row["mrn"] for row in patients("north")}

    def guess(secret: str) -> set[str]:
        return {one for one in dictionary if digest_of(secret, key.tobytes(), one) in digests}

    assert guess("") == guess("between the hospitals") == set()
    assert guess(secret) == patients_here


@pytest.mark.parametrize("text", ["", "agreed by telephone", "0123456789abcdef", "g" * 64])
def test_ids_are_not_digested_under_a_secret_that_can_be_guessed(
    clinics: LoopbackFederation, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(0o600)
    given = {"secret_file": str(path)} if text else {}
    write_site(clinics.sites["north"], {**read_table(clinics.sites["north"]), **given}, secure=False)
    site = SiteService("north", clinics.sites["north"])
    start = StartMessage(secrets.token_hex(16), 0, AltMaxVar(k=1), Channel(), 1, SITES)
    told = json.loads(site.open(start.to_json()))["error"]
    assert ("secret for ids cannot be used" if text else "no secret to digest them with") in told
    assert str(tmp_path) not in told


@pytest.mark.parametrize("rule", ["rows", "names"])
def test_digests_of_single_ids_obey_rows_and_names(clinics: LoopbackFederation, tmp_path: Path, rule: str) -> None:
    write_secret(tmp_path / "secret")
    table = {**read_table(clinics.sites["north"]), "secret_file": str(tmp_path / "secret")}
    write_site(clinics.sites["north"], table, secure=False, **{rule: False})
    site = SiteService("north", clinics.sites["north"])
    start = StartMessage(secrets.token_hex(16), 0, AltMaxVar(k=1), Channel(), 1, SITES)
    assert "opened" in site.open(start.to_json())
    key = np.arange(32, dtype=np.uint8)
    assert "does not give digests of single ids" in str(ask(site, "identify_rows", key=key))
    assert isinstance(ask(site, "identify", key=key), bytes)
    assert Shutter(clinics.sites["north"]).list_shut() == []


# What code may use that refuses in words, in modules of which other code sees ids: numbers of the site's file, the key,
# what the server asked before.
BLIND = {"self.data.least", "self.data.most", "self.pool", "self.answered", "self._check_points", "self.confirmed"}


def test_code_that_touches_data_cannot_speak() -> None:
    """The line between refusals is drawn by type, so no module that sees rows may know the type that is told."""
    source = Path(fedspan.__file__).parent
    knowing = {path.relative_to(source) for path in source.rglob("*.py") if "PolicyRefusal" in path.read_text("utf-8")}
    matching = {Path("algorithms") / "matching" / name for name in ("match_ring.py", "match_by_tags.py")}
    assert {path.parts[0] for path in knowing - matching} == {"errors.py", "deployment", "cli"}
    assert matching < knowing
    for path in matching:  # they hold ids, but refuse by the server's own message and the site's file alone
        refusing = [
            node
            for node in ast.walk(ast.parse((source / path).read_text("utf-8")))
            if isinstance(node, ast.FunctionDef) and "PolicyRefusal" in ast.unparse(node)
        ]
        assert refusing
        for function in refusing:
            used = set(re.findall(r"self\.(?:data\.)?\w+", ast.unparse(function)))
            assert used <= BLIND, f"{path}: {function.name}"
    assert Path("deployment") / "site_tables" / "site_data.py" not in knowing


def test_what_is_told_in_full_was_found_without_the_data(
    clinics: LoopbackFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every refusal by the job and the site's file comes before a byte of the table is read."""
    touched: list[str] = []
    monkeypatch.setattr(site_service, "open_client_data", lambda table, start: touched.append(table.path))
    for asked in ({"label": "name"}, {"id": "sex"}, {"columns": ("name",)}, {"categories": {"sex": ("x",)}}):
        outcome = clinics.carry_out(order("FederatedPCA", {"n_components": 1}, **asked))
        assert outcome["input"]
    assert not touched
    with pytest.raises(PolicyRefusal, match="not open to jobs"):
        SiteTable("nowhere.csv", ("age",)).choose({"preparation": asdict(Preparation(columns=("name",)))})
