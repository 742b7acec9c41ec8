"""`fedspan project`: coordinates of new samples in the components of a run, where the samples are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspan._foreign import printable
from fedspan.data.genotypes.genotype_files import open_genotypes
from fedspan.errors import InputError
from fedspan.estimators.field.genotype_results import LOADINGS, read_loadings, write_eigenvec
from fedspan.jobs.folder import RunFolder


def project_command(
    loadings: Annotated[
        Path,
        typer.Argument(metavar="LOADINGS", help="The run folder, or its model.eigenvec.allele.", show_default=False),
    ],
    samples: Annotated[
        Path, typer.Argument(metavar="FILE", help="A .bed or .pgen file of new samples.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(help="A new file; default: FILE with the ending .eigenvec.", show_default=False)
    ] = None,
) -> None:
    """Project new samples on the components of a run with genotypes, and write them as plink's .eigenvec.

    Nothing is sent: the loadings are all that it takes.
    """
    place = out if out is not None else samples.with_suffix(".eigenvec")
    if place.exists():
        raise InputError(f"{place} already exists; choose another --out.")
    found = read_loadings(RunFolder.find(loadings).genotypes / LOADINGS if loadings.is_dir() else loadings)
    file = open_genotypes(samples)
    write_eigenvec(place, file.samples, found.project(file))
    typer.echo(f"wrote {printable(str(place))}: {len(file.samples):,} samples")
