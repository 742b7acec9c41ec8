"""`fedspan schema`: what editors check job files by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspan.jobs.schema import text, write_schema


def schema_command(
    out: Annotated[Path | None, typer.Option(help="The file to write; default: print it.")] = None,
) -> None:
    """The JSON schema of job files, for editors. Beside a job.schema.json, `fedspan new` refers to it."""
    if out is None:
        typer.echo(text(), nl=False)
    else:
        write_schema(out)
        typer.echo(f"wrote {out}")
