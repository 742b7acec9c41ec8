"""Genotypes in a job file: `kind = "genotypes"` in [data], and the table [genotypes]: how they are prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, get_type_hints

from fedspan._files import make_private_folder
from fedspan.data.genotypes.genotype_files import ENDINGS
from fedspan.errors import InputError, suggest
from fedspan.estimators.field.genotype_results import LOADINGS, write_loadings, write_scores
from fedspan.estimators.field.prepare_genotypes import GenotypeOptions, PreparedGenotypes
from fedspan.estimators.pca import FederatedPCA

if TYPE_CHECKING:
    from pathlib import Path

    from fedspan.jobs.tasks import AnyModel

DATA_KINDS = ("table", "genotypes")
TASKS_OF_GENOTYPES = ("pca", "svd")
GENOTYPE_KEYS: dict[str, tuple[type, ...]] = {name: (kind,) for name, kind in get_type_hints(GenotypeOptions).items()}
SAYS_OF_GENOTYPES = {
    "maf": "the least frequency of a variant's rarer allele, over all sites",
    "missing": "the largest share of missing genotypes of a variant, over all sites",
    "prune": "window leaves out variants that are correlated with a neighbour; none keeps them",
    "window": "with prune: how many neighbours on each side are looked at",
    "r2": "with prune: the squared correlation above which one of two neighbours goes",
    "scale": "hwe divides by √(2p(1-p)), as plink2 --pca does; none leaves counts as they are",
    "differing": "what becomes of variants that differ between sites: refuse or drop",
    "autosomes": "whether only chromosomes 1 to 22 are used",
    "streaming": "whether files are read again for every product, rather than kept in memory: yes, no or auto",
}
_OWN_KEYS = ("clients", "kind")


def read_kind(
    task: str, data: Mapping[str, object], job: dict[str, object], tables: Mapping[str, object]
) -> GenotypeOptions | None:
    """What a job with genotypes asks for, or None if its clients have ordinary tables."""
    kind = data.get("kind", "table")
    if not isinstance(kind, str) or kind not in DATA_KINDS:
        raise InputError(
            f"data.kind must be one of {', '.join(DATA_KINDS)}, but is {kind!r}. {suggest(str(kind), DATA_KINDS)}"
        )
    given = tables.get("genotypes", {})
    if kind == "table":
        if "genotypes" in tables:
            raise InputError('[genotypes] needs data.kind = "genotypes"; add it, or leave [genotypes] out.')
        return None
    if task not in TASKS_OF_GENOTYPES:
        raise InputError(f'data.kind = "genotypes" is for tasks pca and svd, not for {task!r}.')
    if idle := [key for key in data if key not in _OWN_KEYS]:
        raise InputError(
            f"data.{idle[0]} is for tables, but the clients have genotypes; leave it out. What can be said of "
            "genotypes is in [genotypes]."
        )
    if "privacy" in tables:
        raise InputError(
            "Genotypes cannot be combined with [privacy], because variants and frequencies are agreed on exactly; "
            "leave [privacy] out. [secure] hides each site's own."
        )
    if job.get("scale"):
        raise InputError("Genotypes are divided by what genotypes.scale says; leave job.scale out.")
    if task == "pca":
        job.setdefault("center", False)  # frequencies over all sites have centred them already
    assert isinstance(given, dict)  # noqa: S101 - checked with the other tables
    try:
        return GenotypeOptions(**given)
    except InputError as error:
        raise InputError(f"[genotypes]: {error}") from None


def write_options(given: GenotypeOptions | None) -> dict[str, object]:
    """Give the keys of [genotypes] that say the same."""
    return {} if given is None else {field.name: vars(given)[field.name] for field in fields(given)}


def write_genotype_results(folder: Path, model: AnyModel, genotypes: PreparedGenotypes) -> None:
    """Write loadings, eigenvalues and every client's scores, in the forms of plink2 --pca."""
    if not isinstance(model, FederatedPCA):
        return
    make_private_folder(folder)
    write_loadings(folder / LOADINGS, model, genotypes)
    write_scores(folder, model, genotypes)


def describe_files() -> str:
    """For the template of a job file."""
    return f"# One file of genotypes per client ({' or '.join(ENDINGS)}), with its sister files beside it."
