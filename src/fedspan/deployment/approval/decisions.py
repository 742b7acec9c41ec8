"""The orders that came to a site and what its administrator decided: a file for each, named by the order's digest.

The file keeps the order as it came, with certificate and signature, so that an auditor can verify it years later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import parse_json
from fedspan.core.checkpoint import build
from fedspan.deployment.approval.signed_order import Order, SignedOrder, verify_order
from fedspan.deployment.site_rules.book import Book
from fedspan.errors import CheckpointError, InputError, PolicyRefusal

try:
    import fcntl
except ImportError:  # no lock on such a system: a site runs one job at a time there
    fcntl = None  # type: ignore[assignment]

_MOST_WAITING = 100  # orders; a researcher who floods a site must not fill its disk
_DIGEST_NAME = re.compile(r"[0-9a-f]{64}\.json")
_MOST_REASON = 500  # characters that the researcher is told


@dataclass(frozen=True)
class OrderRecord:
    """One order. `state`: "waiting", "approved", "refused", or "admitted", if it did not have to wait."""

    signed: SignedOrder
    state: str
    first_seen: str
    job: str = ""  # its number at the server
    decided: str = ""
    reason: str = ""
    shares: dict[str, float] = field(default_factory=dict)  # of the privacy budget, by part of the run

    @property
    def digest(self) -> str:
        return self.signed.digest


class Decisions:
    """The orders of one site, in `fedspan/orders` of its kit."""

    def __init__(self, kit: Path) -> None:
        self.kit, self.folder, self.book = kit, kit / "fedspan" / "orders", Book(kit)

    def find(self, digest: str) -> OrderRecord | None:
        """What is known of the order with that digest."""
        path = self.folder / f"{digest}.json"
        try:
            record = build(OrderRecord, parse_json(path.read_bytes()), defaults=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, CheckpointError) as error:
            raise InputError(
                f"{path} cannot be read ({error}). Move it away; the order will then wait again."
            ) from None
        if record.digest != digest:
            raise InputError(f"{path} holds another order than its name says. Move it away.")
        return record

    def find_change(self, digest: str) -> tuple[int, int] | None:
        """Something that differs after every change of what is known of an order; None if nothing is."""
        try:
            found = (self.folder / f"{digest}.json").stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def list_all(self) -> list[OrderRecord]:
        """All orders, the latest first."""
        names = (
            [path.stem for path in self.folder.glob("*.json") if _DIGEST_NAME.fullmatch(path.name)]
            if self.folder.is_dir()
            else []
        )
        found = [record for record in map(self.find, names) if record is not None]
        return sorted(found, key=lambda record: record.first_seen, reverse=True)

    def list_waiting(self) -> list[OrderRecord]:
        """The orders that wait for a decision, the oldest first."""
        return [record for record in reversed(self.list_all()) if record.state == "waiting"]

    def find_by_start(self, digest: str) -> OrderRecord:
        """The one order whose digest begins so."""
        found = [record for record in self.list_all() if record.digest.startswith(digest.lower())] if digest else []
        if len(found) != 1:
            what = "No order has" if not found else f"{len(found)} orders have"
            raise InputError(f"{what} a digest that begins with {digest!r}. See: fedspan site pending {self.kit}")
        return found[0]

    def note_waiting(self, order: Order, signed: SignedOrder, job: str) -> OrderRecord:
        """Remember that an order waits; what is known of it already stays. In the book before it is anywhere else."""
        with self._hold():
            known = self.find(order.digest)
            if known is not None and known.state in ("waiting", "approved", "refused"):
                return known
            if len(self.list_waiting()) >= _MOST_WAITING:
                raise PolicyRefusal(f"{_MOST_WAITING} orders wait at this site already. Try again later.")
            self.book.write("asked", order_digest=order.digest, by=order.submitter.name, job=job)
            shares = {} if known is None else known.shares
            return self._write(OrderRecord(signed, "waiting", _say_time(), job, shares=shares))

    def note_admitted(self, order: Order, signed: SignedOrder) -> OrderRecord:
        """Keep an order that need not wait."""
        known = self.find(order.digest)
        if known is not None:
            return known
        with self._hold():
            return self._write(OrderRecord(signed, "admitted", _say_time()))

    def approve(self, digest: str) -> Order:
        """Let an order run. It is verified once more, so that what is approved is what was signed."""
        record = self.find_by_start(digest)
        order = verify_order(self.kit, record.signed)
        self._decide(record, "approved", "", f"approved order {record.digest[:16]} of {order.submitter.name}")
        return order

    def refuse(self, digest: str, reason: str) -> OrderRecord:
        """Refuse an order, also one that was approved before; its researcher is told the reason."""
        record = self.find_by_start(digest)
        said = " ".join(reason.split())[:_MOST_REASON]
        self._decide(record, "refused", said, f"refused order {record.digest[:16]}: {said or 'no reason given'}")
        return replace(record, state="refused", reason=said)

    def charge_share(self, digest: str, part: str, share: float, most: float = 1.0) -> None:
        """Count what one part of the run may use of the approved privacy budget; refuse more than all of it."""
        with self._hold():
            record = self.find(digest)
            if record is None:
                raise PolicyRefusal("This site does not know the order of this run.")
            if part in record.shares:
                return
            if sum(record.shares.values()) + share > most * (1 + 1e-6):
                raise PolicyRefusal(
                    "The server asks for more releases than the privacy budget of the signed order allows, so nothing "
                    "was sent."
                )
            self._write(replace(record, shares={**record.shares, part: share}))

    def _decide(self, record: OrderRecord, state: str, reason: str, act: str) -> None:
        with self._hold():
            self.book.write("administrator", act=act)
            known = self.find(record.digest) or record
            self._write(replace(known, state=state, reason=reason, decided=_say_time()))

    def _write(self, record: OrderRecord) -> OrderRecord:
        write_whole(self.folder / f"{record.digest}.json", json.dumps(asdict(record), indent=1))
        return record

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """One process at a time decides; the lock goes with the process, however it ends."""
        make_private_folder(self.folder)
        with (self.folder / "lock").open("ab") as file:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _say_time() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
