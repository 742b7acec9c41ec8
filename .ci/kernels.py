"""Run the numerical tests once under every BLAS kernel that this processor offers, and print a table of the outcomes.

OpenBLAS takes its kernels from the variable OPENBLAS_CORETYPE, so one machine can stand for several. Where NumPy is not
built with OpenBLAS there is nothing to choose, and the table says so.

    python .ci/kernels.py [--workers 2] [FOLDER ...]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("numerics", "algorithms", "channel", "estimators", "privacy", "secure", "audit", "benchmarks")
KERNELS = {"Nehalem": {"sse4_2"}, "Sandybridge": {"avx"}, "Haswell": {"avx2", "fma"}, "SkylakeX": {"avx512f"}}
OLD = ("Nehalem", "Sandybridge")  # processors without AVX2: NumPy's own loops are held back, too
PROBE = """
import numpy
from threadpoolctl import threadpool_info
print(*{i.get("architecture", "?") for i in threadpool_info() if i["internal_api"] == "openblas"})
"""
LOOPS = "from numpy._core._multiarray_umath import __cpu_dispatch__; print(*__cpu_dispatch__)"


def processor_flags() -> set[str]:
    """What the processor can do, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith("flags") for flag in line.partition(":")[2].split()}


def environment(kernel: str) -> dict[str, str]:
    own = {"OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    if kernel in OLD:
        own["NPY_DISABLE_CPU_FEATURES"] = ask_python(LOOPS, dict(os.environ))
        own["PYTHONWARNINGS"] = "ignore::ImportWarning"  # NumPy tells what the processor does not have anyway
    return {**os.environ, **own}


def ask_python(code: str, env: dict[str, str]) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603


def architecture(kernel: str) -> str:
    """The kernels that OpenBLAS really takes if it is asked for these; empty if this is not OpenBLAS."""
    return ask_python(PROBE, environment(kernel))


def run_tests(kernel: str, folders: list[str], workers: int) -> dict[str, int]:
    """Counts of (tests, failures, errors, skipped) under one kernel; the failures are printed as pytest prints them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadgroup", "-m", "not long"]
        command += ["-p", "no:cacheprovider", "--no-header", "-rfE", f"--junitxml={report}", *folders]
        done = subprocess.run(  # noqa: S603
            command, cwd=ROOT, env=environment(kernel), capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(done.stdout[-20_000:], done.stderr[-2000:], sep="\n", flush=True)
        if not report.exists():
            return {"tests": 0, "failures": 0, "errors": 1, "skipped": 0}
        suite = next(ElementTree.parse(report).getroot().iter("testsuite"))  # noqa: S314 - pytest's own file
        return {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("folders", nargs="*", default=[f"tests/{name}" for name in FOLDERS])
    args = parser.parse_args()
    if not architecture("") or platform.machine() not in ("x86_64", "AMD64"):
        print(f"Not run: NumPy is not built with OpenBLAS for x86-64 here ({platform.machine()}).")
        return 0
    flags, rows, bad = processor_flags(), [], 0
    for kernel, needs in KERNELS.items():
        if not needs <= flags:
            rows.append(f"| {kernel} | not run: this processor has no {', '.join(sorted(needs - flags))} | | | |")
            continue
        if (taken := architecture(kernel)).lower() != kernel.lower():
            rows.append(f"| {kernel} | not run: this OpenBLAS takes {taken or 'none'} instead | | | |")
            continue
        started = time.monotonic()
        count = run_tests(kernel, args.folders, args.workers)
        failed = count["failures"] + count["errors"]
        passed = count["tests"] - failed - count["skipped"]
        bad += failed + (passed == 0)
        rows.append(f"| {kernel} | {passed} | {failed} | {count['skipped']} | {time.monotonic() - started:.0f} |")
        print(rows[-1], flush=True)
    print(f"\nThis processor's own choice is {architecture('')}.\n")
    print("| kernel | passed | failed | skipped | seconds |\n|---|--:|--:|--:|--:|", *rows, sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
