"""`fedspan site pending | approve | refuse | researchers`: who may run what at this site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspan._foreign import printable
from fedspan.deployment.approval.change_researchers import change_researchers
from fedspan.deployment.approval.decisions import Decisions, OrderRecord
from fedspan.deployment.approval.signed_order import verify_order
from fedspan.deployment.policy import Policy
from fedspan.errors import InputError, PolicyRefusal
from fedspan.jobs.checking.order_in_words import describe_order

approvals = typer.Typer(add_completion=False)
Kit = Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit.")]
Digest = Annotated[
    str, typer.Argument(metavar="DIGEST", help="The order, by the beginning of its digest, at least 8 characters.")
]
_SHORTEST = 8


@approvals.command("pending")
def list_pending(
    kit: Kit,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that were decided about; default: those that wait.")
    ] = False,
) -> None:
    """Show the jobs that wait for your approval: who asks for what, what protects it, what would leave."""
    policy, decisions = Policy.read(kit), Decisions(kit)
    records = decisions.list_all() if everything else decisions.list_waiting()
    if not records:
        typer.echo("no job waits for your approval" if not everything else "no job has come with a signed order yet")
    for record in records:
        _show_order(record, policy, kit)
        if record.state == "waiting":
            typer.echo(f"  to let it run:  fedspan site approve {kit} {record.digest[:16]}")
            typer.echo(f"  to refuse it:   fedspan site refuse {kit} {record.digest[:16]} --reason '…'")


def _show_order(record: OrderRecord, policy: Policy, kit: Path) -> None:
    decided = f"; decided {record.decided}" if record.decided else ""
    reason = f": {printable(record.reason)}" if record.reason else ""
    typer.echo(f"{record.state} since {record.first_seen}{decided}{reason}")
    try:
        order = verify_order(kit, record.signed)
    except PolicyRefusal as error:
        typer.echo(f"  digest         {record.digest}\n  cannot run     {printable(str(error))}")
        return
    for word, text in describe_order(order, policy):
        typer.echo(f"  {word:<14} {text}")


@approvals.command("approve")
def approve_order(kit: Kit, digest: Digest) -> None:
    """Let a job run, exactly as its researcher signed it. Other sites decide for themselves."""
    order = Decisions(kit).approve(_check_length(digest))
    typer.echo(f"approved order {order.digest[:16]} of {printable(order.submitter.name)}")


@approvals.command("refuse")
def refuse_order(
    kit: Kit,
    digest: Digest,
    reason: Annotated[str, typer.Option(help="What the researcher is told; default: that there is no reason.")] = "",
) -> None:
    """Refuse a job, also one that was approved before: if it runs, it is stopped before its next answer."""
    record = Decisions(kit).refuse(_check_length(digest), reason)
    typer.echo(f"refused order {record.digest[:16]}; its researcher is told: {printable(record.reason) or 'no reason'}")


@approvals.command("researchers")
def list_researchers(
    kit: Kit,
    add: Annotated[
        str | None, typer.Option(metavar="NAME", help="Let this researcher's jobs run; default: none.")
    ] = None,
    remove: Annotated[
        str | None, typer.Option(metavar="NAME", help="Refuse this researcher's jobs from now on; default: none.")
    ] = None,
) -> None:
    """Show whose jobs may run here, or change it, at once.

    A run of somebody who is removed stops before its next answer.
    """
    if add is not None or remove is not None:
        change_researchers(kit, add=add, remove=remove)
    rules = Policy.read(kit).approvals
    names = "anybody whom the coordinator gave a kit" if rules.researchers is None else ", ".join(rules.researchers)
    typer.echo(f"may run jobs here: {printable(names) or 'nobody'}")
    typer.echo(f"wait for approval: {_WAITING[rules.approval]}")
    for name, rule in rules.by_algorithm.items():
        typer.echo(f"{name}: {rule}")


_WAITING = {"each": "all jobs", "researcher": "jobs of those who are not named", "never": "none"}


def _check_length(digest: str) -> str:
    if len(digest) < _SHORTEST:
        raise InputError(f"Give at least {_SHORTEST} characters of the order's digest, not {digest!r}.")
    return digest
