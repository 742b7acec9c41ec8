"""Files of the field for the benchmarks: genotypes of three populations at several sites, as PLINK 1 files.

Balding-Nichols: frequencies of each population around common ones (F_st), populations mixed differently at each site,
and a share of genotypes that is missing. Genotypes are packed as PLINK 1 packs them, two bits each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

_CODES = np.array([0b11, 0b10, 0b00, 0b01], dtype=np.uint8)  # copies of A1: 0, 1, 2, and missing (-1 is the last)


def write_bed(path: Path, slabs: Sequence[np.ndarray], people: Sequence[str]) -> None:
    """A .bed file with its .bim and .fam; each slab is (variants, samples), int8, -1 missing."""
    d = 0
    with path.open("wb") as file:
        file.write(b"\x6c\x1b\x01")
        for slab in slabs:
            codes = _CODES[slab]
            wide = np.zeros((len(slab), -(-codes.shape[1] // 4) * 4), dtype=np.uint8)
            wide[:, : codes.shape[1]] = codes
            four = wide.reshape(len(slab), -1, 4)
            file.write((four[..., 0] | four[..., 1] << 2 | four[..., 2] << 4 | four[..., 3] << 6).tobytes())
            d += len(slab)
    lines = (f"{1 + j * 22 // d}\trs{j}\t0\t{1000 + 10 * j}\tA\tC\n" for j in range(d))
    path.with_suffix(".bim").write_text("".join(lines), encoding="ascii")
    path.with_suffix(".fam").write_text("".join(f"{p} {p} 0 0 0 -9\n" for p in people), encoding="ascii")


def write_genotypes(
    folder: Path, sites: int, samples: int, variants: int, missing: float, seed: int = 0, populations: int = 12
) -> tuple[dict[str, Path], Path]:
    """The sites' files, and one with all of their samples."""
    rng = np.random.default_rng(seed)
    tree = rng.uniform(0.02, 0.12, populations)  # F_st of each population
    mixes = rng.dirichlet(np.ones(populations), size=sites)
    of = [rng.choice(populations, samples, p=mix) for mix in mixes]
    parts: list[list[np.ndarray]] = [[] for _ in range(sites)]
    for start in range(0, variants, 5000):
        d = min(5000, variants - start)
        p0 = rng.uniform(0.05, 0.95, d)
        f = tree[:, None]
        P = rng.beta(p0 * (1 - f) / f, (1 - p0) * (1 - f) / f).clip(0.005, 0.995).astype(np.float32)
        for at in range(sites):
            Q = P[of[at]].T
            G = (rng.random(Q.shape, dtype=np.float32) < Q).astype(np.int8)
            G += rng.random(Q.shape, dtype=np.float32) < Q
            G[rng.random(Q.shape, dtype=np.float32) < missing] = -1
            parts[at].append(G)
    files, people = {}, []
    for at in range(sites):
        own = [f"s{at}p{i}" for i in range(samples)]
        people += own
        files[f"site{at}"] = folder / f"site{at}.bed"
        write_bed(files[f"site{at}"], parts[at], own)
    pooled = folder / "all.bed"
    write_bed(pooled, [np.concatenate(each, axis=1) for each in zip(*parts, strict=True)], people)
    return files, pooled
