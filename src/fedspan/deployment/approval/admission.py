"""The site's own gate: it lets a run begin only if who signed its order may run it here, and it is what was signed.

It stands in the process of the job, where the server's openings arrive. FLARE's queue asks the same before a job is
deployed (`gate.py`), so that it can wait; but what the queue was shown counts for nothing here.
"""

from __future__ import annotations

from pathlib import Path

from fedspan.deployment.approval.conformity import check_follows, possible_algorithms, share_of_budget
from fedspan.deployment.approval.decisions import Decisions, OrderRecord
from fedspan.deployment.approval.signed_order import Order, SignedOrder, verify_order
from fedspan.deployment.policy import Policy
from fedspan.engines.start import StartMessage
from fedspan.errors import PolicyRefusal


class Admission:
    """Decides about the runs of one job at one site. `signed` is the order that came with the job, if one did."""

    def __init__(self, kit: Path, signed: SignedOrder | None, *, required: bool = False) -> None:
        self.kit, self.signed, self.required = kit, signed, required
        self.decisions = Decisions(kit)
        self.seen: tuple[int, int] | None = None  # the order's file, as it was when the run was opened

    def admit(self, policy: Policy, job: str = "") -> Order | None:
        """The order, if its submitter may run it here now; None if this site asks for none and none came."""
        if self.signed is None:
            if self.required or policy.approvals.need_order:
                raise PolicyRefusal("This site takes orders only that a researcher has signed, and this job has none.")
            return None
        order = verify_order(self.kit, self.signed)
        wait_or_refuse(self.decisions, policy, order, self.signed, job)
        return order

    def check_opening(self, policy: Policy, start: StartMessage) -> Order | None:
        """Refuse a run whose submitter may not run it, or that is not what was signed; else count what it may spend."""
        order = self.admit(policy)
        table = start.table.get("name") or "default"
        name = type(start.algorithm).__name__.lower()
        others = None if start.threshold is None else start.threshold - 1
        policy.approvals.check_algorithm(name, others=others, verified=start.verified, table=table)
        if order is None or self.signed is None:
            return None
        check_follows(start, order)
        self.decisions.note_admitted(order, self.signed)
        if start.privacy is not None:
            self.decisions.charge_share(order.digest, start.name_noise(), share_of_budget(start))
        self.seen = self.decisions.find_change(order.digest)
        return order

    def check_still(self, policy: Policy) -> None:
        """Refuse a run that goes on if its order has been decided about since: it may have been refused."""
        if self.signed is not None and self.decisions.find_change(self.signed.digest) != self.seen:
            self.seen = self.decisions.find_change(self.signed.digest)
            self.admit(policy)


def wait_or_refuse(decisions: Decisions, policy: Policy, order: Order, signed: SignedOrder, job: str = "") -> None:
    """Refuse an order that was refused, or that still waits; one that comes for the first time is put on the list."""
    algorithms = frozenset[str]().union(*(possible_algorithms(request) for request in order.requests))
    waits = policy.approvals.must_wait(order.submitter.name, algorithms & set(policy.algorithms))
    record = decisions.find(order.digest)
    if waits and (record is None or record.state == "admitted"):  # the site's file has become stricter since
        record = decisions.note_waiting(order, signed, job)
    if record is not None and record.state == "refused":
        raise PolicyRefusal(describe_refusal(record))
    if waits and (record is None or record.state != "approved"):
        raise PolicyRefusal(describe_waiting(order), passing=True)


def describe_waiting(order: Order) -> str:
    """What the researcher is told of an order that waits."""
    return f"waiting for the approval of this site's administrator (order {order.digest[:16]})"


def describe_refusal(record: OrderRecord) -> str:
    """What the researcher is told of an order that was refused."""
    why = f": {record.reason}" if record.reason else ", and gave no reason"
    return f"refused by this site's administrator{why} (order {record.digest[:16]})"
