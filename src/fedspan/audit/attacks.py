"""Attacks on what clients send, to measure what it gives away. They see what the server sees, and nothing else.

Notation: M = A_iᵀA_i (d, d) of one client; Z_t (d, k) what it was asked with and Y_t (d, k) what it answered, as they
were on the wire; P⊥ = I - ZZᵀ; a one row.

- `Pairs`: M from Y_t = M Z_t (FAPS, Proposition 2; FedPower, Example 1). The paper takes the M of least norm that
  solves these equations; we also use that M is symmetric, which the attacker knows. Both are least squares, so that
  noise and rounding are averaged over rounds as well as they can be.
- `faps_leak`: what the mask of FAPS does not hide in one round; `faps_fit`: what follows from all of them.
- `membership`: was this row there? `mu_lower_bound`: how well can that be told over many runs?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta

from fedspan._types import Array
from fedspan.errors import InputError

CUTS = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 0.1, 0.5)  # directions of Z below this share of the strongest: not used


class Pairs:
    """The pairs (Z_t, Y_t) of one client, as one least-squares problem: min Σ_t ‖M Z_t - Y_t‖² over symmetric M.

    The stacked rows Z_tᵀ are held as R (at most 2d, d) and Y_tᵀ as S, by orthogonal maps: so a further round costs
    little, and no digits are lost to normal equations (the Z_t of SSI soon become nearly dependent).
    """

    def __init__(self, d: int) -> None:
        self.d = d
        self.R, self.S = np.zeros((0, d)), np.zeros((0, d))
        self.off = 0.0  # the part of Σ ‖Y_t‖² that no M can explain, as far as it was split off
        self.size = 0.0  # Σ ‖Y_t‖²

    def add(self, Z: Array, Y: Array) -> None:
        """One round more."""
        if Z.ndim != 2 or Z.shape != Y.shape or len(Z) != self.d:
            raise InputError(f"Z and Y must have the same shape ({self.d}, k), but have {Z.shape} and {Y.shape}.")
        self.R, self.S = np.vstack([self.R, Z.T]), np.vstack([self.S, Y.T])
        self.size += float(np.sum(np.square(Y, dtype=np.float64)))
        if len(self.R) > 2 * self.d:
            self._compress()
        self.__dict__.pop("_factors", None)

    def _compress(self) -> None:
        Q, self.R = np.linalg.qr(self.R)
        S = Q.T @ self.S
        self.off += max(float(np.sum(self.S**2) - np.sum(S**2)), 0.0)
        self.S = S

    @cached_property
    def _factors(self) -> tuple[Array, Array, Array]:
        """σ (d,), V (d, d) and G = UᵀSV (d, d) of R = U diag(σ) Vᵀ, filled up with zeros."""
        if len(self.R) > self.d:
            self._compress()
        U, s, Vt = np.linalg.svd(self.R) if len(self.R) else (np.eye(0), np.zeros(0), np.eye(self.d))
        sigma, G = np.zeros(self.d), np.zeros((self.d, self.d))
        sigma[: len(s)] = s
        G[: len(s)] = U[:, : len(s)].T @ self.S @ Vt.T
        return sigma, Vt.T, G

    def rank(self, cut: float = CUTS[0]) -> int:
        """How many directions were asked for, not counting those below `cut` of the strongest."""
        sigma = self._factors[0]
        return int(np.sum(sigma > cut * sigma[0]))

    def share(self, cut: float = CUTS[0]) -> float:
        """The part of the d(d+1)/2 entries of a symmetric M (in some basis) that the equations determine."""
        free = self.d - self.rank(cut)
        return 1.0 - free * (free + 1) / (self.d * (self.d + 1))

    def solve(self, cut: float = CUTS[0], prior: Array | None = None, trace: float | None = None) -> Array:
        """The symmetric M nearest to `prior` (default 0: of least norm) among those that fit best.

        If the trace of M is known, what the answers leave of it is spread evenly over the directions not asked for.
        """
        V = self._factors[1]
        return V @ self._solve(cut, None if prior is None else V.T @ prior @ V, trace) @ V.T

    def _solve(self, cut: float, P: Array | None, trace: float | None) -> Array:
        """In the basis V: M_ab = (σ_a G_ab + σ_b G_ba) / (σ_a² + σ_b²), and P_ab where neither was asked for.

        That is the symmetric Procrustes problem (Higham 1988).
        """
        sigma, _, G = self._factors
        s = np.where(sigma > cut * sigma[0], sigma, 0.0)
        top = s[:, None] * (G if P is None else G - sigma[:, None] * P)
        below = s[:, None] ** 2 + s[None, :] ** 2
        M = (top + top.T) / np.where(below > 0, below, 1.0)
        if P is not None:
            M += P
        free = s == 0
        if trace is not None and free.any():
            M[free, free] += (trace - float(np.trace(M))) / np.sum(free)
        return M

    def misfit(self, M: Array) -> float:
        """√(Σ ‖M Z_t - Y_t‖² / Σ ‖Y_t‖²): near 0 if the answers were products with one matrix."""
        gap = self.off + float(np.sum((self.R @ M - self.S) ** 2))
        return float(np.sqrt(gap / self.size)) if self.size > 0 else 0.0

    def best(self, truth: Array, prior: Array | None = None, trace: float | None = None) -> float:
        """The smallest relative error over all CUTS: an attacker who happens to take the best one."""
        V = self._factors[1]
        T, P = V.T @ truth @ V, None if prior is None else V.T @ prior @ V
        return min(error(self._solve(cut, P, trace), T) for cut in CUTS)


def error(guess: Array, truth: Array) -> float:
    """‖M̂ - M‖_F / ‖M‖_F."""
    size = float(np.linalg.norm(truth))
    return float(np.linalg.norm(guess - truth)) / size if size > 0 else float(np.linalg.norm(guess))


class FapsLeak(NamedTuple):
    """What one round of FAPS shows of a client, mask and all."""

    off_diagonal: Array  # (d, k) P⊥Y, which tends to P⊥MZ; equals it if X_i = Z
    beta: float  # tr(ZᵀY)/k, which tends to β_i, and that tells the size of ‖A_i‖₂²
    M: Array  # (d, d) what follows for M


def faps_leak(Z: Array, Y: Array, T: Array, trace: float | None = None) -> FapsLeak:
    """From one exchange and T = ZᵀMZ, as the closing exchange shows it; before that (objective/k)·I stands for it.

    Of M the blocks on and beside Z follow. P⊥MP⊥ stays unknown: it is taken as 0, or if the trace of M is known, as a
    multiple of P⊥.
    """
    H = Z.T @ Y
    off = Y - Z @ H
    M = Z @ T @ Z.T + off @ Z.T + Z @ off.T
    if trace is not None and len(Z) > len(T):
        M += (np.eye(len(Z)) - Z @ Z.T) * ((trace - float(np.trace(T))) / (len(Z) - len(T)))
    return FapsLeak(off, float(np.trace(H)) / len(H), M)


def faps_fit(shown: Sequence[tuple[Array, Array, float]], start: Array, steps: int = 150) -> Iterator[Array]:
    """M from all rounds of FAPS, by an attacker who has read its listing: (Z_t, Y_t, objective f_t = tr(ZᵀMZ)) each.

    P⊥MZ = P⊥Y (20) holds the better the nearer X_i is to Z, and how near it is shows in ZᵀY, which is β_i·I if they
    span the same. So: least squares Σ w_t²‖P⊥(MZ_t - Y_t)‖² + (tr(Z_tᵀMZ_t) - f_t)²/k over symmetric M, with
    w_t = 1/‖ZᵀY - βI‖, by conjugate gradients from `start`, what is known without. Yields M after each step: the later,
    the closer to the equations and the more of their errors; an attacker has to guess where to stop.
    """
    rounds = []
    for Z, Y, f in shown:
        H = Z.T @ Y
        apart = np.linalg.norm(H - np.eye(len(H)) * (np.trace(H) / len(H)))
        rounds.append((Z, Y - Z @ H, f, 1.0 / max(float(apart), 1e-3 * float(np.linalg.norm(H)), 1e-300)))
    d, k = rounds[0][0].shape
    heaviest = max(w for *_, w in rounds)

    def equations(M: Array) -> Iterator[tuple[Array, float]]:
        for Z, _, _, w in rounds:
            MZ = M @ Z
            yield (MZ - Z @ (Z.T @ MZ)) * (w / heaviest), float(np.sum(Z * MZ)) / np.sqrt(k)

    M = start
    R = [
        (off * (w / heaviest) - E, f / np.sqrt(k) - e)
        for (_, off, f, w), (E, e) in zip(rounds, equations(M), strict=True)
    ]
    P, before, first = np.zeros((d, d)), 1.0, 0.0
    for _ in range(steps):
        G = np.zeros((d, d))
        for (Z, _, _, w), (E, e) in zip(rounds, R, strict=True):
            G += ((E - Z @ (Z.T @ E)) * (w / heaviest) + Z * (e / np.sqrt(k))) @ Z.T
        G = (G + G.T) / 2
        now = float(np.sum(G**2))
        first = max(first, now)
        if now <= 1e-24 * first:  # solved: further steps would amplify rounding errors only
            return
        P = G + (now / before) * P
        before = now
        AP = list(equations(P))
        size = sum(float(np.sum(E**2)) + e**2 for E, e in AP)
        M = M + (now / size) * P
        R = [(E - now / size * dE, e - now / size * de) for (E, e), (dE, de) in zip(R, AP, strict=True)]
        yield M


def success_rate(mu: float) -> float:
    """How often the best test is right that a mechanism of that μ allows, if both answers are equally likely."""
    return float(ndtr(mu / 2))


class Membership(NamedTuple):
    """Whether a row was there: `score` is 1/2 if it was and -1/2 if not, give or take 1/mu."""

    score: float
    mu: float  # how many standard deviations of the noise on the wire lie between the two cases


def membership(seen: Array, with_row: Array, without_row: Array) -> Membership:
    """The test of the strongest attacker, who knows all other rows, and so what would be sent in either case.

    The score is ⟨Y - midpoint, D⟩ / ‖D‖² for the difference D of the two cases (a aᵀZ for products). The noise is
    what is left of `seen` in the case that fits better; entries are taken as independent.
    """
    seen, D = np.ravel(seen).astype(np.float64), np.ravel(with_row - without_row).astype(np.float64)
    size = float(np.linalg.norm(D))
    if size == 0:
        return Membership(0.0, 0.0)
    middle = (np.ravel(with_row) + np.ravel(without_row)) / 2.0
    left = min(float(np.linalg.norm(seen - middle - half * D)) for half in (0.5, -0.5))
    noise = left / np.sqrt(D.size)
    return Membership(float((seen - middle) @ D) / size**2, size / noise if noise > 0 else np.inf)


def mu_lower_bound(scores_in: Array, scores_out: Array, confidence: float = 0.99) -> float:
    """A lower bound on μ of Gaussian differential privacy, from scores of runs with and without a row.

    The test says "in" above 0. Of a μ-GDP mechanism no test has power 1 - β at level α beyond Φ⁻¹(1-β) - Φ⁻¹(α) = μ;
    so the Clopper-Pearson bounds of both rates, each at (1 - confidence)/2, give μ ≥ Φ⁻¹(low) - Φ⁻¹(high). An audit
    fails if this is above the μ that was promised.
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be between 0 and 1, but is {confidence!r}.")
    hits = []
    for scores in (np.ravel(scores_in), np.ravel(scores_out)):
        if not scores.size or not np.isfinite(scores).all():
            raise InputError("scores_in and scores_out must each hold the finite scores of at least one run.")
        hits.append((int(np.sum(scores > 0)), scores.size))
    tail = (1 - confidence) / 2
    (k_in, n_in), (k_out, n_out) = hits
    low = beta.ppf(tail, k_in, n_in - k_in + 1) if k_in > 0 else 0.0
    high = beta.ppf(1 - tail, k_out + 1, n_out - k_out) if k_out < n_out else 1.0
    return max(float(ndtri(low) - ndtri(high)), 0.0)
