"""What a site's own file allows and demands, in sentences for people who did not write it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedspan.deployment.approval.approval_rules import AlgorithmRule
from fedspan.deployment.policy import ALGORITHM_NAMES, Policy, SiteTable

_MOST_LISTED_WORDS = 12  # columns or methods in one sentence
_WHO_WAITS = {
    "each": "Every job waits until you have approved it.",
    "researcher": "Jobs of the researchers named here run; jobs of others wait until you have approved them.",
    "never": "No job waits for your approval.",
}


def describe_rules(policy: Policy) -> list[tuple[str, str]]:
    """Pairs of a heading and a sentence: who may run what here, on which tables, and with which protection."""
    rules = [("who", _describe_researchers(policy)), ("approval", _WHO_WAITS[policy.approvals.approval])]
    rules += [(f"table {name}", _describe_open_table(table)) for name, table in policy.tables.items()]
    rules += [("methods", _describe_methods(policy))]
    rules += [(f"method {name}", _describe_rule(rule)) for name, rule in policy.approvals.by_algorithm.items()]
    rules += [("sums", _describe_sums(policy)), ("noise", _describe_noise(policy))]
    rules += [("told to others", _describe_told(policy)), ("kept here", _describe_kept(policy))]
    return [(word, text) for word, text in rules if text]


def _describe_researchers(policy: Policy) -> str:
    names = policy.approvals.researchers
    if names is None:
        return "Everybody to whom the coordinator gave a researcher's kit may ask for jobs."
    return f"Researchers named here: {', '.join(names) or 'nobody'}."


def _describe_open_table(table: SiteTable) -> str:
    columns = f"{table.features} columns without names" if table.columns is None else _list_some(table.columns)
    said = [f"{Path(table.path).name}: jobs may use {columns}"]
    for word, name in (("ids", table.id), ("labels", table.label), ("targets of regressions", table.target)):
        said += [f"{word} are in column {name!r}"] if name is not None else []
    said += [f"words count in {_list_some(table.categories)}"] if table.categories else []
    least = [f"{table.min_rows} rows"] if table.min_rows > 1 else []
    least += [f"{table.min_rows_per_class} rows of each class"] if table.min_rows_per_class > 1 else []
    said += [f"without noise no sum is over fewer than {' or '.join(least)}"] if least else []
    return "; ".join(said) + "."


def _describe_methods(policy: Policy) -> str:
    if set(policy.algorithms) == set(ALGORITHM_NAMES):
        return "All methods of fedspan are allowed."
    return f"Only these methods are allowed: {_list_some(policy.algorithms, most=100)}."


def _describe_rule(rule: AlgorithmRule) -> str:
    said = [] if rule.approval is None else [_WHO_WAITS[rule.approval]]
    said += [] if rule.researchers is None else [f"Only for {', '.join(rule.researchers) or 'nobody'}."]
    said += [] if rule.others is None else [f"Every sum must be over at least {rule.others} other sites."]
    said += ["Verified runs only."] if rule.verified else []
    said += [] if rule.tables is None else [f"Only on table {' or '.join(rule.tables)}."]
    return " ".join(said)


def _describe_sums(policy: Policy) -> str:
    if not policy.secure:
        return "Jobs may ask for this site's own numbers; secure sums are left to the job."
    checked = ""
    if policy.verified:
        checked = (
            f" This site checks every step of the server, and takes part only with {', '.join(policy.sites or ())}."
        )
    others = f"{policy.others} other site{'' if policy.others == 1 else 's'}"
    return f"The server sees only sums over this site and at least {others}, never this site's own numbers.{checked}"


def _describe_noise(policy: Policy) -> str:
    if policy.epsilon is None:
        return "Jobs need no noise; there is no privacy budget."
    bound = "" if policy.row_norm is None else f", with rows shortened to a norm of at most {policy.row_norm:g}"
    return (
        f"Every job must add noise{bound}; all jobs together may spend epsilon {policy.epsilon:g} at delta "
        f"{policy.delta:g}."
    )


def _describe_told(policy: Policy) -> str:
    told = ["the names of columns"] if policy.names else []
    counted = {name: table.rows for name, table in policy.tables.items() if policy.rows and table.rows}
    told += [f"that table {name!r} has about {rows} rows" for name, rows in counted.items()]
    return f"Before a run others learn {' and '.join(told)}." if told else "Neither names of columns nor how many rows."


def _describe_kept(policy: Policy) -> str:
    if not policy.transcript:
        return "The book; messages are not kept, so what left cannot be attacked by an audit later."
    return f"The book, and of each run up to {policy.transcript / 1e6:g} MB of messages, for audits."


def _list_some(names: Iterable[str], most: int = _MOST_LISTED_WORDS) -> str:
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
