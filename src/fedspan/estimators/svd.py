"""Truncated singular value decomposition of rows that stay at their clients: PCA without centering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sklearn.base import BaseEstimator

from fedspan.estimators._bases.export import svd_to_sklearn
from fedspan.estimators.pca import FederatedPCA


@dataclass(eq=False, repr=False)
class FederatedSVD(FederatedPCA):
    """The leading right singular vectors of all clients' rows together.

    As `FederatedPCA`, but nothing is subtracted from the rows: `components_` are the right singular vectors,
    `singular_values_` their values, `transform(X)` is X·components_ᵀ (divided by `scale_` with scale=True), and
    `explained_variance_` is the second moment singular_values_²/(n-1), not a variance around the mean.

    Parameters:
        n_components: How many components to compute.
        solver: The method; "auto" chooses one by its expected time, and fedpower if `local_steps` or `participation` is
            set. The others are those of `FederatedPCA`.
        scale: Whether to divide each column by its standard deviation over all clients' rows. Constant columns stay as
            they are.
        tol: Stop when the violation or the change is at most this; 0 runs all rounds.
        max_rounds: Stop after this many rounds in any case.
        local_steps: Iterations at the clients between two communications (fedpower, localpower).
        bits: Bits per number on both links; "auto" takes just enough for tol. An integer from 2 to 16 is for ssi,
            localpower and fedpower, "auto" for krylov and davidson; None sends float64.
        width: Columns of krylov's first block; "auto" is several times n_components, for few rounds: about half of
            those of None, the narrow form. Such a run opens with a sum of random mixes of the clients' leading
            eigenvectors. Without `secure` the server sees each client's mix, and so its leading subspace.
        angle_tol: Stop when the components are this near to the exact ones, as an angle in radians (krylov): when
            `angle_bound_` is at most that, whatever `tol` is. Not with bits="auto", width=None or a warm start.
        check: Whether a solver that stops by a measure of its own ends with a true residual: one more exchange. It is
            for faps, whose `tol` is then the KKT violation as well, and for solvers with `bits` as a number. The others
            see the true residual in every round.
        participation: How many clients take part in each round (fedpower), as a `Participation`; None: all.
        privacy: The differential privacy to keep, or None to add no noise: `RowDP`, or `PaperDP`.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is the vectors so far.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. None draws one, which is kept as `seed_`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import FederatedSVD
        >>> A = np.random.default_rng(0).normal(size=(90, 4))
        >>> svd = FederatedSVD(n_components=2, random_state=0).fit([A[:30], A[30:]])
        >>> bool(np.allclose(svd.singular_values_, np.linalg.svd(A)[1][:2]))
        True
    """

    task: ClassVar[str] = "svd"
    center: ClassVar[bool] = False  # type: ignore[misc]  # a constant of the class, not a parameter
    whiten: ClassVar[bool] = False  # type: ignore[misc]

    def to_sklearn(self) -> BaseEstimator:
        """A fitted scikit-learn `TruncatedSVD`, or a `Pipeline` of all that the model does with a table, and it.

        Its `explained_variance_` is not set: scikit-learn means a variance around the mean there.
        """
        return svd_to_sklearn(self)
