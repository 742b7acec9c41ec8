"""The peers' own Python: made once from the requirement files here, outside the repository; one process per method.

It is in FEDSPAN_PEERS, or in fedspan-peers in the user's cache folder. fedspan runs there too, from this checkout, so
that both sides have the same numpy and the same BLAS. `call` runs one entry of a benchmark's METHODS on arrays and
gives its processor seconds on one BLAS thread (other work on the machine does not count), its peak of resident memory
above that of the process with the data in it, and what the benchmark's `judge` says of the answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedspan._files import write_whole
from harness import SkippedError

HERE = Path(__file__).resolve().parent
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def python(requirements: str = "requirements.txt") -> Path:
    """The interpreter of an environment with exactly these requirements, made if it is not there yet."""
    cache = Path(os.environ.get("FEDSPAN_PEERS", Path.home() / ".cache" / "fedspan-peers"))
    folder, wanted = cache / Path(requirements).stem, (HERE / requirements).read_text(encoding="utf-8")
    program, made = folder / "bin" / "python", folder / "made.txt"
    if made.is_file() and made.read_text(encoding="utf-8") == wanted:
        return program
    print(f"installing the peers of {requirements}", flush=True)
    try:
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(program), "-m", "pip", "install", "--quiet", "-r", str(HERE / requirements)]
        subprocess.run(pip, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        raise SkippedError(f"the peers cannot be installed here: {last(error.stderr or '')}") from error
    except OSError as error:
        raise SkippedError(f"the peers' environment cannot be made here: {error}") from error
    write_whole(made, wanted)
    return program


def versions(*names: str, requirements: str = "requirements.txt") -> str:
    pinned = dict(
        line.split("==") for line in (HERE / requirements).read_text(encoding="utf-8").splitlines() if "==" in line
    )
    return ", ".join(f"{name} {pinned[name]}" for name in names)


def last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def call(
    benchmark: str, method: str, arrays: Sequence[np.ndarray], requirements: str = "requirements.txt"
) -> dict[str, Any]:
    """One method in a process of its own."""
    program = python(requirements)
    path = os.pathsep.join(map(str, (HERE.parents[1] / "src", HERE.parent)))
    with tempfile.TemporaryDirectory() as folder:
        for i, array in enumerate(arrays):
            np.save(Path(folder) / f"{i:03d}.npy", array)
        command = [str(program), "-W", "ignore", str(HERE / "environment.py"), benchmark, method, folder]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **ONE_THREAD, "PYTHONPATH": path}
        )
    if done.returncode:
        raise SkippedError(f"{method} fails: {last(done.stderr).partition(' (/')[0]}")
    found = dict(json.loads(done.stdout.splitlines()[-1]))
    print(method, {k: v for k, v in found.items() if isinstance(v, float)}, flush=True)
    return found


def least(benchmark: str, methods: Sequence[str], arrays: Sequence[np.ndarray], times: int) -> dict[str, Any]:
    """All methods in turn, several times; of each the least seconds and memory, or the reason why it has none."""
    found: dict[str, Any] = {}
    for _ in range(times):
        for method in methods:
            if isinstance(found.get(method), str):
                continue
            try:
                new = call(benchmark, method, arrays)
            except SkippedError as error:
                found[method] = str(error)
                continue
            old = found.setdefault(method, new)
            found[method] = {**new, **{key: min(old[key], new[key]) for key in ("seconds", "megabytes")}}
    return found


def memory(field: str) -> float:
    """VmRSS (now) or VmHWM (the peak), MB. getrusage would count what the parent had before this program started."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def child(benchmark: str, method: str, folder: str) -> Mapping[str, Any]:
    module = import_module(benchmark)
    arrays = [np.load(path) for path in sorted(Path(folder).glob("*.npy"))]
    work = module.METHODS[method]
    work(module.small(arrays))  # loads what is imported late, and the BLAS
    before, started = memory("VmRSS"), time.process_time()
    answer = work(arrays)
    cost = {"seconds": time.process_time() - started, "megabytes": max(0.1, memory("VmHWM") - before)}
    return {**cost, **module.judge(arrays, answer)}


if __name__ == "__main__":
    print(json.dumps(child(*sys.argv[1:])))
