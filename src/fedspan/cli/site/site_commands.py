"""`fedspan site`: a site's part in a federation on NVIDIA FLARE."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from fedspan._foreign import printable
from fedspan.cli.federation.join_commands import joining
from fedspan.cli.federation.service_commands import services
from fedspan.cli.site.approval_commands import approvals
from fedspan.cli.site.page_command import pages
from fedspan.deployment.kit import check_certificates, check_may_init, init_site, role, server_port
from fedspan.deployment.local import end_kit, is_listening, start_kit
from fedspan.deployment.operations.kit_place import check_place
from fedspan.deployment.policy import Policy, read_secret_file
from fedspan.deployment.site_budget import describe_budget, grant_budget, settle_run
from fedspan.deployment.site_evidence import collect_evidence, describe_book, verify_book
from fedspan.deployment.site_rules.book import Book
from fedspan.deployment.site_rules.pause import Pause
from fedspan.deployment.site_rules.rosters import Rosters
from fedspan.deployment.site_rules.shutter import Shutter
from fedspan.deployment.site_tables.site_check import inspect_table, propose_table, rehearse
from fedspan.errors import ClientError, InputError, suggest
from fedspan.jobs import Job

site = typer.Typer(add_completion=False, no_args_is_help=True)  # the list of commands in main.py has its help
site.add_typer(approvals)
site.add_typer(joining)
site.add_typer(pages)
site.add_typer(services)


@site.command("init")
def write_policy(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    data: Annotated[
        list[str],
        typer.Option(help="A file or database address that jobs may use, or NAME=ADDRESS; may be repeated."),
    ],
    columns: Annotated[
        str | None,
        typer.Option(help="The columns that jobs may use, separated by commas; default: none, see --all-columns."),
    ] = None,
    all_columns: Annotated[
        bool, typer.Option("--all-columns", help="Open all numeric columns to jobs; default: those of --columns.")
    ] = False,
    id: Annotated[str | None, typer.Option(help="The column that holds ids; default: none.")] = None,
    label: Annotated[
        str | None, typer.Option(help="The column that holds labels; its classes are written down; default: none.")
    ] = None,
    categories: Annotated[
        str | None,
        typer.Option(help="Columns of words, separated by commas; their words are written down; default: none."),
    ] = None,
    min_rows: Annotated[int, typer.Option(help="Refuse jobs over fewer rows.")] = 10,
    min_rows_per_class: Annotated[int, typer.Option(help="Refuse classifiers if a class has fewer rows.")] = 5,
    algorithms: Annotated[
        str | None, typer.Option(help="The algorithms allowed, separated by commas; default: all.")
    ] = None,
    secure: Annotated[bool, typer.Option(help="Accept only runs with secure sums, or any run.")] = True,
    others: Annotated[int, typer.Option(help="The least number of other sites in a secure sum.")] = 2,
    sites: Annotated[
        str | None,
        typer.Option(
            help="All sites of the federation, separated by commas: then only runs of these are accepted, which each "
            "site verifies; default: runs need not be verified."
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The budget of all runs together; default: runs need no noise.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The delta that goes with epsilon; default: none.")] = None,
    row_norm: Annotated[
        float | None, typer.Option(help="The largest row norm that a job may set, with epsilon; default: any.")
    ] = None,
    sizes: Annotated[bool, typer.Option(help="Tell others about how many rows there are, or not.")] = True,
    names: Annotated[bool, typer.Option(help="Tell others the names of the columns, or not.")] = True,
    secret_file: Annotated[
        Path | None, typer.Option(help="The file of `fedspan federation secret`, which hides ids; default: none.")
    ] = None,
    approval: Annotated[
        str,
        typer.Option(help="Which jobs wait for your approval: each, those of others than --researchers, or never."),
    ] = "never",
    researchers: Annotated[
        str | None,
        typer.Option(help="Whose jobs may run here, by their names in the certificates; default: anybody's."),
    ] = None,
    transcript_mb: Annotated[
        int,
        typer.Option(
            min=0, help="Keep so many MB of each run's messages, for `fedspan audit KIT --run RUN`; default: 0."
        ),
    ] = 0,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing policy; default: refuse.")] = False,
) -> None:
    """Write the site's policy (local/fedspan.toml): what jobs may do here. Close what a FLARE kit leaves open.

    Classes and categories are read from the data now, for you to review. Jobs can use no other words.
    """
    check_may_init(kit, replace=replace)
    if (columns is None) != all_columns:
        raise InputError(
            "Say which columns jobs may use: --columns a,b,c or, if it is to be all of them, --all-columns."
        )
    own: dict[str, int | str] = {"min_rows": min_rows}
    if label is not None:
        own["min_rows_per_class"] = min_rows_per_class
    if secret_file is not None:
        read_secret_file(secret_file)
        own["secret_file"] = str(secret_file.absolute())
    tables = {}
    for text in data:
        name, _, address = text.partition("=") if "=" in text.split("/")[0] else ("default", "", text)
        address = address if "://" in address else str(Path(address).absolute())
        proposal = propose_table(
            address,
            columns=_split_words(columns) if columns is not None else None,
            id=id,
            label=label,
            categories=_split_words(categories or ""),
            tell_rows=sizes,
            min_rows=min_rows,
        )
        for note in proposal.notes:
            typer.echo(f"table {name}: {note}")
        tables[name] = {**proposal.keys, **own}
    members = _split_words(sites or "")
    if not members:
        typer.echo(
            "Runs need not be verified here, because this kit does not say which sites there are; name them all with "
            "--sites, so that no server can steer a run or invent a site."
        )
    init_site(
        kit,
        tables,
        replace=replace,
        secure=secure,
        others=others,
        verified=secure and len(members) >= 3,
        sites=members or None,
        epsilon=epsilon,
        delta=delta,
        row_norm=row_norm,
        rows=sizes,
        names=names,
        approval=approval,
        transcript_mb=transcript_mb,
        researchers=_split_words(researchers) if researchers else None,
        **({"algorithms": _split_words(algorithms)} if algorithms else {}),
    )
    typer.echo(f"wrote {kit / 'local' / 'fedspan.toml'}; look it over, then: fedspan site check {kit}")


def _split_words(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


@site.command("check")
def check_site(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    job: Annotated[
        Path | None,
        typer.Option(help="Also carry out this job file here, on copies of this site alone; default: none."),
    ] = None,
) -> None:
    """Look at the site's policy and at every cell of its data, and say what is wrong, with rows. Nothing is sent."""
    policy = Policy.read(kit)
    check_certificates(kit)
    for name, table in policy.tables.items():
        found, shown = inspect_table(table), printable(name)
        typer.echo(f"table {shown}: {found.rows} rows, {found.columns} features")
        for problem in found.problems:
            typer.echo(f"table {shown}: {printable(problem)}")
        for word, count in found.classes.items():
            typer.echo(f"table {shown}: class {printable(str(word))} has {count} rows")
        if table.id is not None and table.secret_file is None:
            typer.echo(f"table {shown}: ids are not compared without secret_file (fedspan federation secret)")
        elif table.secret_file is not None:
            read_secret_file(Path(table.secret_file))
    for name in Shutter(kit).list_shut():
        typer.echo(
            f"table {printable(name)}: shut, because too many questions were refused; to open it: fedspan site reopen"
        )
    sums = f"secure sums with {policy.others} other sites or more" if policy.secure else "any, also without secure sums"
    sums += f"; verified, of {', '.join(policy.sites or ())}" if policy.verified else ""
    typer.echo(f"runs: {sums}; algorithms: {', '.join(policy.algorithms)}")
    budget = (
        f"epsilon {policy.epsilon:g} at delta {policy.delta:g} over all runs" if policy.epsilon else "not asked for"
    )
    typer.echo(f"noise: {budget}")
    if job is not None:
        _rehearse_job(kit, job)


