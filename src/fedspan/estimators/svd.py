"""Truncated singular value decomposition of rows that stay at their clients: PCA without centering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedspan.core.participation import Participation
from fedspan.core.run import Info
from fedspan.estimators.export import svd_to_sklearn
from fedspan.estimators.pca import FederatedPCA


class FederatedSVD(FederatedPCA):
    """The leading right singular vectors of all clients' rows together.

    As `FederatedPCA`, but nothing is taken off the rows: `components_` are the right singular vectors,
    `singular_values_` their values, `transform(X)` is X·components_ᵀ (divided by `scale_` if scaling is asked for),
    and `explained_variance_` is the second moment singular_values_²/(n-1), not a variance around the mean.

    Parameters:
        n_components: How many singular vectors to compute.
        solver: As in `FederatedPCA`; "auto" takes fedpower if `local_steps` or `participation` is set.
        scale: Divide by the standard deviation over all clients' rows together; constant columns stay as they are.
        tol: Stop when the scaled KKT violation is at most this, where the server can see it; else the solver's own
            measure. 0 runs all rounds.
        max_rounds: Stop after this many rounds.
        local_steps: Iterations at the clients between two communications (fedpower, localpower).
        bits: Bits per number on both links: 2 to 16 (ssi, localpower, fedpower) or "auto" (krylov, davidson).
        participation: A `Participation`, the part of the clients that is asked in each round (fedpower).
        privacy: `RowDP` for a guarantee to every single row, or `PaperDP`. None: no noise.
        secure: True, or `Secure(threshold=…)`: the server sees only sums over the clients.
        engine: An engine, or a function from the clients' data to one; None: all clients in this process.
        callback: Called after each round with `info.round`, `info.estimate` (the vectors so far) and `info.metrics`.
        checkpoint: A folder. After every round the run is saved there; a `fit` that finds it goes on from it.
        random_state: Seed of all random streams; None: drawn, and kept as `seed_`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import FederatedSVD
        >>> A = np.random.default_rng(0).normal(size=(90, 4))
        >>> svd = FederatedSVD(n_components=2, random_state=0).fit([A[:30], A[30:]])
        >>> bool(np.allclose(svd.singular_values_, np.linalg.svd(A)[1][:2]))
        True
    """

    center = False  # a constant of the class, not a parameter

    def __init__(
        self,
        n_components: int = 2,
        *,
        solver: Any = "auto",
        scale: bool = False,
        tol: float = 1e-6,
        max_rounds: int = 200,
        local_steps: int | None = None,
        bits: int | str | None = None,
        participation: Participation | None = None,
        privacy: Any = None,
        secure: Any = False,
        engine: Any = None,
        callback: Callable[[Info], None] | None = None,
        checkpoint: Any = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components, solver=solver, center=False, scale=scale, tol=tol, max_rounds=max_rounds,
            local_steps=local_steps, bits=bits, participation=participation, privacy=privacy, secure=secure,
            engine=engine, callback=callback, checkpoint=checkpoint, random_state=random_state,
        )  # fmt: skip

    def to_sklearn(self) -> Any:
        """A fitted scikit-learn `TruncatedSVD`, or if `scale` was asked for a `Pipeline` of a scaler and it.

        Its `explained_variance_` is not set: scikit-learn means a variance around the mean there.
        """
        return svd_to_sklearn(self)
