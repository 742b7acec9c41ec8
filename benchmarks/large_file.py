"""A file larger than memory at one client: `python benchmarks/large_file.py` (3 GB of temporary disk).

Writes a Parquet file (or, if they are named, feather and csv ones) of at least 2 GB of random float64, which does not
compress, with a few strong directions; runs `fedspan run` on it as one of two clients; and measures the peak memory of
that process (ru_maxrss, as the system counts it) and how far the answer is from an eigendecomposition of the streamed
Gram matrix. The table is put into docs/data.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
from scipy.linalg import subspace_angles

from fedspan import FederatedPCA
from page import put

FEATURES, STRONG, BATCH = 100, 3, 50_000
SMALL = np.random.default_rng(1).normal(size=(20, FEATURES))  # the other client
PAGE = Path(__file__).resolve().parent.parent / "docs" / "data.md"


def blocks(size: float) -> Iterator[np.ndarray]:
    """Rows of so many bytes in all, always the same ones."""
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(STRONG, FEATURES))
    for _ in range(int(np.ceil(size / (8 * FEATURES * BATCH)))):
        yield rng.normal(size=(BATCH, FEATURES)) + rng.normal(size=(BATCH, STRONG)) @ mix


def write(path: Path, size: float) -> np.ndarray:
    """The file, at least that large; and the leading directions of all rows, by other means."""
    names = [f"x{j}" for j in range(FEATURES)]
    schema = pa.schema([(name, pa.float64()) for name in names])
    n, total, gram = len(SMALL), SMALL.sum(axis=0), SMALL.T @ SMALL
    if path.suffix == ".parquet":
        file = pq.ParquetWriter(path, schema, use_dictionary=False)
    elif path.suffix == ".feather":
        file = pa.ipc.new_file(path, schema)
    else:
        file = pa.csv.CSVWriter(path, schema)
    with file:
        for X in blocks(size):
            file.write(pa.RecordBatch.from_arrays([pa.array(column) for column in X.T], schema=schema))
            n, total, gram = n + len(X), total + X.sum(axis=0), gram + X.T @ X
    return np.linalg.eigh(gram - np.outer(total, total) / n)[1][:, -STRONG:]


def measured(file: Path, solver: str, folder: Path) -> tuple[float, float, np.ndarray]:
    """Peak memory in MB and processor seconds of `fedspan run`, and the components that it found."""
    np.save(folder / "small.npy", SMALL)
    job = folder / "job.toml"
    job.write_text(
        f'[job]\ntask = "pca"\nn_components = {STRONG}\nsolver = "{solver}"\nrandom_state = 0\n\n'
        f'[data]\nclients = {{ large = "{file}", small = "{folder / "small.npy"}" }}\n'
    )
    out = folder / f"run-{file.suffix[1:]}-{solver}"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedspan.cli.main", "run", str(job), "--out", str(out)], stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"fedspan run ended with {process.returncode}"
    model = FederatedPCA.load(out / "model.safetensors")
    return used.ru_maxrss / 1024, used.ru_utime + used.ru_stime, model.components_


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kinds", nargs="*", default=["parquet"], help="of files (default: parquet)")
    parser.add_argument("--gigabytes", type=float, default=2.05, help="of float64 in each file (default: 2.05)")
    parser.add_argument("--keep-page", action="store_true", help="leave docs/data.md as it is")
    options = parser.parse_args()
    lines = [
        "| file | size on disk | solver | peak memory | processor seconds | angle to the exact answer |",
        "|---|---:|---|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory(prefix="fedspan-large-") as place:
        folder = Path(place)
        for kind in options.kinds:
            file = folder / f"large.{kind}"
            exact = write(
                file, options.gigabytes * 1e9 * (0.5 if kind == "csv" else 1.0)
            )  # as text it is twice as much
            for solver in ("gram", "krylov"):
                peak, seconds, components = measured(file, solver, folder)
                angle = float(subspace_angles(exact, components.T).max())
                size = file.stat().st_size / 1e9
                lines.append(f"| .{kind} | {size:.2f} GB | {solver} | {peak:.0f} MB | {seconds:.0f} | {angle:.1e} |")
                print(lines[-1], flush=True)
            file.unlink()
    if not options.keep_page:
        put(lines, PAGE, "large")


if __name__ == "__main__":
    main()
