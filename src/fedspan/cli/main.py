"""`fedspan`: the table of its commands, and what becomes of their errors.

A command's module is imported when the command is called, so that `fedspan --help` does not wait for scipy.
"""

from __future__ import annotations

import traceback
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from fedspan._version import __version__
from fedspan.errors import FedspanError, InputError


class CommandEntry(NamedTuple):
    """Where a command is (a function, or a Typer with commands of its own), and what the list says of it."""

    module: str
    name: str
    help: str


COMMANDS = {
    "demo": CommandEntry(
        "fedspan.cli.demo", "demo_command", "Federated PCA of real data, against the pooled answer; ends in a report."
    ),
    "new": CommandEntry(
        "fedspan.cli.new_command",
        "new_command",
        "Write a commented job file to start from. A file that is there already is not overwritten.",
    ),
    "schema": CommandEntry(
        "fedspan.cli.schema_command",
        "schema_command",
        "The JSON schema of job files, for editors. Beside a job.schema.json, `fedspan new` refers to it.",
    ),
    "run": CommandEntry(
        "fedspan.cli.run_command",
        "run_command",
        "Run a job file (`fedspan new` writes one); leaves a run folder with model, ledger, checkpoint and report.",
    ),
    "resume": CommandEntry(
        "fedspan.cli.resume_command",
        "resume_command",
        "Go on with a run that was cut off, from its last complete round.",
    ),
    "report": CommandEntry(
        "fedspan.cli.report_command", "report_command", "Write report.html anew from what is in a run folder."
    ),
    "audit": CommandEntry(
        "fedspan.cli.audit_command",
        "audit_command",
        "What left each client in a run, and what the server could work out from it; writes audit.html.",
    ),
    "export": CommandEntry(
        "fedspan.cli.export_command",
        "export_command",
        "Write a run's model as a fitted scikit-learn estimator (skops) or an ONNX graph; needs no fedspan to be used.",
    ),
    "bench": CommandEntry(
        "fedspan.cli.bench_command",
        "bench_command",
        "The papers' tables and figures, and peers, beside ours: list them, run them, write the scoreboard.",
    ),
    "doctor": CommandEntry(
        "fedspan.cli.doctor",
        "doctor_command",
        "Versions, BLAS, threads, what is installed, what is not and why it matters.",
    ),
    "federation": CommandEntry(
        "fedspan.cli.federation_commands",
        "federation",
        "Set up a federation: its project file, and the kits to hand out.",
    ),
    "site": CommandEntry(
        "fedspan.cli.site_commands", "site", "A site's part in a federation: what jobs may do here; start it."
    ),
}


class LazyCommands(TyperGroup):
    """The commands of the table. What is listed has a name and a help text; it is loaded when it is called.

    Errors end here: one sentence on stderr, and exit code 2 for wrong input, 1 for what failed.
    """

    def __init__(self, **options: Any) -> None:
        listed = {name: TyperCommand(name, help=entry.help) for name, entry in COMMANDS.items()}
        super().__init__(**{**options, "commands": listed})

    def load(self, name: str) -> Any:
        """Import the command."""
        entry = COMMANDS[name]
        found = vars(import_module(entry.module))[entry.name]
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False)
            found.command()(function)
        command = get_command(found)
        command.name = name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else self.load(name), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as error:
            problem: BaseException = error
            text, code = "Stopped.", 1
        except FedspanError as error:
            problem = error
            text, code = str(error), 2 if isinstance(error, InputError) else 1
        except Exception as error:
            if hasattr(error, "exit_code"):  # typer's own: a mistyped option, an early exit
                raise
            problem = error
            text, code = f"{type(error).__name__}: {error}; for the traceback, add --debug after `fedspan`", 1
        if ctx.params["debug"]:
            traceback.print_exception(problem)
        typer.echo(f"error: {' '.join(text.split())}", err=True)
        raise typer.Exit(code)


app = typer.Typer(
    cls=LazyCommands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learn one model from data that must stay apart.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong input.",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedspan {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; default: one sentence.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Learn one model from data that must stay apart."""


def main() -> None:
    """Run the command that was typed."""
    app(prog_name="fedspan")


if __name__ == "__main__":
    main()
