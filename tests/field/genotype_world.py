"""Small files of genotypes, written by the libraries of the field, and what a dense computation says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Site(NamedTuple):
    """What a file holds: genotypes (samples × variants, -1 missing) and its variants."""

    G: Array
    chromosomes: list[str]
    positions: list[int]
    ids: list[str]
    a1: list[str]
    a2: list[str]

    def take(self, at: Sequence[int] | Array) -> Site:
        return Site(self.G[:, at], *([column[j] for j in at] for column in self[1:]))

    def swap(self, at: Sequence[int]) -> Site:
        """Count the other allele of some variants."""
        G, a1, a2 = self.G.copy(), list(self.a1), list(self.a2)
        for j in at:
            G[:, j] = np.where(G[:, j] < 0, -1, 2 - G[:, j])
            a1[j], a2[j] = a2[j], a1[j]
        return self._replace(G=G, a1=a1, a2=a2)


def draw_sites(sizes: Sequence[int] = (40, 30, 50), d: int = 120, seed: int = 0, missing: float = 0.02) -> list[Site]:
    """Balding-Nichols: three populations with frequencies around common ones, mixed differently at each site."""
    rng = np.random.default_rng(seed)
    p0, f = rng.uniform(0.1, 0.9, d), 0.1
    P = rng.beta(p0 * (1 - f) / f, (1 - p0) * (1 - f) / f, size=(3, d)).clip(0.02, 0.98)
    alleles = [("A", "C"), ("G", "T"), ("C", "A"), ("A", "G")]
    sites = []
    for n in sizes:
        Q = P[rng.choice(3, n, p=rng.dirichlet(np.ones(3)))]
        G = rng.binomial(2, Q).astype(np.int8)
        G[rng.random(G.shape) < missing] = -1
        sites.append(
            Site(
                G,
                [str(1 + j * 3 // d) for j in range(d)],
                [100 + 10 * j for j in range(d)],
                [f"rs{j}" for j in range(d)],
                [alleles[j % 4][0] for j in range(d)],
                [alleles[j % 4][1] for j in range(d)],
            )
        )
    return sites


def write_bed(path: Path, site: Site) -> Path:
    from bed_reader import to_bed

    n = len(site.G)
    properties = {
        "fid": [f"f{i}" for i in range(n)],
        "iid": [f"{path.stem}{i}" for i in range(n)],
        "sid": site.ids,
        "chromosome": site.chromosomes,
        "bp_position": site.positions,
        "allele_1": site.a1,
        "allele_2": site.a2,
    }
    to_bed(path, np.where(site.G < 0, -127, site.G).astype(np.int8), properties=properties)
    return path


def write_pgen(path: Path, site: Site) -> Path:
    from pgenlib import PgenWriter

    n, d = site.G.shape
    writer = PgenWriter(bytes(path), n, variant_ct=d, nonref_flags=False)
    for j in range(d):
        writer.append_biallelic(np.where(site.G[:, j] < 0, -9, site.G[:, j]).astype(np.int8))
    writer.close()
    lines = ["##fileformat=VCFv4.2", "#CHROM\tPOS\tID\tREF\tALT"]
    places = zip(site.chromosomes, site.positions, site.ids, site.a2, site.a1, strict=True)
    lines += [f"chr{chromosome}\t{at}\t{id}\t{ref}\t{alt}" for chromosome, at, id, ref, alt in places]
    path.with_suffix(".pvar").write_text("\n".join(lines) + "\n")
    people = [f"{path.stem}{i}\tNA" for i in range(n)]
    path.with_suffix(".psam").write_text("\n".join(["#IID\tSEX", *people]) + "\n")
    return path


def write_sites(folder: Path, sites: Sequence[Site]) -> dict[str, Path]:
    return {name: write_bed(folder / f"{name}.bed", site) for name, site in zip("abcdef", sites, strict=False)}


def pooled_frequencies(sites: Sequence[Site]) -> tuple[Array, Array]:
    """Allele frequencies and call rates over all samples."""
    G = np.concatenate([site.G for site in sites]).astype(float)
    known = G >= 0
    return np.where(known, G, 0).sum(axis=0) / known.sum(axis=0) / 2, known.mean(axis=0)


def standardise(sites: Sequence[Site], keep: Array | slice = slice(None)) -> Array:
    """All samples as plink2 --pca sees them: (g - 2p)/√(2p(1-p)), zero where missing."""
    p, _ = pooled_frequencies(sites)
    G = np.concatenate([site.G for site in sites]).astype(float)
    A = np.where(G < 0, 0.0, (G - 2 * p) / np.sqrt(2 * p * (1 - p)))
    return A[:, keep]


def read_eigenvec(path: Path) -> tuple[list[str], Array]:
    rows: list[list[str]] = [line.split() for line in path.read_text().splitlines()]
    at = rows[0].index("PC1")
    return [row[rows[0].index("IID") if "IID" in rows[0] else 0] for row in rows[1:]], np.array(
        [[float(cell) for cell in row[at:]] for row in rows[1:]]
    )


Sites = Mapping[str, Path]
