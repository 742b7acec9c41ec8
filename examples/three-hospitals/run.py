"""Three hospitals, one federation: PCA with secure sums on real data, the server killed in the middle, and resumed.

    python examples/three-hospitals/run.py [--out DIR]

A server and three sites run on this machine as separate processes, with the kits, certificates and mutual TLS that they
would have on four machines. It takes about two minutes, and ends every process that it starts, also on Ctrl-C.
Needs: pip install '.[flare,data,privacy]'
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # bits agree only for the same number of threads

import numpy as np
import pyarrow
import pyarrow.parquet
from sklearn.datasets import load_breast_cancer

from fedspan import FederatedPCA
from fedspan.core.ledger import Ledger
from fedspan.deployment.local import LocalFederation

HOSPITALS = {"east": 89, "north": 300, "south": 180}  # rows
JOB = """[job]
task = "pca"
n_components = 4
scale = true
solver = "ssi"     # many short rounds, so that there is time to pull the plug
tol = 0.0
max_rounds = 150
random_state = 7
"""
KILL_AFTER = 20  # rounds
STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.1f} s] {text}", flush=True)


def fedspan(*words: str | Path) -> subprocess.Popen[str]:
    """Start a command of fedspan, and show it as a user would type it."""
    shown = " ".join(str(word).replace(f"{Path.cwd()}/", "") for word in words)
    print(f"          $ fedspan {shown}", flush=True)
    command = [sys.executable, "-m", "fedspan.cli.main", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def show_output(process: subprocess.Popen[str]) -> int:
    """Show what a command prints as it comes, and return its exit code."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            print(f"          {line.rstrip()}", flush=True)
        return process.wait()
    finally:
        process.kill()


def run_or_exit(process: subprocess.Popen[str]) -> None:
    """Show what a command prints, and end with its exit code if it fails."""
    if code := show_output(process):
        sys.exit(code)


def write_tables(folder: Path) -> dict[str, Path]:
    """Write each hospital's rows to a Parquet file of its own, with the names of the columns."""
    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    order, start, paths = np.random.default_rng(0).permutation(len(data.data)), 0, {}
    for hospital, rows in HOSPITALS.items():
        own = data.data[order[start : start + rows]]
        paths[hospital] = folder / f"{hospital}.parquet"
        pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, own.T, strict=True))), paths[hospital])
        start += rows
    return paths


def count_rounds(server_kit: Path) -> int:
    """Count the rounds that are done, by the server's own ledger."""
    ledgers = list((server_kit / "fedspan" / "runs").glob("*/ledger.jsonl"))
    return Ledger.read(ledgers[0]).rounds if ledgers else 0


def kill_in_a_round(federation: LocalFederation) -> None:
    """Wait until some rounds are done, then kill -9 the server's process for the job."""
    while (done := count_rounds(federation.kit("localhost"))) < KILL_AFTER:
        time.sleep(0.05)
    say(f"Round {done} is done. Now kill -9 of the server's process for this job, in the middle of a round.")
    federation.kill("localhost", job_only=True)


def check_same_bits(one: FederatedPCA, other: FederatedPCA) -> None:
    """Compare every number of the two models; end with exit code 1 if one differs."""
    for name in ("components_", "explained_variance_", "singular_values_", "mean_", "scale_"):
        a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        if a.tobytes() != b.tobytes():
            sys.exit(f"{name} differs by {np.abs(a - b).max():.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("three-hospitals-run"), help="a new or empty folder")
    out: Path = parser.parse_args().out.resolve()
    if out.exists() and any(out.iterdir()):
        sys.exit(f"{out} is not empty; choose a new or empty folder with --out.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    out.mkdir(parents=True, exist_ok=True)

    tables = write_tables(out)
    say(f"Three hospitals hold {', '.join(f'{rows} ({name})' for name, rows in HOSPITALS.items())} rows of 30 columns.")
    federation = LocalFederation(out / "federation", list(tables))
    say("The coordinator has created the kits: keys and certificates for a server, three sites and a researcher.")
    for hospital, path in tables.items():
        run_or_exit(fedspan("site", "init", federation.kit(hospital), "--data", path, "--all-columns"))
    say("Each hospital has said which columns jobs may use, and that it accepts secure sums only.")

    job, place = out / "job.toml", out / "run"
    job.write_text(JOB)
    with federation:
        pids = ", ".join(f"{name} {process.pid}" for name, process in federation.processes.items())
        say(f"The server and the sites are running and connected over mutual TLS (processes: {pids}).")
        Thread(target=kill_in_a_round, args=[federation], daemon=True).start()
        code = show_output(fedspan("run", job, "--on", federation.researcher, "--out", place))
        if code != 1:
            sys.exit("The run was not cut off: the kill came too late, or something else went wrong.")
        say("The researcher's command ended with exit code 1. Resume: the run continues after its last complete round.")
        run_or_exit(fedspan("resume", place))
    say("The run is complete, and the processes of the federation are stopped.")

    files = ", ".join(f'{name} = "{path}"' for name, path in tables.items())
    alone = out / "in-process.toml"
    alone.write_text(JOB + f"[secure]\nenabled = true\n[data]\nclients = {{ {files} }}\n")
    say("For comparison: the same job in one process, undisturbed.")
    run_or_exit(fedspan("run", alone, "--out", out / "in-process"))
    model = FederatedPCA.load(place / "model.safetensors")
    check_same_bits(model, FederatedPCA.load(out / "in-process" / "model.safetensors"))
    say("The model of the federation, killed and resumed, equals it to the bit.")
    print(f"explained variance, first four components: {np.round(model.explained_variance_ratio_, 4)}")
    print(f"report: {place / 'report.html'}")


if __name__ == "__main__":
    main()
