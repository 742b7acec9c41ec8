"""How long a run on a federation takes to start and to end, and what a site's process for it needs.

    python benchmarks/startup.py [--warm] [--runs 3]

Three sites and the server on this machine. The load of the machine is printed with every line, because with other work
on it all of these times grow.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from fedspan.deployment.kit import init_site
from fedspan.deployment.local import LocalFederation
from fedspan.deployment.operations.warm_start import switch_warm

SITES = ["east", "north", "south"]
ROUNDS = 40
HEAD = (
    "| load before | until submitted | submitted → round 1 | last round → done | in all | site job, largest "
    "| shared pages divided | CPU |"
)
JOB = f"""[job]
task = "pca"
n_components = 4
solver = "ssi"
tol = 0.0
max_rounds = {ROUNDS}
random_state = 0
"""


def read_memory(pid: int) -> float:
    """Resident memory in MB; shared pages count whole."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) / 1e3 if found else 0.0


def read_own_memory(pid: int) -> float:
    """Proportional memory in MB: pages that several processes share are divided among them."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"Pss:\s+(\d+) kB", text)
    return int(found[1]) / 1e3 if found else 0.0


def read_cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Watch(threading.Thread):
    """The largest memory and CPU time of the processes for jobs at a site."""

    def __init__(self, made: LocalFederation, site: str, before: set[int]) -> None:
        super().__init__(daemon=True)
        self.made, self.site, self.before = made, site, before
        self.memory = self.own = self.cpu = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.25):
            for pid in set(self.made.pids(self.site)) - self.before:
                self.memory = max(self.memory, read_memory(pid))
                self.own = max(self.own, read_own_memory(pid))
                self.cpu = max(self.cpu, read_cpu(pid))


def measure(made: LocalFederation, folder: Path, number: int) -> str:
    """One run by the command line, as a researcher types it: a row of the table."""
    job = folder / "job.toml"
    job.write_text(JOB)
    load = os.getloadavg()[0]
    watch = Watch(made, "north", set(made.pids("north")))
    watch.start()
    words = [sys.executable, "-m", "fedspan.cli.main", "run", str(job), "--on", str(made.researcher)]
    words += ["--out", str(folder / f"run-{number}")]
    begun, marks = time.monotonic(), {}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            for mark in ("submitted", f"round {ROUNDS}/"):
                if line.startswith(mark):
                    marks[mark] = time.monotonic() - begun
            if line.startswith("round ") and "first" not in marks:
                marks["first"] = time.monotonic() - begun
    ended = time.monotonic() - begun
    watch.over.set()
    watch.join()
    if process.returncode:
        raise RuntimeError(f"the run ended with code {process.returncode}; see {made.folder}")
    last = marks.get(f"round {ROUNDS}/", ended)
    cells = [f"{load:.1f}", f"{marks['submitted']:.1f} s", f"{marks['first'] - marks['submitted']:.1f} s"]
    cells += [f"{ended - last:.1f} s", f"{ended:.1f} s", f"{watch.memory:.0f} MB", f"{watch.own:.0f} MB"]
    return f"| {' | '.join([*cells, f'{watch.cpu:.1f} s'])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", action="store_true", help="sites and server keep a warm process for jobs")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        made = LocalFederation(folder / "federation", SITES, **one_thread)
        for site in SITES:
            np.save(folder / f"{site}.npy", rng.normal(size=(200, 50)))
            table = {"path": str(folder / f"{site}.npy"), "features": 50, "rows": 200}
            init_site(made.kit(site), {"default": table}, replace=True)
        if given.warm:
            for name in ("localhost", *SITES):
                switch_warm(made.kit(name), on=True)
        print(HEAD)
        print("|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
        with made:
            for number in range(given.runs):
                print(measure(made, folder, number), flush=True)


if __name__ == "__main__":
    main()