def _rehearse_job(kit: Path, path: Path) -> None:
    """Carry out a job on copies of one site, and say how it would end, with the reasons that are not sent."""
    copies = ["copy-0", "copy-1", "copy-2"]
    found = rehearse(kit, Job.load_for(path, lambda: copies).to_request())
    for line in found.log:
        typer.echo(f"job {path.name}: {line}")
    ended = "done" if found.outcome["done"] else found.outcome.get("error", "")
    typer.echo(f"job {path.name}: {ended}")


@site.command("reopen")
def reopen_table(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table, by its name in the policy.")] = "default",
) -> None:
    """Open a table again that was shut because too many questions about it were refused."""
    policy = Policy.read(kit)
    if table not in policy.tables:
        raise InputError(f"There is no table {table!r} at this site. {suggest(table, policy.tables)}")
    Book(kit).write("administrator", act=f"opened table {table} again, which refusals had shut")
    was_shut = Shutter(kit).reopen(table)
    typer.echo(f"table {table} is open{'' if was_shut else ', as it was'}; its refusals are forgotten")


@site.command("forget")
def forget_groups(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table, by its name in the site's policy.")],
) -> None:
    """Let a table be summed with other groups of sites than before. Sums of both kinds may show single sites."""
    path = Policy.read(kit).find_table({"name": table}).path
    Book(kit).write("administrator", act=f"forgot the groups of sites with which table {table} was summed")
    groups = Rosters(kit / "fedspan" / "rosters.json").forget(table, path)
    if groups is None:
        typer.echo(f"table {table} was in no secure sum yet; nothing to forget")
        return
    typer.echo(
        f"table {table} is no longer bound to {'; '.join(', '.join(group) for group in groups)}. The next run may "
        "bring other groups; the difference of its sums and of earlier ones may show a single site."
    )


