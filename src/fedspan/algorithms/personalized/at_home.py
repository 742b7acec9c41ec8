"""Personalized components that never leave their client: it leans on a shared part as far as its own rows say.

Used where the shared part is private (a noised Gram matrix of all rows): what a client does with it at home costs no
privacy, however often it is repeated. Notation: shrinkage.py.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.personalized.shrinkage import LAMBDAS, mix_moments, size_prior, to_shares
from fedspan.numerics.folds import Folded, Prep
from fedspan.numerics.operators import HeldMatrix

_FOLDS = 10  # at home they cost time only, and with three the choice is left to chance
_FEWEST = 6  # rows from which a choice can be made


def choose_share_at_home(A: HeldMatrix, prep: Prep, part: Arrays, r: int) -> Array:
    """ω with the least loss on held-out rows of this client alone: 0 is local, and 1 the shared components."""
    shares = to_shares(np.array(LAMBDAS))
    n = A.shape[0]
    if n < _FEWEST:
        return shares[-1]
    folds = min(_FOLDS, n // 2)
    rows, Q, losses = Folded(A, prep, np.arange(n) % folds), part["Q"], np.zeros(len(shares))
    for f in range(folds):
        train, test = rows.split(f)
        P = train.basis(Q)
        C = Q if P is None else P.T @ Q
        K = size_prior(train, int(part["kind"]), part["v"], part["rows"]) * (C * part["w"]) @ C.T
        U = mix_moments(train.within(P), K, shares, r)
        losses += test.trace - np.einsum("lir,lir->l", U, test.within(P) @ U)
    return shares[int(np.argmin(losses))]
