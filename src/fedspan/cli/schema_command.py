"""`fedspan schema`: the schema with which editors check job files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspan.jobs.schema import text, write_schema


def schema_command(
    out: Annotated[Path | None, typer.Option(help="The file to write; default: print it.")] = None,
) -> None:
    """Print or write the JSON schema of job files, with which editors complete and check them.

    Job files that `fedspan new` writes beside a file job.schema.json refer to it.
    """
    if out is None:
        typer.echo(text(), nl=False)
    else:
        write_schema(out)
        typer.echo(f"wrote {out}")