@site.command("budget")
def show_budget(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    grant: Annotated[
        float | None,
        typer.Option(help="Allow this epsilon over all runs, of which what was spent stays spent; default: only show."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="The delta that goes with it; default: the one that the site has.")
    ] = None,
    settle: Annotated[
        str | None, typer.Option(metavar="RUN", help="Free what a run that will not go on has reserved; default: none.")
    ] = None,
) -> None:
    """Show the site's privacy budget: what is allowed, spent and reserved, and by which runs; or change it."""
    if grant is not None:
        Book(kit).write("administrator", act=f"granted epsilon {grant:g}" + (f", delta {delta:g}" if delta else ""))
        grant_budget(kit, grant, delta)
    policy = Policy.read(kit)
    if settle is not None:
        Book(kit).write("administrator", act=f"freed what run {settle} had reserved of the budget")
        settle_run(policy, settle)
    for line in describe_budget(policy):
        typer.echo(line)


@site.command("log")
def show_log(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Only this run, by the beginning of its name; default: all.")
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only so many lines from the end; default: all.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check that no line was changed; default: show the lines.")
    ] = False,
    head: Annotated[
        str | None,
        typer.Option(metavar="DIGEST", help="With --verify: a digest noted earlier, still to be there; default: none."),
    ] = None,
) -> None:
    """Show the site's book: what was opened, what left in each answer, what was refused, and what you changed."""
    if head is not None and not verify:
        raise InputError("--head needs --verify.")
    for line in verify_book(kit, head) if verify else describe_book(kit, run, last):
        typer.echo(line)


@site.command("evidence")
def pack_evidence(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run, by the beginning of its name.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to write; it must not exist.")],
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The researcher's run folder, if it was handed over: ledger and report are added; default: none.",
        ),
    ] = None,
) -> None:
    """Write what this site knows of a run into a folder for an auditor: orders, certificates and the book; no data."""
    for name in collect_evidence(kit, run, out, results):
        typer.echo(out / name)


@site.command("pause")
def pause_site(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")],
    end: Annotated[bool, typer.Option("--end", help="End the pause; default: begin one.")] = False,
) -> None:
    """Let no run begin or go on at this site until the pause is ended. Its process and connections stay as they are."""
    Policy.read(kit)
    if end:
        was_paused = Pause(kit).end()
        typer.echo("the pause is over" if was_paused else "the site was not paused")
    else:
        Pause(kit).begin()
        typer.echo(f"paused; runs that are stopped by it can be resumed after: fedspan site pause {kit} --end")
    Book(kit).write("administrator", act="ended the pause" if end else "paused the site")


@site.command("start")
def start_site(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit of a site, or of the server.")],
    moved: Annotated[
        bool, typer.Option("--moved", help="The kit was moved here, and runs nowhere else; default: refuse a copy.")
    ] = False,
) -> None:
    """Run the process of a site or of the server until it is stopped (by Ctrl-C or a service manager)."""
    check_certificates(kit)
    if role(kit) == "site":
        Policy.read(kit)
    elif is_listening(server_port(kit)):
        port = server_port(kit)
        raise InputError(f"Port {port} is in use on this machine; stop what listens there, or choose another port.")
    check_place(kit, moved=moved)
    log = kit / "fedspan.log"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service manager's stop is a Ctrl-C
    process = start_kit(kit, log)
    try:
        typer.echo(f"started, process {process.pid}; it logs to {log}")
        code = process.wait()
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # asked twice, it must not leave half of the processes behind
        end_kit(kit, process)
        return
    if code:
        raise ClientError(f"The process ended with code {code}; see {log}.")
