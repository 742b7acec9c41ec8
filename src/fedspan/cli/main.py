"""`fedspan`: the table of its commands, and how their errors are shown.

A command's module is imported when the command is called, so that `fedspan --help` does not wait for scipy.
"""

from __future__ import annotations

import traceback
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from fedspan._foreign import printable
from fedspan._version import __version__
from fedspan.errors import FedspanError, InputError

_LONGEST_ERROR = 5000  # characters: a message may quote a value of a file, which may be long


class CommandEntry(NamedTuple):
    """Where a command is (a function, or a Typer with commands of its own), and what the list says about it."""

    module: str
    name: str
    help: str


COMMANDS = {
    "demo": CommandEntry(
        "fedspan.cli.demo",
        "demo_command",
        "Compare federated PCA of real data with PCA of the pooled rows, and write a report.",
    ),
    "new": CommandEntry(
        "fedspan.cli.new_command",
        "new_command",
        "Write a commented job file to start from. An existing file is not overwritten.",
    ),
    "schema": CommandEntry(
        "fedspan.cli.schema_command",
        "schema_command",
        "Print or write the JSON schema of job files, with which editors complete and check them.",
    ),
    "check": CommandEntry(
        "fedspan.cli.check_command",
        "check_command",
        "Read every table of a job once, and report everything that is wrong with them together.",
    ),
    "run": CommandEntry(
        "fedspan.cli.run_command",
        "run_command",
        "Run a job file, and leave a run folder with model, ledger, checkpoint and report.",
    ),
    "resume": CommandEntry(
        "fedspan.cli.resume_command",
        "resume_command",
        "Continue an interrupted run from its last complete round.",
    ),
    "report": CommandEntry(
        "fedspan.cli.report_command",
        "report_command",
        "Write the report of a run again, from the files in its run folder.",
    ),
    "runs": CommandEntry(
        "fedspan.cli.report_command",
        "runs_command",
        "List the run folders in a folder, with task, date and result, the latest first.",
    ),
    "ui": CommandEntry(
        "fedspan.cli.ui_command",
        "ui_command",
        "Serve a page for your browser: your runs, the progress of those that are at work, and their reports.",
    ),
    "audit": CommandEntry(
        "fedspan.cli.audit_command",
        "audit_command",
        "Show what left each client in a run and what the server could work out from it, and write audit.html.",
    ),
    "export": CommandEntry(
        "fedspan.cli.export_command",
        "export_command",
        "Export a run's model for use without fedspan: as a scikit-learn estimator (skops) or an ONNX graph.",
    ),
    "project": CommandEntry(
        "fedspan.cli.field.project_command",
        "project_command",
        "Project new samples on the components of a run with genotypes, and write them as plink's .eigenvec.",
    ),
    "bench": CommandEntry(
        "fedspan.cli.bench_command",
        "bench_command",
        "Run the benchmarks: the papers' tables and figures, and comparisons with other packages.",
    ),
    "doctor": CommandEntry(
        "fedspan.cli.doctor",
        "doctor_command",
        "Show versions, BLAS, threads, and which extras are installed and what the others would add.",
    ),
    "federation": CommandEntry(
        "fedspan.cli.federation.federation_commands",
        "federation",
        "Set up a federation: write its project file, and make the kits to hand out.",
    ),
    "site": CommandEntry(
        "fedspan.cli.site.site_commands",
        "site",
        "Take part in a federation: say what jobs may do at this site, check it, and start it.",
    ),
}


class LazyCommands(TyperGroup):
    """The commands of the table. Until one is called, only its name and its help text are known.

    Errors end here: as one line on stderr, with exit code 2 for wrong input and 1 for everything else.
    """

    def __init__(self, **options: Any) -> None:
        listed = {name: TyperCommand(name, help=entry.help) for name, entry in COMMANDS.items()}
        super().__init__(**{**options, "commands": listed})

    def load(self, name: str) -> Any:
        """Import the command."""
        entry = COMMANDS[name]
        found = vars(import_module(entry.module))[entry.name]
        if isinstance(found, typer.Typer):
            command = get_command(found)
            command.help = entry.help
        else:
            alone = typer.Typer(add_completion=False)
            alone.command(help=_join_lines(found.__doc__ or ""))(found)
            command = get_command(alone)
        command.name = name
        _leave_out_type_of_flags(command)
        return command

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        _leave_out_types(params)
        return params

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
            typer.echo(printable("".join(traceback.format_exception(problem)), lines=True), err=True, nl=False)
        shown = printable(" ".join(text.split()))
        typer.echo(f"error: {shown if len(shown) <= _LONGEST_ERROR else shown[:_LONGEST_ERROR] + '…'}", err=True)
        raise typer.Exit(code)


def _leave_out_type_of_flags(command: Any) -> None:
    """Help says `--quiet`, not `--quiet <bool>`, in this command and those below it."""
    _leave_out_types(command.get_params(typer.Context(command)))
    if isinstance(command, TyperGroup):
        for inner in command.commands.values():
            _leave_out_type_of_flags(inner)


def _leave_out_types(params: Any) -> None:
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""


def _join_lines(docstring: str) -> str:
    """The paragraphs of a docstring, each on one line: the terminal breaks them where it is wide enough."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))


app = typer.Typer(
    cls=LazyCommands,
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
        bool, typer.Option("--debug", help="Show the traceback of an error; default: only its message.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Learn one model from data that must stay apart."""


def main() -> None:
    """Run the command that was typed."""
    app(prog_name="fedspan")


if __name__ == "__main__":
    main()
