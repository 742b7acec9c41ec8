"""`fedspan new`: a job file to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedspan.jobs.template import write_new


def new_command(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="One of pca, svd, gcca, deep-gcca, personalized, classifier, vertical-classifier, regressor, "
            "vertical-regressor, vertical-pca or vertical-svd.",
            show_default=False,
        ),
    ],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="The file to write; default: TASK.toml.", show_default=False),
    ] = None,
    kind: Annotated[
        str, typer.Option(metavar="table|genotypes", help="What the clients have; default: table.", show_default=False)
    ] = "table",
) -> None:
    """Write a commented job file to start from. An existing file is not overwritten."""
    place = write_new(task, path, kind)
    typer.echo(f"wrote {place}: name your files in it, then: fedspan run {shlex.quote(str(place))}")
