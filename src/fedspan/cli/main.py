"""`fedspan`: the commands, and what becomes of their errors. A command imports what is heavy when it is called."""

from __future__ import annotations

import shlex
import traceback
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedspan.cli.site_commands import federation, site
from fedspan.errors import FedspanError, InputError


class _Commands(TyperGroup):
    """One place for errors: one sentence on stderr, and exit code 2 for wrong input, 1 for what failed."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as error:
            problem: BaseException = error
            text, code = "stopped", 1
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
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learn one model from data that must stay apart.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong input.",
)


app.add_typer(federation, name="federation")
app.add_typer(site, name="site")


def _version(asked: bool) -> None:
    if asked:
        from fedspan import __version__

        typer.echo(f"fedspan {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; default: one sentence.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Learn one model from data that must stay apart."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The run folder; a demo's own folder is replaced.")] = Path("demo-run"),
) -> None:
    """Federated PCA of real data, against the pooled answer; ends in a report."""
    from fedspan.cli.demo import demo as show

    show(out, _console())


@app.command()
def new(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="pca, svd, gcca, personalized, classifier or vertical-classifier.", show_default=False
        ),
    ],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="The file to write; default: TASK.toml.", show_default=False),
    ] = None,
) -> None:
    """Write a commented job file to start from. A file that is there already is not overwritten."""
    from fedspan.jobs.template import write_new

    place = write_new(task, path)
    typer.echo(f"wrote {place}: name your files in it, then: fedspan run {shlex.quote(str(place))}")


@app.command()
def schema(
    out: Annotated[Path | None, typer.Option(help="The file to write; default: print it.")] = None,
) -> None:
    """The JSON schema of job files, for editors. Beside a job.schema.json, `fedspan new` refers to it."""
    from fedspan.jobs.schema import text, write_schema

    if out is None:
        typer.echo(text(), nl=False)
    else:
        write_schema(out)
        typer.echo(f"wrote {out}")


@app.command()
def run(
    job: Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file.", show_default=False)],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=c", help="Override a key of the job file; may be repeated. Default: none."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A new or empty run folder; default: runs/<job file>-<date-time>.")
    ] = None,
    transcript: Annotated[
        bool,
        typer.Option(
            "--transcript",
            help="Keep every message in the run folder, for `fedspan audit`. It then holds all that the clients "
            "released, from which their data may be worked out: keep it as safe as the data. Default: not kept.",
        ),
    ] = False,
    on: Annotated[
        Path | None,
        typer.Option(metavar="KIT", help="Run on the federation of this researcher's kit; default: in this process."),
    ] = None,
) -> None:
    """Run a job file (`fedspan new` writes one); leaves a run folder with model, ledger, checkpoint and report."""
    from fedspan.jobs.folder import RunFolder
    from fedspan.jobs.model import load
    from fedspan.jobs.runner import announce, execute

    more = [*(set_ or ()), *(["run.transcript=true"] if transcript else [])]
    place = out if out is not None else Path("runs") / f"{job.stem}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    if on is not None:
        from fedspan.jobs import federated as remote

        checked = remote.load_on(job, more, on).resolved()
        console, folder = _console(), RunFolder.create(place, checked)
        remote.begin(folder, on)
        announce(folder, console, remote.execute(folder, checked, console, new=True))
        return
    checked = load(job, more).resolved()
    console, folder = _console(), RunFolder.create(place, checked)
    announce(folder, console, execute(folder, checked, console, new=True))


_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.", show_default=False)]


@app.command()
def resume(folder: _Folder) -> None:
    """Go on with a run that was cut off, from its last complete round."""
    from fedspan.jobs.folder import RunFolder
    from fedspan.jobs.runner import announce, execute

    place, job = RunFolder.find(folder)
    if not place.model.exists():
        console = _console()
        if place.federation.exists():
            from fedspan.jobs.federated import execute
        announce(place, console, execute(place, job, console, new=False))
        return
    if not place.report.exists():  # cut off between the two
        report(folder)
    typer.echo(f"nothing to do: the run is complete, its model is {place.model}")


@app.command()
def report(
    folder: _Folder,
    without_rows: Annotated[
        bool, typer.Option("--without-rows", help="Draw no single rows, to pass the page on; default: they are drawn.")
    ] = False,
) -> None:
    """Write report.html anew from what is in a run folder."""
    from fedspan.jobs.folder import RunFolder
    from fedspan.jobs.runner import rewrite_report

    place, _ = RunFolder.find(folder)
    rewrite_report(place, not without_rows)
    typer.echo(f"report: {place.report}")


@app.command()
def audit(
    folder: _Folder,
    clients: Annotated[int, typer.Option(min=1, help="How many clients to attack, the first by name.")] = 8,
) -> None:
    """What left each client in a run, and what the server could work out from it; writes audit.html.

    The attacks need the messages themselves: `fedspan run JOB.toml --transcript`. Errors are measured against the
    clients' data, if the files that the job names can be read here.
    """
    from fedspan.audit.auditor import examine
    from fedspan.jobs.folder import RunFolder
    from fedspan.jobs.runner import rewrite_report

    place, job = RunFolder.find(folder)
    examine(place, job, _console(), clients)
    if place.model.exists():
        rewrite_report(place)


@app.command()
def export(
    folder: _Folder,
    to: Annotated[str, typer.Option(metavar="sklearn|onnx", help="What to write.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="A new file; default: model.skops or model.onnx in the run folder.")
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Whose components, of a personalized model; default: none, which others need.")
    ] = None,
) -> None:
    """Write a run's model as a fitted scikit-learn estimator (skops) or an ONNX graph; needs no fedspan to be used."""
    from fedspan.cli.export_command import export as write
    from fedspan.jobs.folder import RunFolder

    place, job = RunFolder.find(folder)
    typer.echo(f"wrote {write(place, job, to, out, client)}")


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="To run: faps/table4 say, or faps, or all; default: list them.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="The paper's sizes where the machine allows; default: quick.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="The data sets; default: FEDSPAN_DATA, or shared/data beside the repository.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="For results; default: docs/results of the checkout.")] = None,
    scoreboard: Annotated[
        bool, typer.Option("--scoreboard", help="Write docs/scoreboard.md from the results; default: not.")
    ] = False,
) -> None:
    """The papers' tables and figures, and peers, beside ours: list them, run them, write the scoreboard.

    Needs a checkout.
    """
    from fedspan.cli import bench as benchmarks

    if name is None:
        (benchmarks.scoreboard if scoreboard else benchmarks.show)(_console())
        return
    benchmarks.run(name, "full" if full else "quick", data, out, _console())
    if scoreboard:
        benchmarks.scoreboard(_console())


@app.command()
def doctor() -> None:
    """Versions, BLAS, threads, what is installed, what is not and why it matters."""
    from fedspan.cli.doctor import examine

    examine(_console())


def _console() -> Any:
    from rich.console import Console

    return Console()


def main() -> None:
    """The entry point."""
    app(prog_name="fedspan")


if __name__ == "__main__":
    main()
