"""What a client may still spend, over all runs and jobs: files at the client, written before anything leaves.

A run first *reserves* all that its plan may release. Before each release it is written down as *sent*. When the run is
over, it is *settled*: what was never sent is free again. Every step holds a lock and is on disk before the next one
begins; so two jobs cannot spend the same ε, and a process that is killed at any instant leaves the release counted.

    budget.json         what is allowed, and every run with its plan and what it has sent
    budget.json.serial  the number of the last change, so that an older copy of the file is recognised
    budget.json.key     the key that seals both, and from which the client's noise comes (keyring.py)
    budget.json.lock    held while one of them is read or changed

The client's owner makes them (`Budget.grant`, or `fedspan site budget`). A release that would exceed the budget is
refused; so is a file that is missing, was edited or put back, or cannot be written: without a count there is no
protection.
"""

from __future__ import annotations

import hmac
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import parse_json
from fedspan.errors import InputError, PrivacyError
from fedspan.privacy.accountant import epsilon
from fedspan.privacy.keyring import derive_key, read_key

try:
    import fcntl
except ImportError:  # budgets need a lock that goes with its process: see `Budget._locked`
    fcntl = None  # type: ignore[assignment]

_BACK = timedelta(hours=1)  # by which a clock may be behind the last entry
_ROUNDING = 1 + 1e-6  # the rounding of ε


@dataclass(frozen=True)
class Cost:
    """All releases of one task: noise multiplier z, the probability that a row is in one of them, and how many."""

    noise: float
    sampled: float
    times: int


@dataclass(frozen=True)
class RunAccount:
    """One run: what it may release, and what it has. `sent` is task → release → digest of its contents."""

    run: str
    neighbours: str
    planned: dict[str, Cost]
    sent: dict[str, dict[str, str]] = field(default_factory=dict)
    settled: bool = False
    when: str = ""

    def count(self) -> Counter[tuple[float, float]]:
        """The releases that count: all that are planned, or, once it is settled, those that were sent."""
        found: Counter[tuple[float, float]] = Counter()
        for task, cost in self.planned.items():
            found[cost.noise, cost.sampled] += len(self.sent.get(task, {})) if self.settled else cost.times
        return found


@dataclass(frozen=True)
class Account:
    """The contents of a budget's file."""

    epsilon: float
    delta: float
    serial: int = 0
    when: str = ""  # of the last change
    runs: tuple[RunAccount, ...] = ()

    def find(self, run: str) -> RunAccount | None:
        return next((entry for entry in self.runs if entry.run == run), None)

    def put(self, entry: RunAccount) -> Account:
        """The same with that run in place of what it was."""
        if self.find(entry.run) is None:
            return replace(self, runs=(*self.runs, entry))
        return replace(self, runs=tuple(entry if old.run == entry.run else old for old in self.runs))

    def spent(self, *, reserved: bool, ahead: float = 0.0) -> float:
        """The ε of all that was sent; with `reserved` also of what runs that are not over may still send."""
        entries = self.runs if reserved else tuple(replace(entry, settled=True) for entry in self.runs)
        found: Counter[tuple[float, float]] = sum((entry.count() for entry in entries), Counter())
        if ahead:
            found[1 / math.sqrt(ahead), 1.0] += 1
        return epsilon(found, self.delta)


