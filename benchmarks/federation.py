"""A real federation on this machine (processes, mutual TLS), measured: `python benchmarks/federation.py [--write]`.

1. three sites: a round of our protocol over a bare `collab` call with the same payload, 80 kB and 8 MB each way;
2. the same sites: Krylov PCA of the FAPS Table 4 problem, start-up apart, over the same in one process;
3. with `--sites 20` instead: 50 rounds with secure sums on that many sites, memory and latency.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import numpy as np

from bare_calls import ROWS, K
from fedspan import FederatedPCA
from fedspan.algorithms import Ssi
from fedspan.core.ledger import Ledger, RoundEnd
from fedspan.deployment import flare_admin
from fedspan.deployment.approval.signed_order import sign_order
from fedspan.deployment.flare_job import write_job
from fedspan.deployment.kit import init_site
from fedspan.deployment.local import LocalFederation
from fedspan.deployment.server_job import RunRequest
from fedspan.engines.start import plain_fields
from page import put
from solvers import table4

PAYLOADS = [("80kB", 1_000, 24, 6), ("8MB", 100_000, 10, 3)]  # table, features, blocks, rounds of a block
KRYLOV: dict[str, Any] = {
    "n_components": 10, "solver": "krylov", "center": False, "tol": 1e-6, "random_state": 0
}  # fmt: skip
PAGE = Path(__file__).resolve().parents[1] / "docs" / "federation.md"
PATIENCE = 900.0  # seconds


def federation(folder: Path, tables: dict[str, dict[str, np.ndarray]]) -> LocalFederation:
    """Sites with those tables, which accept runs without secure sums too, for the comparison."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    made = LocalFederation(folder, list(tables), PYTHONPATH=path)
    for site, own in tables.items():
        files = {}
        for name, rows in own.items():
            np.save(folder / f"{site}-{name}.npy", rows)
            keys = {"features": rows.shape[1], "rows": len(rows)}
            files[name] = {"path": str(folder / f"{site}-{name}.npy"), **keys}
        init_site(made.kit(site), files, replace=False, secure=False)
    for kit in (made.kit("localhost"), *map(made.kit, made.sites)):
        file = kit / "local" / "resources.json"
        resources = json.loads(file.read_text())
        resources["class_allow_list"] += ["bare_calls.BenchServer", "bare_calls.BenchClient"]
        file.write_text(json.dumps(resources))
    return made


def started(made: LocalFederation) -> float:
    """Start all processes; how long until all sites are connected."""
    begun = time.perf_counter()
    for name in ("localhost", *made.sites):
        made.start(name)
    made.wait_for(made.sites, PATIENCE)
    return time.perf_counter() - begun


def submit_bench(session: Any, order: RunRequest, made: LocalFederation) -> str:
    """A job that names the benchmark's own classes."""
    with tempfile.TemporaryDirectory() as folder:
        signed = sign_order(made.researcher, [order], made.sites).to_json()
        path = write_job(Path(folder) / "job", "bench", [order], made.sites, signed)
        for file in (path / "app" / "config").iterdir():
            text = file.read_text().replace("fedspan.deployment.flare.FlareClient", "bare_calls.BenchClient")
            text = text.replace("fedspan.deployment.operations.flare_server.FlareServer", "bare_calls.BenchServer")
            file.write_text(json.dumps({**json.loads(text), "np_download_chunk_size": 0}))  # arrays inline
        return str(session.submit_job(str(path)))


def ended(session: Any, job: str, made: LocalFederation) -> int:
    """Wait for the end of a job; the largest memory that all processes had together, in bytes (resident)."""
    most, end = 0, time.monotonic() + PATIENCE
    while not (state := flare_admin.read_status(session, job)).startswith("FINISHED"):
        most = max(most, sum(map(resident, (pid for name in made.processes for pid in made.pids(name)))))
        if time.monotonic() > end:
            raise TimeoutError(f"job {job} is {state}")
        time.sleep(1.0)
    if state != "FINISHED:COMPLETED":
        raise RuntimeError(f"job {job} ended as {state}; see {made.folder}")
    return most


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def load() -> str:
    return f"{os.getloadavg()[0]:.0f}"


def calls(session: Any, made: LocalFederation) -> list[str]:
    """Our rounds and bare calls, in turns."""
    order = RunRequest(secrets.token_hex(16), algorithm="Ssi", parameters={"payloads": PAYLOADS})
    before = load()
    ended(session, submit_bench(session, order, made), made)
    found = json.loads((made.kit("localhost") / "fedspan" / "timings.json").read_text())
    head = (
        "| each way | bare call, bytes | bare call, array | our round | over the quicker bare one | with secure sums |"
    )
    lines = [f"Load average of the machine (2 cores): {before} before, {load()} after. Medians.", "", head]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for table, features, _, _ in PAYLOADS:
        times = {kind: statistics.median(seconds) for kind, seconds in found[table].items()}
        ours, secure = times["ours"] - times["product"], times["secure"] - times["product"]
        cells = [f"{1e3 * seconds:.0f} ms" for seconds in (times["bytes"], times["array"], ours)]
        cells += [f"{ours / min(times['bytes'], times['array']):.2f}", f"{1e3 * secure:.0f} ms"]
        lines.append(f"| {8 * K * features / 1e6:g} MB | {' | '.join(cells)} |")
    return lines


