"""Figure 1 of the FAPS paper, and what it leaves out: `python benchmarks/faps/leakage.py [--write docs/audit.md]`.
With `--aware`, the attack on all rounds of FAPS together (`faps_fit`), on a smaller problem.

The setting is the paper's: a random A with n features and 10·n rows (here at 8 equal clients), p = n/10 components, no
centering. The server attacks client 0 with what was on its wire: by symmetric least squares (Proposition 2; the
smallest error over eight cut-offs, so for an attacker who happens to choose the best), and on FAPS also with what an
attacker knows who has read its listing. Errors are ‖M̂ - M_0‖ / ‖M_0‖; KKT is ‖(I - ZZᵀ)MZ‖ / tr(M) of the true M.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fedspan
from fedspan.algorithms import Faps, Ssi
from fedspan.audit.attacks import Pairs, error, faps_fit, faps_leak
from fedspan.channel import Channel
from fedspan.engines import InProcess
from fedspan.engines.transcript import Talk, Transcript

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from page import put

PAPER: dict[str, Any] = {"start": "paper", "penalty": "paper", "beta": 0.15, "cap": 60}  # X_i = Z, rule (25)
SHOWN = {1, 2, 4, 6, 8, 9, 10, 11, 12, 15, 20, 30, 40, 60}


def clients(n: int, seed: int) -> dict[str, np.ndarray]:
    """Eight equal clients of a random matrix."""
    A = np.random.default_rng(seed).normal(size=(10 * n, n))
    return {str(i): part for i, part in enumerate(np.array_split(A, 8))}


def heard(solver: Any, rows: dict[str, np.ndarray], rounds: int, seed: int) -> Iterator[Talk]:
    """All that client 0 was asked and answered, from the wire."""
    with tempfile.TemporaryDirectory() as folder:
        fedspan.run(solver, InProcess(rows, transcript=folder), rounds=rounds, seed=seed)
        yield from (talk for talk in Transcript(folder).talks(Channel()) if talk.client == "0" and talk.round > 0)


def course(
    solver: Any, rows: dict[str, np.ndarray], M: np.ndarray, rounds: int, seed: int
) -> dict[int, dict[str, float]]:
    """The figures of each round that is shown."""
    M0, out, pairs = rows["0"].T @ rows["0"], {}, Pairs(len(M))
    energy, top = float(np.trace(M0)), float(np.linalg.eigvalsh(M0)[-1])
    for talk in heard(solver, rows, rounds, seed):
        if talk.task not in ("multiply", "split"):
            continue
        Z, Y = talk.question["Z"], talk.answer["Y"]
        pairs.add(Z, Y)
        if talk.round not in SHOWN:
            continue
        MZ, k = M @ Z, Z.shape[1]
        row = {"kkt": float(np.linalg.norm(MZ - Z @ (Z.T @ MZ)) / np.trace(M)), "attack": pairs.best(M0)}
        row["informed"] = pairs.best(M0, trace=energy)
        if talk.task == "split":
            leak = faps_leak(Z, Y, np.eye(k) * (float(talk.answer["objective"]) / k), energy)
            M0Z = M0 @ Z
            row["off"] = error(leak.off_diagonal, M0Z - Z @ (Z.T @ M0Z))
            row["beta"], row["blocks"] = leak.beta / top, error(leak.M, M0)
        out[talk.round] = row
        print(type(solver).__name__, talk.round, {name: f"{value:.2e}" for name, value in row.items()}, flush=True)
    return out


def aware(n: int, seed: int, rounds: int) -> list[str]:
    """The error after so many rounds, of the best step of the fit: an attacker who happens to stop there."""
    rows = clients(n, seed)
    M0 = rows["0"].T @ rows["0"]
    energy, shown = float(np.trace(M0)), [t for t in (10, 12, 20, 40, 80) if t <= rounds]
    lines = [
        f"n = {n}, p = {n // 10}, seed {seed}. A blind guess has error {error(np.eye(n) * (energy / n), M0):.2f}.",
        "",
        f"| rounds seen | {' | '.join(map(str, shown))} |",
        "|---|" + "--:|" * len(shown),
    ]
    for name, options in (("faps", {}), ("faps, the paper's start, rules (14) and (25)", PAPER)):
        talks = list(heard(Faps(k=n // 10, tol=0, center=False, **options), rows, rounds, seed))
        splits = [(t.question["Z"], t.answer["Y"], float(t.answer["objective"])) for t in talks if t.task == "split"]
        found = (min(error(M, M0) for M in faps_fit(splits[:t], np.eye(n) * (energy / n))) for t in shown)
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in found)} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1000, help="features (default 1000, as in the paper)")
    parser.add_argument("--seed", type=int, default=0, help="of the data and of the runs (default 0)")
    parser.add_argument("--rounds", type=int, default=40, help="of FAPS as it is here (default 40); the others have 12")
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the tables into these Markdown files")
    parser.add_argument("--aware", action="store_true", help="instead: the attack on all rounds of FAPS together")
    args = parser.parse_args()
    if args.aware:
        lines = aware(args.n, args.seed, args.rounds)
        for path in args.write:
            put(lines, path, "aware")
        return
    rows, p = clients(args.n, args.seed), args.n // 10
    M = sum(A.T @ A for A in rows.values())
    M0 = rows["0"].T @ rows["0"]
    guess = error(np.eye(args.n) * (np.trace(M0) / args.n), M0)
    settings: dict[str, tuple[Any, int]] = {
        "ssi": (Ssi(k=p, tol=0, center=False), 12),
        "faps": (Faps(k=p, tol=0, center=False), args.rounds),
        "faps, the paper's start, rule (14)": (Faps(k=p, tol=0, center=False, **PAPER), 12),
        "faps, the paper's start, rule (26)": (Faps(k=p, tol=0, center=False, rule="change", **PAPER), 12),
    }
    found = {name: course(solver, rows, M, most, args.seed) for name, (solver, most) in settings.items()}
    faps = [name for name in found if name != "ssi"]

    def cell(name: str, t: int, what: str) -> str:
        value = found[name].get(t, {}).get(what)
        return "" if value is None else f"{value:.1e}" if 0 <= value < 0.01 else f"{value:.2f}"

    attack = [
        f"n = {args.n}, p = {p}, 8 clients of {len(rows['0'])} rows, seed {args.seed}. A blind guess (the trace, "
        f"spread evenly) has error {guess:.2f}.",
        "",
        f"| round | ssi: KKT | error | {' | '.join(f'{name}: error' for name in faps)} |",
        "|--:|" + "--:|" * (2 + len(faps)),
    ]
    for t in sorted(set().union(*found.values())):
        errors = " | ".join(cell(name, t, "attack") for name in found)
        attack.append(f"| {t} | {cell('ssi', t, 'kkt')} | {errors} |")
    leaks = [
        "| | round | KKT | error of P⊥M₀Z as sent | β₀ as read / λ_max | error of M₀ from these | least squares, "
        "trace known |",
        "|---|" + "--:|" * 6,
    ]
    for name in faps:
        for t in (t for t in (1, 2, 10, 12, 20, 40, 60) if t in found[name]):
            figures = (cell(name, t, what) for what in ("kkt", "off", "beta", "blocks", "informed"))
            leaks.append(f"| {name} | {t} | {' | '.join(figures)} |")
    print("\n".join([*attack, "", *leaks]))
    for path in args.write:
        put(attack, path, "attack")
        put(leaks, path, "leaks")


if __name__ == "__main__":
    main()
