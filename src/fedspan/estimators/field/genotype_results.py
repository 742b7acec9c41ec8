"""What a PCA of genotypes is written as: loadings, scores and eigenvalues in the forms of plink2 --pca, and back.

Loadings are those of `.eigenvec.allele`: one line for each variant, weights of the counted allele; with its frequency
over all sites, so that new samples are projected from this file alone. Scores are those of `.eigenvec`: eigenvectors of
the relationship matrix, of length 1 over the samples of all sites; each site writes those of its own samples.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedspan._files import write_whole
from fedspan._types import Array
from fedspan.algorithms.field.variants import Variant, counts_first, digest_keys
from fedspan.data.genotypes.genotype_files import open_genotypes
from fedspan.data.genotypes.genotype_rows import SCALES, GenotypeRows
from fedspan.data.genotypes.genotype_survey import FileSurvey
from fedspan.data.sources import explain_file_errors
from fedspan.errors import InputError
from fedspan.estimators._bases.fitted_pca import FittedPCA
from fedspan.estimators.field.prepare_genotypes import PreparedGenotypes

LOADINGS = "model.eigenvec.allele"  # in the folder of a run
_HEAD = ("#CHROM", "POS", "ID", "REF", "ALT", "A1", "A1_FREQ")
_MARK = "##fedspan-scale="
_LENGTHS = "##fedspan-singular-values="


@dataclass(frozen=True)
class Loadings:
    """Weights of variants, read back: what it takes to project new samples."""

    variants: list[Variant]
    p: Array  # (d,)
    weights: Array  # (d, k)
    lengths: Array  # (k,) the singular values
    scale: str

    def project(self, source: object) -> Array:
        """Coordinates of the samples of a file, (n, k), on the scale of `.eigenvec` of the fitted samples."""
        file = open_genotypes(source)
        survey = FileSurvey(file)
        here = {variant.key for variant in file.variants}
        lost = [variant for variant in self.variants if variant.key not in here]
        if lost:
            raise InputError(
                f"The file lacks {len(lost):,} of the {len(self.variants):,} variants of the loadings, such as "
                f"{lost[0].describe()}. Variants are compared by position and alleles: use the same genome build, and "
                "the same strand."
            )
        chosen = survey.find(digest_keys(self.variants), counts_first(self.variants))
        rows = GenotypeRows(file, type(chosen)(chosen.at, chosen.swapped, self.p, self.scale), held=False)
        return rows.project(self.weights) / self.lengths


def write_loadings(path: str | os.PathLike[str], model: FittedPCA, genotypes: PreparedGenotypes) -> None:
    """Write the loadings of a fitted model, one variant a line."""
    W = np.asarray(model.components_, dtype=float).T
    if len(W) != len(genotypes.variants):
        raise InputError(f"The model has {len(W):,} features, but there are {len(genotypes.variants):,} variants.")
    text = io.StringIO()
    text.write(f"{_MARK}{genotypes.scale}\n")
    text.write(_LENGTHS + "\t".join(f"{value:.17g}" for value in model.singular_values_) + "\n")
    text.write("\t".join([*_HEAD, *(f"PC{j + 1}" for j in range(W.shape[1]))]) + "\n")
    for v, p, weights in zip(genotypes.variants, genotypes.frequencies, W, strict=True):
        cells = [v.chromosome, str(v.position), v.id, v.other, v.counted, v.counted, f"{p:.9g}"]
        text.write("\t".join([*cells, *(f"{weight:.9g}" for weight in weights)]) + "\n")
    write_whole(path, text.getvalue(), public=True)


def read_loadings(path: str | os.PathLike[str]) -> Loadings:
    """Read what `write_loadings` wrote."""
    path = Path(path)
    with explain_file_errors(path):
        lines = path.read_text(encoding="utf-8").splitlines()
    head = [line for line in lines[:2] if line.startswith((_MARK, _LENGTHS))]
    if len(head) != 2 or len(lines) < 4 or tuple(lines[2].split("\t")[: len(_HEAD)]) != _HEAD:
        raise InputError(f"{path} does not hold loadings that fedspan wrote.")
    scale = head[0].removeprefix(_MARK)
    try:
        lengths = np.array([float(cell) for cell in head[1].removeprefix(_LENGTHS).split("\t")])
        rows = [line.split("\t") for line in lines[3:]]
        variants = [Variant(cells[0], int(cells[1]), cells[2], cells[5], cells[3]) for cells in rows]
        numbers = np.array([[float(cell) for cell in cells[6:]] for cells in rows])
        if scale not in SCALES or numbers.shape[1] != len(lengths) + 1 or not np.isfinite(numbers).all():
            raise ValueError
    except (ValueError, IndexError):
        raise InputError(f"{path} holds loadings that are damaged. Write them anew.") from None
    return Loadings(variants, numbers[:, 0], numbers[:, 1:], lengths, scale)


def compute_scores(model: FittedPCA, genotypes: PreparedGenotypes) -> dict[str, Array]:
    """Each site's rows of the eigenvectors, (n_i, k): together they are orthonormal."""
    W, mean = np.asarray(model.components_, dtype=float).T, np.asarray(model.mean_, dtype=float)
    lengths = np.asarray(model.singular_values_, dtype=float)
    return {name: (source.rows.project(W) - mean @ W) / lengths for name, source in genotypes.items()}


def write_eigenvec(path: str | os.PathLike[str], samples: Sequence[tuple[str, str]], scores: Array) -> None:
    """Write the scores of samples as plink does. The file is private to whoever writes it."""
    lines = ["\t".join(["#FID", "IID", *(f"PC{j + 1}" for j in range(scores.shape[1]))])]
    for (family, individual), row in zip(samples, scores, strict=True):
        lines.append("\t".join([family, individual, *(f"{value:.9g}" for value in row)]))
    write_whole(path, "\n".join(lines) + "\n")


def write_scores(folder: str | os.PathLike[str], model: FittedPCA, genotypes: PreparedGenotypes) -> list[Path]:
    """Write NAME.eigenvec for each site, and model.eigenval. A site's file is private to whoever writes it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, scores in compute_scores(model, genotypes).items():
        path = folder / f"{name}.eigenvec"
        write_eigenvec(path, genotypes[name].samples, scores)
        written.append(path)
    values = np.asarray(model.singular_values_, dtype=float) ** 2 / len(genotypes.variants)
    write_whole(folder / "model.eigenval", "".join(f"{value:.9g}\n" for value in values), public=True)
    return [*written, folder / "model.eigenval"]
