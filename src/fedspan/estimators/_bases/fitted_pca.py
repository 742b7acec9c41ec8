"""What a fitted PCA or SVD does with rows: coordinates, likelihoods, limits for watching, plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array, Matrix
from fedspan.data.clients import name_clients
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import FederatedEstimator, get_feature_names
from fedspan.estimators._bases.new_rows_as_fitted import prepare_rows
from fedspan.estimators.notebook.plots import ComponentsDisplay, ScoresDisplay, ScreeDisplay, group_rows
from fedspan.estimators.parameters import is_number
from fedspan.numerics.pca_model.control_limits import limit_spe, limit_t2
from fedspan.numerics.pca_model.coordinates import project_rows, square_distances
from fedspan.numerics.pca_model.gaussian import GaussianModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FittedPCA(FederatedEstimator):
    """The half of `FederatedPCA` that needs no clients."""

    if TYPE_CHECKING:  # what `fit` learns
        whiten: bool
        components_: Array
        explained_variance_: Array
        explained_variance_ratio_: Array
        mean_: Array
        scale_: Array
        noise_variance_: float
        noise_variances_: Array | None
        n_samples_: float
        rest_: Array | None
        scree_: Array
        site_drift_: dict[str, list[float]] | None

        def transform(self, X: object) -> Array: ...

    def _sum_squares(self) -> float:
        """tr M of all rows."""
        shares = float(self.explained_variance_ratio_.astype(np.float64).sum())
        return float(self.explained_variance_.astype(np.float64).sum()) / shares * (self.n_samples_ - 1)

    def measure_drift(self, clients: Mapping[str, object] | Sequence[object]) -> dict[str, dict[str, float]]:
        """How the rows of each client lie in the model: whether a site has drifted away from the others.

        It is computed where the rows are, and nothing is sent. The report shows it, unless `secure` or `privacy` hides
        what single clients have.

        Parameters:
            clients: Rows by client, as for `transform`.

        Returns:
            By client: `rows`; `t2`, the mean of `hotelling_t2` over the number of components, 1 for rows like those of
            the fit; `far`, the share of rows above `t2_limit()`; `spe`, the mean of `spe` as a share of what the fit
            left out, about 1 for such rows; `off`, the share above `spe_limit()`, nan if there is no limit.
        """
        check_is_fitted(self)
        n, k = float(self.n_samples_), len(self.components_)
        left_out = max(self._sum_squares() / (n - 1) - float(self.explained_variance_.sum()), 0.0)
        far, off = self.t2_limit(), self.spe_limit() if self.rest_ is not None else np.nan
        found = {}
        for name, source in name_clients(clients).items():
            rows = source() if callable(source) else source
            t2, spe = self.hotelling_t2(rows), self.spe(rows)
            found[name] = {
                "rows": float(len(t2)),
                "t2": float(t2.mean()) / k,
                "far": float(np.mean(t2 > far)),
                "spe": float(spe.mean()) / left_out if left_out > 0 else np.nan,
                "off": float(np.mean(spe > off)) if not np.isnan(off) else np.nan,
            }
        self.site_drift_ = {name: list(line.values()) for name, line in found.items()}
        return found

    def find_projection(self) -> Array:
        """What `transform` multiplies rows by, once the mean is subtracted, (d, k)."""
        W = self.components_.T / self.scale_[:, None]
        return W / np.sqrt(self.explained_variance_) if self.whiten else W

    def _take_rows(self, X: object) -> Matrix:
        return prepare_rows(self, X, dtype=[np.float64, np.float32])

    def inverse_transform(self, X: object) -> Array:
        """Rows with those coordinates, (n, d)."""
        check_is_fitted(self)
        Z = np.asarray(X)
        Z = Z if Z.dtype in (np.float64, np.float32) else Z.astype(np.float64)
        if Z.ndim != 2 or Z.shape[1] != len(self.components_):
            raise InputError(f"Rows must have {len(self.components_)} coordinates, but the array has shape {Z.shape}.")
        Z = Z * np.sqrt(self.explained_variance_) if self.whiten else Z
        return Z @ self.components_ * self.scale_ + self.mean_

    def score_samples(self, X: object) -> Array:
        """The log-likelihood of each row under probabilistic PCA, (n,), as scikit-learn's PCA.score_samples.

        Whitening changes coordinates, not the distribution of the rows: it does not change their likelihood.
        """
        check_is_fitted(self)
        rows = self._take_rows(X)
        coordinates = project_rows(rows, self.mean_, self.components_.T / self.scale_[:, None])
        return self._find_gaussian().log_likelihoods(coordinates, square_distances(rows, self.mean_, self.scale_))

    def score(self, X: object, y: object = None) -> float:
        """Mean log-likelihood of rows under probabilistic PCA, as scikit-learn's PCA.score."""
        return float(self.score_samples(X).mean())

    def hotelling_t2(self, X: object) -> Array:
        """Hotelling's T² of each row, (n,): how far it lies from the mean inside the components, in deviations."""
        Z = self.transform(X)
        return ((Z if self.whiten else Z / np.sqrt(self.explained_variance_)) ** 2).sum(axis=1)

    def spe(self, X: object) -> Array:
        """The squared prediction error of each row, (n,): how far it lies from the components."""
        check_is_fitted(self)
        rows = self._take_rows(X)
        inside = project_rows(rows, self.mean_, self.components_.T / self.scale_[:, None])
        squares = square_distances(rows, self.mean_, self.scale_)
        return np.maximum(squares - (inside.astype(np.float64) ** 2).sum(axis=1), 0.0)

    def t2_limit(self, confidence: float = 0.99) -> float:
        """What `hotelling_t2` of that share of new rows stays below, if rows are normal (by the F distribution)."""
        check_is_fitted(self)
        _check_confidence(confidence)
        k = len(self.components_)
        if not self.n_samples_ > k:
            raise InputError(f"A limit for {k} components needs more than {k} rows, but there were {self.n_samples_}.")
        return limit_t2(k, float(self.n_samples_), confidence)

    def spe_limit(self, confidence: float = 0.99) -> float:
        """The same for `spe`, by Jackson and Mudholkar from the sums that `gram` knows of what is left out."""
        check_is_fitted(self)
        _check_confidence(confidence)
        if self.rest_ is None:
            raise InputError(
                "A limit for spe needs the variances that are left out, which this solver does not know, nor gram with "
                "more than 2000 features or with privacy; fit with solver='gram'."
            )
        shares = float(self.explained_variance_ratio_.astype(np.float64).sum())
        total = float(self.explained_variance_.astype(np.float64).sum()) / shares
        return total * limit_spe(self.rest_, confidence)

    def get_covariance(self) -> Array:
        """The covariance of rows under probabilistic PCA, (d, d); without centering, their second moments."""
        check_is_fitted(self)
        return self._find_gaussian().covariance().astype(self.components_.dtype)

    def get_precision(self) -> Array:
        """The inverse of `get_covariance`, (d, d), without inverting it."""
        check_is_fitted(self)
        return self._find_gaussian().precision().astype(self.components_.dtype)

    def _find_gaussian(self) -> GaussianModel:
        V, variances = self.components_.astype(np.float64), self.explained_variance_.astype(np.float64)
        return GaussianModel(V, variances, self.noise_variance_, self.scale_.astype(np.float64))

    @property
    def n_components_(self) -> int:
        """How many components there are."""
        check_is_fitted(self)
        return len(self.components_)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def plot_components(self, ax: Axes | None = None) -> ComponentsDisplay:
        """Draw the components as a heat map of loadings, on matplotlib axes."""
        check_is_fitted(self)
        names = get_feature_names(self)
        return ComponentsDisplay(self.components_, None if names is None else [*map(str, names)]).plot(ax)

    def plot_scree(self, ax: Axes | None = None) -> ScreeDisplay:
        """Draw the variances that were found, and with n_components="auto" the line that decided."""
        check_is_fitted(self)
        noise = None if self.noise_variances_ is None else float(np.quantile(self.noise_variances_, 0.95))
        return ScreeDisplay(self.scree_, len(self.components_), noise).plot(ax)

    def plot_scores(
        self, X: object, *, labels: Sequence[object] | None = None, ax: Axes | None = None
    ) -> ScoresDisplay:
        """Draw rows by their coordinates in the first two components, coloured by their labels if there are some."""
        Z = self.transform(X)
        if Z.shape[1] < 2:
            raise InputError("plot_scores needs two components, but the model has one.")
        ratio = self.explained_variance_ratio_
        shown = (f"component 1 ({ratio[0]:.1%})", f"component 2 ({ratio[1]:.1%})")
        return ScoresDisplay(group_rows(Z[:, :2], labels), shown).plot(ax)


def _check_confidence(confidence: float) -> None:
    if not is_number(confidence) or not 0 < confidence < 1:
        raise InputError(f"confidence must be above 0 and below 1, but is {confidence!r}.")
