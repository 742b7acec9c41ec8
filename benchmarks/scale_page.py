"""The numbers of docs/scale.md, all from the result of `fedspan bench scale`: tables, and arithmetic step by step.

A step is a line of Python; what it gives is written behind it, for a million and for a billion devices. The page's
blocks run as tests, so the lines are what was calculated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness import HERE, find, latest
from page import put
from scale import COSTS, SWEEPS, WORDS, fits

PAGE = HERE.parent / "docs" / "scale.md"
Point = Mapping[str, Any]
FORMATS = {"seconds": "{:.2g}", "server": "{:.2g}", "client": "{:.2g}", "opening": "{:.2g}", "memory": "{:.0f}"}

DEVICES = [
    ("N", "np.array([1e6, 1e9])", "devices"),
    ("d, k", "1000, 10", "features and components of the job"),
    ("up", "extra_bytes + 8 * d * k", "bytes that a device sends in a round; it hears as many"),
    ("a_run", "2 * up * rounds / 1e6", "MB of a device in a whole run, both links"),
    ("rounded", "2 * up * rounds / 1e6 * auto_over_plain", "MB with bits='auto'"),
    ("total", "N * up / 1e9", "GB into the server in a round, if all take part"),
    ("link", "10e9 / 8", "bytes per second of a link of 10 Gbit/s (assumed)"),
    ("hours_link", "N * up / link / 3600", "hours per round that this link needs"),
    ("hours_server", "N * server_per_client / 3600", "hours per round of one core that receives and adds"),
    ("memory_GB", "N * memory_per_client / 1e9", "GB for what the server keeps of its clients, in one process"),
]
COHORT = [
    ("K", "10_000", "devices in a round, whatever N is (FedPower)"),
    ("width", "2 * k", "columns that FedPower iterates"),
    ("cohort_GB", "K * (extra_bytes + 8 * d * width) / 1e9", "GB into the server in a round"),
    ("cohort_link", "cohort_GB * 1e9 / link", "seconds of the link"),
    ("between", "N / K", "rounds from one turn of a device to its next"),
    ("listing", "N * listed_client", "seconds per round to go through the list of all N, as our server does"),
    ("patience", "600.0", "seconds until a round is closed to stragglers (assumed)"),
    ("in_flight", "patience / cohort_link", "independent runs in flight that fill the link"),
]
TREE = [
    ("F", "100", "children of a node: as many as were measured in one secure sum of this size"),
    ("depth", "np.ceil(np.log(N) / np.log(F) - 1e-9)", "levels of nodes above the devices"),
    ("leaves", "N / F", "nodes that hear devices"),
    ("nodes", "leaves * F / (F - 1)", "all nodes: the leaves, a hundredth of that, and so on"),
    ("node_MB", "F * up / 1e6", "MB into any node in a round, the root included"),
    ("level_link", "F * up / link", "seconds of its link"),
    ("level_add", "F * server_per_client", "seconds of its core"),
    ("round_trip", "0.1", "seconds from a node to its children and back (assumed)"),
    ("latency", "depth * (level_link + level_add + round_trip)", "seconds that the tree adds to a round"),
    ("secure_up", "F * secure_up_bytes / 1e6", "MB into a leaf with secure sums"),
    ("secure_device", "secure_client", "seconds of a device for its masks, in a sum of F"),
    ("secure_leaf", "secure_server", "seconds of the leaf's core"),
]
FIRST = [
    ("pairs", "secure_client / F", "seconds of a device for each other in its secure sum"),
    ("one_sum", "N * pairs / 3600", "hours of a device in one sum of all, if all shared masks with all"),
    ("lost", "0.05", "of the devices do not answer when asked (assumed, independently)"),
    (
        "asked",
        "np.ceil(np.log(N) / -np.log(lost))",
        "times to ask until all have answered (retries=3: at most 4)",
    ),
    ("gone", "N * 1e-6", "devices that are gone for good, at one in a million: one is too many for krylov"),
]


def measured(points: Sequence[Point], table4: Mapping[str, Any]) -> dict[str, float]:
    """What the arithmetic starts from."""
    largest = {sweep.name: [p for p in points if p["sweep"] == sweep.name][-1] for sweep in SWEEPS}
    many, job = largest["krylov over clients"], largest["krylov, 1000 features over clients"]
    secure = largest["krylov, 1000 features, secure, a third may be lost over clients"]
    rounded = next(c for c in table4["costs"] if c["solver"] == "krylov, bits='auto'")
    clients, d, k = (table4["setting"][name] for name in ("clients", "features", "components"))
    plain = 2 * clients * rounded["rounds"] * 8 * d * k / 1e6
    fewer, more = [p for p in points if p["sweep"] == "fedpower over clients"][-2:]
    return {
        "extra_bytes": job["up"] - 8 * job["features"] * job["components"],
        "server_per_client": job["server"] / job["clients"],
        "memory_per_client": 1e6 * many["memory"] / many["clients"],
        "listed_client": (more["server"] - fewer["server"]) / (more["clients"] - fewer["clients"]),
        "rounds": rounded["rounds"],
        "auto_over_plain": rounded["megabytes"] / plain,
        "secure_client": secure["client"],
        "secure_keys": secure["keys"],
        "secure_server": secure["server"],
        "secure_up_bytes": secure["up"],
    }


SAYS = {
    "extra_bytes": "bytes of a message beyond its numbers",
    "server_per_client": "the server's seconds for each client of a round, 1000 features, 10 components",
    "memory_per_client": "bytes of the whole process for each of the most clients measured",
    "listed_client": "the server's seconds in a round of FedPower for each client more that is not in the cohort",
    "rounds": "of krylov, bits='auto', on FAPS Table 4 (scoreboard)",
    "auto_over_plain": "its bytes over those of as many rounds of float64",
    "secure_client": "a client's seconds in a secure sum of 100, 1000 features, 10 components",
    "secure_keys": "a client's seconds for its keys and shares in the same, once per run or after a loss",
    "secure_server": "the server's seconds in the same",
    "secure_up_bytes": "bytes that a client sends in the same",
}


def steps(lines: Sequence[tuple[str, str, str]], known: dict[str, Any]) -> Iterator[str]:
    """The lines as Python, each with what it gives behind it; `known` grows."""
    yield "```python"
    for name, expression, says in lines:
        exec(f"{name} = {expression}", known)  # noqa: S102 - the lines above
        values = [number(known[part.strip()]) for part in name.split(",")]
        yield f"{name} = {expression}  # {', '.join(values)}: {says}"
    yield "```"


def number(value: Any) -> str:
    if np.ndim(value):
        return " and ".join(number(x) for x in np.asarray(value).tolist())
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"


def tables(points: Sequence[Point]) -> Iterator[str]:
    """Every point that was measured."""
    for sweep in SWEEPS:
        mine = [p for p in points if p["sweep"] == sweep.name]
        fixed = [name for name in ("clients", "rows", "features", "components", "cohort") if name != sweep.over]
        yield f"**{sweep.name}** ({', '.join(f'{n} {mine[0][n]}' for n in fixed if mine[0][n] is not None)})"
        shown = [cost for cost in COSTS if any(p[cost] for p in mine)]
        yield from ("", f"| {sweep.over} | {' | '.join(WORDS[c] for c in shown)} |", "|--:|" + "--:|" * len(shown))
        for p in mine:
            cells = [FORMATS[c].format(p[c]) if c in FORMATS else number(p[c]) for c in shown]
            yield f"| {p[sweep.over]:,} | {' | '.join(cells)} |"
        yield ""


def exponents(points: Sequence[Point]) -> Iterator[str]:
    """What was fitted."""
    yield "| | from | to | cost | exponent | off by at most | slope of the last two |"
    yield "|---|--:|--:|---|--:|--:|--:|"
    for sweep, costs in fits(points).items():
        for cost, f in costs.items():
            cells = [f"{f['from']:,}", f"{f['to']:,}", WORDS[cost], fixed(f["exponent"]), f"×{fixed(f['off'])}"]
            yield f"| {sweep} | {' | '.join(cells)} | {fixed(f['last'])} |"


def fixed(value: float) -> str:
    """Two digits, the same on every machine: what BLAS leaves of a zero is no sign, and of a tie no direction."""
    return f"{round(value, 9):z.2f}"


def parts() -> dict[str, list[str]]:
    """What stands between the markers of the page, by the markers' name."""
    result, table4 = latest(find("scale")), latest(find("faps/table4"))
    assert result, "do: fedspan bench scale"
    assert table4, "do: fedspan bench faps/table4"
    points, numbers = result["points"], measured(result["points"], table4)
    known: dict[str, Any] = {"np": np, **{name: float(f"{value:.4g}") for name, value in numbers.items()}}
    start = [f"{name} = {known[name]!r}  # {SAYS[name]}" for name in numbers]
    blocks = {"devices": DEVICES, "cohort": COHORT, "tree": TREE, "first": FIRST}
    return {
        "points": list(tables(points)),
        "exponents": list(exponents(points)),
        "measured": ["```python", "import numpy as np", "", *start, "```"],
        **{name: list(steps(lines, known)) for name, lines in blocks.items()},
    }


def write(path: Path = PAGE) -> None:
    for mark, lines in parts().items():
        put(lines, path, mark)
