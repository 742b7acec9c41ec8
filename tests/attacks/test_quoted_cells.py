"""An error of a reader may quote the cell that it stumbles over: it must not leave the one whose table it is.

At a site nothing of it reaches the server, the researcher's results or what the site says; in one process the person
who runs it is told, but ledger and report, which are passed on, do not hold it.
"""

from __future__ import annotations

import gzip
import json
import secrets
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "deployment"))

from orders import write_site

from fedspan import FederatedPCA
from fedspan.algorithms import Gram
from fedspan.core import run as run_module
from fedspan.core.ledger import Ledger
from fedspan.core.run import run
from fedspan.data.preparation import Preparation
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_service import SiteService
from fedspan.engines import InProcess
from fedspan.engines.loopback import Call, Deliver
from fedspan.engines.site import explain
from fedspan.errors import ClientError, FedspanError, InputError

CELL = "Q7-Millerova"
ROWS = {"age": ["41", "42", CELL, "44", "45", "46"], "dose": ["1.5", "2.5", "3.5", "4.5", "6.5", "5.5"]}
defences = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])


def write_csv(path: Path, separator: str = ",", decimal: str = ".") -> Path:
    lines = [separator.join(ROWS), *(separator.join(row) for row in zip(*ROWS.values(), strict=True))]
    path.write_text("\n".join(lines).replace(".", decimal) + "\n")
    return path


def write_gzip(path: Path) -> Path:
    path.write_bytes(gzip.compress(write_csv(path.with_name("plain.csv")).read_bytes()))
    path.with_name("plain.csv").unlink()
    return path


def write_excel(path: Path) -> Path:
    pytest.importorskip("openpyxl", reason="writes the workbook")
    pytest.importorskip("python_calamine", reason="needs fedspan[excel]")
    pd.DataFrame(ROWS).to_excel(path, index=False)
    return path


def write_folder(path: Path) -> Path:
    path.mkdir()
    pd.DataFrame(ROWS).to_parquet(path / "part-0.parquet")
    return path


def write_parquet(path: Path) -> Path:
    pd.DataFrame(ROWS).to_parquet(path)
    return path


def write_feather(path: Path) -> Path:
    pd.DataFrame(ROWS).to_feather(path)
    return path


def write_sqlite(path: Path) -> str:
    with sqlite3.connect(path) as db:
        pd.DataFrame(ROWS).to_sql("t", db, index=False)
    return f"sqlite:///{path}?table=t"


READERS: dict[str, tuple[Callable[[Path], Any], str, dict[str, Any]]] = {
    "csv": (write_csv, "a.csv", {}),
    "tsv": (lambda path: write_csv(path, "\t"), "a.tsv", {}),
    "decimal commas": (lambda path: write_csv(path, ";", ","), "a.csv", {"decimal": ",", "separator": ";"}),
    "csv.gz": (write_gzip, "a.csv.gz", {}),
    "xlsx": (write_excel, "a.xlsx", {}),
    "parquet": (write_parquet, "a.parquet", {}),
    "folder of parquet": (write_folder, "parts", {}),
    "feather": (write_feather, "a.feather", {}),
    "sqlite": (write_sqlite, "a.db", {}),
}


def speak_openly(self: SiteService, work: Callable[[], Any]) -> Any:
    """Codes switched off."""
    try:
        with self.lock:
            return work()
    except Exception as error:
        return json.dumps({"error": explain(error), "input": isinstance(error, InputError)})


@defences
@pytest.mark.parametrize("reader", READERS)
def test_no_cell_that_a_reader_quotes_leaves_a_site(
    tmp_path: Path, reader: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not defended:
        monkeypatch.setattr(SiteService, "_answer", speak_openly)
    write, name, more = READERS[reader]
    sites, left = {}, []
    for site in ("east", "north", "south"):
        (tmp_path / site).mkdir()
        address = str(write(tmp_path / site / name))
        table = {"path": address, "columns": list(ROWS), **more}
        sites[site] = write_site(tmp_path / f"{site}-kit", {"default": table})

    def listen(call: Call, deliver: Deliver) -> Any:
        left.append(deliver(call))
        return left[-1]

    federation = LoopbackFederation(tmp_path / "server", sites, listen)
    preparation = asdict(Preparation(columns=tuple(ROWS)))
    parameters = {"n_components": 1, "solver": "gram", "random_state": 0}
    request = RunRequest(secrets.token_hex(16), "FederatedPCA", parameters, table={"preparation": preparation})
    outcome = federation.carry_out(request)
    seen = b"".join(path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file())
    seen += b"".join(answer.encode() if isinstance(answer, str) else bytes(answer) for answer in left)
    seen += json.dumps(outcome).encode()
    assert not outcome["done"]
    telling = (CELL.encode(), b"contains text", b"are not numbers", b"row 3")
    assert (not any(word in seen for word in telling)) is defended
    if defended:
        assert b"refused [" in seen


class Clumsy:
    """Data that a user's own code opens, and whose library quotes a cell."""

    def __call__(self) -> np.ndarray:
        return np.array([[float(cell)] for cell in ROWS["age"]])


@defences
def test_an_error_of_a_library_is_told_and_not_written_down(
    tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not defended:
        monkeypatch.setattr(run_module, "shorten_failures", lambda failures: failures)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with pytest.raises(ClientError, match=f"client 'b' failed: ValueError: could not convert .*{CELL}"):
        run(Gram(k=1, center=False), InProcess({"a": np.eye(3)[:, :1], "b": Clumsy()}), rounds=1, seed=0, ledger=ledger)
    ledger.close()
    kept = (tmp_path / "ledger.jsonl").read_text(encoding="utf-8")
    assert (CELL not in kept) is defended
    assert "ValueError" in kept


def test_a_cell_that_our_reader_quotes_is_told_and_not_written_down(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with pytest.raises(FedspanError, match=CELL):
        FederatedPCA(1).fit({"a": pd.DataFrame({"age": [1.0, 2.0], "dose": [2.0, 1.0]}), "b": path}, ledger=ledger)
    ledger.close()
    assert CELL not in (tmp_path / "ledger.jsonl").read_text(encoding="utf-8")