class Budget:
    """One client's files."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self._locked() as account:  # fail before the run, not in its middle
            self.allowance = account.epsilon, account.delta

    @classmethod
    def grant(cls, path: str | os.PathLike[str], epsilon: float, delta: float) -> Budget:
        """Make the files, or change what existing ones allow; what was spent stays spent."""
        if not epsilon > 0 or not 0 < delta < 1:
            raise InputError(
                f"epsilon must be above 0 and delta between 0 and 1, but they are {epsilon!r} and {delta!r}."
            )
        budget = cls.__new__(cls)
        budget.path = Path(path)
        budget.allowance = float(epsilon), float(delta)
        with _explain_refusal(budget.path):
            make_private_folder(budget.path.parent)
        with budget._holding_lock():
            account = budget._read_older() or (
                budget._read() if budget.path.exists() else Account(epsilon=0.0, delta=delta)
            )
            budget._write(replace(account, epsilon=float(epsilon), delta=float(delta)))
        return budget

    @property
    def key(self) -> bytes:
        """The key of this client's noise."""
        return derive_key(read_key(self._beside("key")), "noise")

    @property
    def account(self) -> Account:
        """What the file says now."""
        with self._locked() as account:
            return account

    @property
    def spent(self) -> float:
        """The ε spent so far, at the file's δ."""
        return self.account.spent(reserved=False)

    def reserve(self, run: str, planned: Mapping[str, Cost], neighbours: str, ahead: float = 0.0) -> None:
        """Put aside all that a run may release, or refuse it. The same run again, say after a crash, costs no more.

        `ahead` is the μ² of what will follow: there must be room for it, too.
        """
        with self._locked() as account:
            known = account.find(run)
            if known is not None and (known.planned, known.neighbours) != (dict(planned), neighbours):
                raise PrivacyError(f"Run {run!r} was begun here with another privacy plan, so nothing was sent.")
            if known is not None and not known.settled:
                return
            entry = replace(known, settled=False) if known else RunAccount(run, neighbours, dict(planned), when=_now())
            after = account.put(entry)
            needed = after.spent(reserved=True, ahead=0.0 if known else ahead)  # of one that goes on, some was sent
            if needed > account.epsilon * _ROUNDING:
                raise PrivacyError(
                    f"The run would exceed the privacy budget in {self.path.name}: epsilon {needed:.4g} of "
                    f"{account.epsilon:.4g} at delta {account.delta:g}, of which {account.spent(reserved=False):.4g} "
                    f"is spent and {account.spent(reserved=True):.4g} is spent or reserved by runs that are not over. "
                    "Nothing was sent. Ask for a smaller epsilon."
                )
            self._write(after)

    def send(self, run: str, task: str, release: str) -> str | None:
        """Write a release down before it is computed. One that was written down before is free: its digest, or ""."""
        with self._locked() as account:
            entry = account.find(run)
            if entry is None or entry.settled or task not in entry.planned:
                raise PrivacyError(f"{task!r} of run {run!r} was not reserved in {self.path.name}; nothing was sent.")
            sent = entry.sent.get(task, {})
            if release in sent:
                return sent[release]
            if len(sent) >= entry.planned[task].times:
                raise PrivacyError(
                    f"Another {task!r} would exceed the plan, which allows {entry.planned[task].times}, so nothing was "
                    "sent."
                )
            self._write(account.put(replace(entry, sent={**entry.sent, task: {**sent, release: ""}})))
            return None

    def confirm(self, run: str, task: str, release: str, digest: str) -> None:
        """Write down what a release contains, before it leaves: what differs later is another release."""
        with self._locked() as account:
            entry = account.find(run)
            if entry is None or release not in entry.sent.get(task, {}):
                raise PrivacyError(f"{task!r} of run {run!r} was not written down in {self.path.name}.")
            sent = {**entry.sent[task], release: digest}
            self._write(account.put(replace(entry, sent={**entry.sent, task: sent})))

    def settle(self, run: str) -> None:
        """The run is over: what it did not send is free again."""
        with self._locked() as account:
            entry = account.find(run)
            if entry is not None and not entry.settled:
                self._write(account.put(replace(entry, settled=True)))

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{ending}")

    @contextmanager
    def _holding_lock(self) -> Iterator[None]:
        """Keep other processes and threads out; the lock goes with the process, however it ends."""
        if fcntl is None:
            raise PrivacyError("Privacy budgets need file locks, which this system does not have. Nothing was sent.")
        with _explain_refusal(self.path):
            handle = os.open(self._beside("lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _locked(self) -> Iterator[Account]:
        if not self.path.exists():
            raise PrivacyError(
                f"There is no privacy budget {self.path.name}, so nothing was sent. Its owner makes it with `fedspan "
                "site budget KIT --grant EPSILON --delta DELTA`, or Budget.grant(path, epsilon, delta)."
            )
        with self._holding_lock():
            yield self._read()

    def _seal(self, text: str) -> str:
        return hmac.digest(derive_key(read_key(self._beside("key")), "seal"), text.encode(), "sha256").hex()

    def _read(self) -> Account:
        """The account, if it is what was written last."""
        wrong = ""
        account, last = Account(0.0, 0.0), -1
        try:
            tree = parse_json(self.path.read_text(encoding="utf-8"))
            if "version" not in tree and "spent" in tree:
                wrong = "it was written by version 0.1"
            else:
                seal, contents = tree["seal"], tree["account"]
                if not hmac.compare_digest(str(seal), self._seal(json.dumps(contents))):
                    wrong = "it was edited, or its key was replaced"
                account = _to_account(contents)
                last = int(self._beside("serial").read_text(encoding="ascii"))
        except PrivacyError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            wrong = f"it cannot be read ({type(error).__name__})"
        if not wrong and not last <= account.serial <= last + 1:  # a crash may come between the two files
            wrong = "an older copy was put back"
        if not wrong and account.when and datetime.fromisoformat(account.when) > datetime.now(UTC) + _BACK:
            wrong = f"its last entry is of {account.when}, so this machine's clock was set back"
        if wrong:
            raise PrivacyError(
                f"The privacy budget {self.path.name} cannot be trusted: {wrong}. Nothing was sent. Its owner must "
                "restore the newest copy of all its files, or start a new budget with: fedspan site budget KIT --grant"
            )
        if account.serial > last:
            with _explain_refusal(self.path):
                write_whole(self._beside("serial"), str(account.serial))
        return account

    def _read_older(self) -> Account | None:
        """The account of a file of version 0.1, which had no runs: all that it spent is one."""
        if not self.path.exists():
            return None
        try:
            tree = parse_json(self.path.read_text(encoding="utf-8"))
            if "account" in tree or not isinstance(tree["spent"], list):
                return None
            planned: dict[str, Cost] = {}
            sent: dict[str, dict[str, str]] = {}
            for number, old in enumerate(tree["spent"]):
                planned[f"{old['task']} {number}"] = Cost(float(old["noise"]), float(old["sampled"]), 1)
                sent[f"{old['task']} {number}"] = {"before": ""}
            return Account(0.0, 0.5, runs=(RunAccount("before", "add-remove", planned, sent, True),))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, account: Account) -> None:
        """Replace the account, then the number of the change; both are on disk before this returns."""
        account = replace(account, serial=account.serial + 1, when=max(account.when, _now()))
        contents = asdict(account)
        with _explain_refusal(self.path):
            tree = {"version": 2, "account": contents, "seal": self._seal(json.dumps(contents))}
            write_whole(self.path, json.dumps(tree, indent=1))
            write_whole(self._beside("serial"), str(account.serial))


def _to_account(contents: Mapping[str, object]) -> Account:
    """The account that a file's plain data describe; its seal has been checked."""
    tree = json.loads(json.dumps(contents))
    runs = tuple(
        RunAccount(**{**entry, "planned": {task: Cost(**cost) for task, cost in entry["planned"].items()}})
        for entry in tree.pop("runs")
    )
    return Account(**tree, runs=runs)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _explain_refusal(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PrivacyError(
            f"The privacy budget {path.name} cannot be written ({error.strerror}), so nothing was sent. Make room or "
            "give its owner the right to write there."
        ) from None