def krylov(session: Any, made: LocalFederation, clients: dict[str, np.ndarray]) -> list[str]:
    """Table 4 on the federation and in one process; the models must agree to the bit."""
    lines = [
        "| FAPS Table 4, krylov, k = 10 | rounds | in one process | on the federation | ratio |",
        "|---|--:|--:|--:|--:|",
    ]
    for secure in (False, True):
        order = RunRequest(
            secrets.token_hex(16), "FederatedPCA", KRYLOV, table={"name": "table4"}, secure={"enabled": secure}
        )  # fmt: skip
        begun = time.perf_counter()
        job = flare_admin.submit(session, made.researcher, [order], made.sites)
        ended(session, job, made)
        place = made.folder / order.run
        place.mkdir()
        flare_admin.check_settled(flare_admin.fetch(session, job, order.run, place))
        whole, ledger = time.perf_counter() - begun, Ledger.read(place / "ledger.jsonl")
        alone = FederatedPCA(**KRYLOV, secure=secure).fit(clients)
        model = FederatedPCA.load(place / "model.safetensors")
        assert model.components_.tobytes() == alone.components_.tobytes()
        name = f"{'secure' if secure else 'plain'} sums ({whole:.0f} s from submitting to the model in hand)"
        here, there = alone.ledger_.seconds, ledger.seconds
        lines.append(f"| {name} | {ledger.rounds} | {here:.2f} s | {there:.2f} s | {there / here:.1f} |")
    return lines


def three(folder: Path, write: bool, calls_only: bool) -> None:
    rng, clients = np.random.default_rng(2), {site: np.ones((2, 2)) for site in ("east", "north", "south")}
    if not calls_only:
        parts = table4(0).clients
        shares = {"east": parts[:4], "north": parts[4:6], "south": parts[6:]}  # 10000, 11000 and 15000 rows
        clients = {site: np.vstack(share) for site, share in shares.items()}
    payloads = {site: {name: rng.normal(size=(ROWS, d)) for name, d, _, _ in PAYLOADS} for site in clients}
    made = federation(folder, {site: {**payloads[site], "table4": rows} for site, rows in clients.items()})
    try:
        print(f"three sites are connected after {started(made):.0f} s", flush=True)
        with flare_admin.connect(made.researcher) as session:
            tell(calls(session, made), "calls", write)
            if not calls_only:
                tell(krylov(session, made, clients), "krylov", write)
    finally:
        made.stop()


def many(folder: Path, sites: int, write: bool) -> None:
    rng = np.random.default_rng(3)
    names = [f"site-{number:02d}" for number in range(1, sites + 1)]
    made = federation(folder, {name: {"default": rng.normal(size=(50, 1000))} for name in names})
    fields = plain_fields(Ssi(k=K, tol=0.0, center=True, scale=False))
    order = RunRequest(secrets.token_hex(16), algorithm="Ssi", fields=fields, rounds=50)
    try:
        connected = started(made)
        print(f"{sites} sites are connected after {connected:.0f} s", flush=True)
        with flare_admin.connect(made.researcher) as session:
            begun = time.perf_counter()
            job = flare_admin.submit(session, made.researcher, [order], made.sites)
            memory = ended(session, job, made)
            place = made.folder / order.run
            place.mkdir()
            flare_admin.check_settled(flare_admin.fetch(session, job, order.run, place))
            whole = time.perf_counter() - begun
    finally:
        made.stop()
    rounds = [event.seconds for event in Ledger.read(place / "ledger.jsonl").events if isinstance(event, RoundEnd)][1:]
    assert len(rounds) == 50
    lines = [
        "| sites | rounds | median round | slowest | from submitting to the model | memory, all processes | per site |",
        "|--:|--:|--:|--:|--:|--:|--:|",
        f"| {sites} | {len(rounds)} | {1e3 * statistics.median(rounds):.0f} ms | {1e3 * max(rounds):.0f} ms "
        f"| {whole:.0f} s | {memory / 1e9:.1f} GB | {memory / 1e6 / (sites + 1):.0f} MB |",
        "",
        f"Load average of the machine (2 cores): {load()}.",
    ]
    tell(lines, "many", write)


def tell(lines: list[str], mark: str, write: bool) -> None:
    print("\n".join(lines), flush=True)
    if write:
        put(lines, PAGE, mark)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, help="instead: 50 rounds on that many sites")
    parser.add_argument("--calls", action="store_true", help="the first table only")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/federation.md")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # and stop all processes
    with tempfile.TemporaryDirectory(prefix="fedspan-federation-") as folder:
        if args.sites:
            many(Path(folder), args.sites, args.write)
        else:
            three(Path(folder), args.write, args.calls)


if __name__ == "__main__":
    main()
