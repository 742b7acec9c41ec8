"""Principal components of rows that stay at their clients, with scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms import Prior, SpectralState
from fedspan.algorithms.spectral.noisy import NoisyState
from fedspan.algorithms.spectral.parallel_analysis import ParallelAnalysis
from fedspan.core.ledger import Ledger, Note
from fedspan.core.protection import RETRIES
from fedspan.core.run import Result
from fedspan.data.clients import Schema, open_clients
from fedspan.errors import InputError
from fedspan.estimators._bases.export import pca_to_sklearn
from fedspan.estimators._bases.federated_estimator import (
    OF_RUN,
    OF_TABLES,
    ClientData,
    FitOptions,
)
from fedspan.estimators._bases.fitted_pca import FittedPCA
from fedspan.estimators._bases.onnx_export import projection_to_onnx
from fedspan.estimators._options.component_count import (
    NoiseLevel,
    check_parallel,
    choose_count,
    count_to_solve,
    read_noise_level,
)
from fedspan.estimators._options.private_solvers import describe_error, measure_rows
from fedspan.estimators._options.row_weights import ClientWeight, SampleWeight, weigh_clients
from fedspan.estimators._options.spectral_parameters import SpectralParameters
from fedspan.estimators._options.spectral_solvers import choose_solver
from fedspan.estimators.launch import count_sharers, secure_from, warn_caller
from fedspan.estimators.parameters import check_parameters, is_number, is_whole
from fedspan.numerics.orthonormal import fix_signs
from fedspan.numerics.pca_model.coordinates import project_rows
from fedspan.numerics.pca_model.kept_sums import KeptSums, add_sums
from fedspan.numerics.rayleigh_ritz import rayleigh_ritz

if TYPE_CHECKING:
    pass

_DRAWN_BEYOND = 20  # components that are not kept, but drawn
_ACCURACIES = ("kkt", "change", "floor")  # what a solver may know of its own accuracy


@dataclass(eq=False, repr=False)
class FederatedPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, FittedPCA, SpectralParameters):  # type: ignore[misc]
    """Principal component analysis of rows that are spread over clients, as if they were in one place.

    Parameters:
        n_components: How many components to compute. A share of the variance (0.95) takes as many as explain more than
            that; "mle" takes the most probable number (Minka's estimate); "auto" those that are larger than in rows
            with random signs (parallel analysis); None takes all that there are.
        solver: The method; "auto" chooses one by its expected time. "gram" is exact in one round of d×d numbers,
            "krylov" takes a few rounds of d×k, "davidson" fewer (but shows each client's own subspace to the server).
            "faps", "ssi", "localpower", "fedpower", "uda", "wda" and "drsvd" are the papers' methods. An object of
            `fedspan.algorithms` sets options that only this solver has; `fedspan.Auto` takes bandwidth and latency
            into account. `ledger_.started` says which was chosen and why.
        center: Whether to subtract the mean over all clients' rows. No client shows its own mean.
        scale: Whether to divide each column by its standard deviation over all clients' rows. Constant columns stay as
            they are.
        whiten: Whether `transform` divides each coordinate by its standard deviation. Whitened coordinates have
            variance 1 and are not correlated.
        tol: Stop when the violation or the change is at most this; 0 runs all rounds. It is the scaled KKT violation
            ‖(I - ZZᵀ)MZ‖_F / tr(M) where the server can see it, else the solver's own measure.
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
        privacy: The differential privacy to keep, or None to add no noise. `RowDP(epsilon, delta, row_norm)` is a
            guarantee for every single row; `PaperDP` is FedPower's own noise, to reproduce its tables.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`. With RowDP the
            clients then share the noise, which is √(number of clients) smaller.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is the components so far.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. None draws one, which is kept as `seed_`.

    Attributes:
        n_components_: k, how many components there are.
        components_: (k, d), orthonormal rows, the one of most variance first. They and what follows are float32 if all
            rows are, as in scikit-learn.
        explained_variance_: (k,), the variance along each component.
        explained_variance_ratio_: (k,), the same as a share of the variance of all features.
        singular_values_: (k,), of all centred rows together.
        mean_: (d,), what is subtracted from the rows.
        scale_: (d,), what they are divided by; ones without `scale`.
        noise_variance_: The mean variance of what is left out: of the min(n_samples_, d) - k other components, as in
            scikit-learn.
        basis_, basis_variance_ratio_: What a warm start needs.
        rest_: Σ rᵢ, Σ rᵢ², Σ rᵢ³ over the shares rᵢ of the variance that are left out, for `spe_limit`; None if the
            solver does not know them (`gram` does).
        scree_: (m,), the variances of all components that the run found, up to 20 more than are kept.
        noise_variances_: (10,), with n_components="auto" the largest variances of rows with random signs; else None.
        kept_values_, kept_vectors_, kept_total_: What `partial_fit` keeps of the rows: eigenpairs of their second
            moments, (m,) and (m, d), and their trace; None and 0 after `fit`.
        site_drift_: What `measure_drift` found for each client, or None.
        n_features_in_, feature_names_in_, n_samples_, n_clients_: What the model was fitted on.
        angle_: About how far the space of the components is from the exact one, as the sine of the largest angle;
            nan if the solver does not know.
        angle_bound_: The most that it should be: twice `angle_`, and nan unless two rounds agree. It holds with high
            probability over the random start, and is not proved.
        component_angles_: (k,), the same bound for each component by itself; inf where it cannot be told from another.
        n_rounds_, converged_: How the run ended.
        history_: A dict for every round, round 0 being the opening, with the same keys for every solver: round,
            objective, kkt, change, gap, angle, residual (nan where the solver does not know it), bytes_up, bytes_down
            and seconds.
        ledger_: Bytes, seconds, rounds, who took part, ε spent: see `Ledger`.
        seed_: The seed that repeats the run.

    Examples:
        >>> import numpy as np
        >>> from fedspan import FederatedPCA
        >>> rng = np.random.default_rng(0)
        >>> hospitals = {"north": rng.normal(size=(80, 5)), "south": rng.normal(size=(50, 5))}
        >>> pca = FederatedPCA(n_components=2, random_state=0).fit(hospitals)
        >>> pca.components_.shape, pca.n_samples_
        ((2, 5), 130)
    """

    task: ClassVar[str] = "pca"
    measures: ClassVar[tuple[str, ...]] = ("objective", "kkt", "change", "gap", "angle", "residual")
    learned: ClassVar[tuple[str, ...]] = (
        "components_",
        "explained_variance_",
        "explained_variance_ratio_",
        "singular_values_",
        "mean_",
        "scale_",
        "noise_variance_",
        "basis_",
        "basis_variance_ratio_",
        "rest_",
        "scree_",
        "noise_variances_",
        "kept_values_",
        "kept_vectors_",
        "kept_total_",
        "site_drift_",
        "angle_",
        "angle_bound_",
        "component_angles_",
        *OF_TABLES,
        *OF_RUN,
    )

    def fit(
        self,
        clients: ClientData,
        y: object = None,
        *,
        sample_weight: SampleWeight | None = None,
        client_weight: ClientWeight = "rows",
        warm_start: FederatedPCA | None = None,
        min_clients: int | None = None,
        retries: int = RETRIES,
        ledger: Ledger | None = None,
    ) -> Self:
        """Run the federation until it has converged.

        Parameters:
            clients: One entry per client; rows are samples.
            y: Ignored, as in scikit-learn.
            sample_weight: How often each row counts: one array for each client, in a list or a mapping as `clients`.
            client_weight: What a client counts: "rows" (as its rows say), "equal" (as much as any other), or a mapping
                from clients to numbers. The sum of all weights stays what it was.
            warm_start: A model of nearly the same data, from which krylov and davidson need only a few rounds.
            min_clients: Go on if at least this many clients answer; by default all must. Solvers that need every
                client's answer still do (fedpower does not).
            retries: How often a client that did not answer is asked again. With privacy nothing is repeated.
            ledger: Where to write what happens; by default a new `Ledger`.
        """
        check_parameters(self)
        if not isinstance(warm_start, FederatedPCA | None):
            raise InputError(f"warm_start must be a fitted model or None, but is of type {type(warm_start).__name__}.")
        data, schema = open_clients(clients, in_batches=True)
        data = weigh_clients(data, schema, sample_weight, client_weight, self.privacy)
        ledger = ledger if ledger is not None else Ledger()
        options = FitOptions(ledger, retries, min_clients)
        if self.n_components == "auto":
            result = self._fit_above_noise(data, schema, options, warm_start)
        else:
            k = count_to_solve(self, schema, self.privacy)
            result = self._solve(data, schema, k, options, warm_start)
            self._learn(result, schema.dtype)
        self._keep_columns(schema)
        self.n_clients_ = len(data)
        self._keep_run(result)
        # A solver may stop because it gets no further; converged means that tol was met, if the violation is known.
        if self.angle_tol is None:
            self.converged_ = result.converged and (self.tol == 0 or not result.state.kkt > self.tol)
        else:
            self.converged_ = result.converged and bool(self.angle_bound_ <= self.angle_tol)
        if not self.converged_ and self.tol > 0:
            self._warn_of_accuracy(result)
        elif self.converged_:
            self._warn_if_undetermined(result)
        return self

    def partial_fit(
        self,
        clients: ClientData,
        y: object = None,
        *,
        forgetting: float = 1.0,
        sample_weight: SampleWeight | None = None,
        client_weight: ClientWeight = "rows",
        ledger: Ledger | None = None,
    ) -> Self:
        """Add rows to those of earlier calls, which need not be there any more.

        What is kept of them is kept at the server, in the model: the number of rows, their mean and eigenpairs of their
        second moments. With gram (and "auto") these are all eigenpairs, at most d² numbers, and the answer is that of
        all rows together. With krylov they are those of the basis of the run, and the answer is nearly that.

        Parameters:
            clients: One entry per client, as for `fit`.
            y: Ignored, as in scikit-learn.
            forgetting: By how much all earlier rows count less from now on: 1 keeps them as they are, 0.9 lets what is
                ten calls old count a third.
            sample_weight, client_weight: As for `fit`; they hold for the new rows.
            ledger: Where to write what happens; by default a new `Ledger`.
        """
        check_parameters(self)
        exact = self._check_partial(forgetting)
        kept = self._read_kept()
        batch = type(self)(**self.get_params(deep=False))
        batch.set_params(**({"solver": "gram", "n_components": None} if exact else {}))
        batch.fit(clients, sample_weight=sample_weight, client_weight=client_weight, ledger=ledger)
        d, total = batch.n_features_in_, batch._sum_squares()
        if exact:
            values, vectors = batch.singular_values_.astype(np.float64) ** 2, batch.components_.astype(np.float64)
        else:
            values, vectors = batch.basis_variance_ratio_ * total, batch.basis_
        sums = KeptSums(float(batch.n_samples_), batch.mean_.astype(np.float64), values, vectors, total)
        if kept is not None:
            if len(kept.mean) != d:
                raise InputError(f"The rows must have the {len(kept.mean)} features of the earlier ones, but have {d}.")
            sums = add_sums(kept, sums, forgetting, d if exact else len(values))
        params = self.get_params(deep=False)
        self.__dict__.update(batch.__dict__)
        self.set_params(**params)
        self._learn_sums(sums)
        return self

    def _check_partial(self, forgetting: float) -> bool:
        """Whether the sums can be kept exactly; refused if they cannot be kept at all."""
        if not is_number(forgetting) or not 0 < forgetting <= 1:
            raise InputError(f"forgetting must be above 0 and at most 1, but is {forgetting!r}.")
        if self.solver not in ("auto", "gram", "krylov"):
            raise InputError(f"partial_fit is for solver 'gram', 'krylov' and 'auto', but solver is {self.solver!r}.")
        if self.privacy is not None or self.scale or self.n_components == "auto":
            odd = "privacy" if self.privacy is not None else "scale=True" if self.scale else "n_components='auto'"
            raise InputError(
                f"partial_fit cannot be combined with {odd}, because earlier rows would have to be read again. Leave "
                "it out."
            )
        return self.solver != "krylov"

    def _read_kept(self) -> KeptSums | None:
        """What earlier calls kept; None if there were none."""
        if "components_" not in self.__dict__:
            return None
        if self.kept_values_ is None or self.kept_vectors_ is None:
            raise InputError(
                "The model was fitted by fit, which keeps no sums. Give the first rows to partial_fit, too, on a new "
                "model."
            )
        mean = self.mean_.astype(np.float64)
        return KeptSums(float(self.n_samples_), mean, self.kept_values_, self.kept_vectors_, self.kept_total_)

    def _forget_sums(self) -> None:
        """What a fit starts without."""
        self.kept_values_: Array | None = None
        self.kept_vectors_: Array | None = None
        self.kept_total_ = 0.0
        self.site_drift_ = None

    def _learn_sums(self, sums: KeptSums) -> None:
        """Set the attributes that follow from sums over all rows."""
        n, d, kind = sums.n, len(sums.mean), self.components_.dtype
        theta = sums.values[sums.values > max(n, d) * np.finfo(np.float64).eps * sums.values[0]]
        if is_whole(self.n_components):
            k = min(self.n_components, len(theta))
        else:
            k = choose_count(self.n_components, theta, sums.total, int(n), d)
        left = min(n, d) - k
        self.components_ = fix_signs(sums.vectors[:k]).astype(kind)
        self.explained_variance_ = (theta[:k] / (n - 1)).astype(kind)
        self.explained_variance_ratio_ = (theta[:k] / sums.total).astype(kind)
        self.singular_values_ = np.sqrt(theta[:k]).astype(kind)
        self.noise_variance_ = max(sums.total - float(theta[:k].sum()), 0.0) / (n - 1) / left if left > 0 else 0.0
        self.mean_, self.n_samples_ = sums.mean.astype(kind), n
        self.basis_, self.basis_variance_ratio_ = sums.vectors, sums.values / sums.total
        shares = theta[k:] / sums.total
        self.rest_ = np.array([float((shares**i).sum()) for i in (1, 2, 3)]) if self.solver != "krylov" else None
        self.scree_ = theta[: k + _DRAWN_BEYOND] / (n - 1)
        self.kept_values_, self.kept_vectors_, self.kept_total_ = sums.values, sums.vectors, sums.total
        self._keep_angles(None, k)

    def _fit_above_noise(
        self,
        data: Mapping[str, object],
        schema: Schema,
        options: FitOptions,
        warm_start: FederatedPCA | None,
    ) -> Result[SpectralState]:
        """Find how large noise is, then as many components as are larger, and perhaps some more."""
        check_parallel(data, self.privacy)
        flipped = ParallelAnalysis(center=bool(self.center), scale=bool(self.scale))
        why = "n_components='auto' compares the components with those of sign-flipped rows"
        found = self._run(flipped, data, options, why=why, rounds=0, part="noise").state
        noise, most = read_noise_level(found), min(schema.rows, schema.n_features)
        k = count_to_solve(self, schema, self.privacy)
        result = self._solve(data, schema, k, options, warm_start)
        while k < most and result.state.theta[-1] > noise.quantile:
            k = min(2 * k, most)
            result = self._solve(data, schema, k, options, warm_start, part=f"{k}-components")
        self._learn(result, schema.dtype, noise)
        options.tell(
            f"{self.n_components_} of the components are larger than the 95 % quantile of the first component of "
            f"{len(noise.largest)} sign-flipped tables, which took {found.exchanges} exchanges."
        )
        if not result.state.theta[0] > noise.quantile:
            warn_caller(
                "No component is larger than what rows with nothing in common have, so n_components='auto' kept one, "
                "the fewest that are allowed. It may be noise."
            )
        return result

    def _solve(
        self,
        data: Mapping[str, object],
        schema: Schema,
        k: int,
        options: FitOptions,
        warm_start: FederatedPCA | None,
        part: str | None = None,
    ) -> Result[SpectralState]:
        """Choose the solver of k components, and run it."""
        ledger, min_clients, secure = options.get_ledger(), options.min_clients, secure_from(self.secure)
        chosen = choose_solver(
            self,
            schema,
            len(data),
            k,
            privacy=self.privacy,
            secure=secure,
            prior=None if warm_start is None else warm_start._make_prior(),
            min_clients=min_clients,
            measure=lambda dp: measure_rows(
                partial(self._run_opening, data, options),
                dp,
                bool(self.center),
                len(data),
                count_sharers(secure, len(data), min_clients),
                ledger,
            ),
        )
        if chosen.note:
            ledger.add(Note(chosen.note))
        result = self._run(
            chosen.solver,
            data,
            options,
            why=chosen.why,
            rounds=int(self.max_rounds),
            channel=chosen.channel,
            plan=chosen.private.plan if chosen.private else None,
            facts={"features": schema.n_features},
            part=part,
        )
        if chosen.private:
            theta, n = float(result.state.theta[-1]), float(result.state.moments.n)
            ledger.add(Note(describe_error(chosen.private, schema.n_features, theta, n)))
        return result

    def _learn(self, result: Result[SpectralState], dtype: str | None, noise: NoiseLevel | None = None) -> None:
        """Set the attributes from the last state of the run."""
        state, moments = result.state, result.state.moments
        if moments.n < 2:
            raise InputError(f"At least 2 rows are needed over all clients, but there are {moments.n}.")
        theta, Z = np.maximum(state.theta, 0.0), state.Z
        if not isinstance(state, NoisyState):  # noised variances do not tell which components the data determine
            theta, Z = self._drop_null_space(theta, Z, moments.n, state.known_floor())
        d, n = len(moments.mean), moments.n
        total = max(moments.trace, float(theta.sum())) or 1.0  # a noised trace may be below what is explained, even 0
        k = choose_count(self.n_components, theta, total, int(n), d, noise)
        self.scree_ = theta[: k + _DRAWN_BEYOND] / (n - 1) * moments.unit**2
        self._forget_sums()
        self.noise_variances_ = None if noise is None else noise.largest / (n - 1) * moments.unit**2
        self.rest_ = _find_rest(state, theta[k:] / total)
        theta, Z = theta[:k], Z[:, :k]
        left, unit2 = min(n, d) - k, moments.unit**2
        kind = dtype or np.float64
        self.components_ = fix_signs(Z.T).astype(kind)
        self.explained_variance_ = (theta / (n - 1) * unit2).astype(kind)
        self.explained_variance_ratio_ = (theta / total).astype(kind)
        self.singular_values_ = (np.sqrt(theta) * moments.unit).astype(kind)
        rest = max(moments.trace - float(theta.sum()), 0.0)
        self.noise_variance_ = float(rest / (n - 1) / left * unit2) if left > 0 else 0.0
        self.mean_, self.scale_ = moments.mean.astype(kind), moments.scale.astype(kind)
        self.basis_, self.basis_variance_ratio_ = _find_basis(state, Z, theta, total)
        self.n_samples_ = moments.n
        self._keep_angles(state.known_angles(), k)

    def _keep_angles(self, angles: Array | None, kept: int) -> None:
        """What is known of how far the components are from the exact ones."""
        known = np.full(kept, np.nan) if angles is None else angles[:kept]
        with np.errstate(invalid="ignore"):
            self.component_angles_ = 2 * (known + np.append(0.0, known[:-1]))
        self.angle_ = float(known[-1]) if np.isfinite(known[-1]) else np.nan
        self.angle_bound_ = 2 * self.angle_

    def _warn_if_undetermined(self, result: Result[SpectralState]) -> None:
        """The last components are not determined if the next one has the same variance, as far as can be told."""
        state = result.state
        gap, theta = result.metrics.get("gap", np.nan) / state.moments.unit**2, state.theta
        limit = max(2 * state.kkt * state.moments.trace, 1e-9 * float(theta[-1]))
        if not gap <= limit or len(theta) != len(self.components_):  # of more components the last is not in question
            return
        first, k = int(np.sum(theta > theta[-1] + limit)) + 1, len(theta)
        which = f"Component {k} is" if first == k else f"Components {first} to {k} are"
        warn_caller(
            f"{which} not determined: the next component has the same variance as far as tol={self.tol:g} can tell, so "
            "any mixture of them would do as well. Use fewer components, or more; or lower tol."
        )

    def _warn_of_accuracy(self, result: Result[SpectralState]) -> None:
        reached = [f"{name} {value:.2g}" for name, value in result.metrics.items() if name in _ACCURACIES]
        stopped = f"Stopped after {result.rounds} rounds at {', '.join(reached) or 'an unknown accuracy'}"
        if result.converged:
            remedy = "This solver gets no further: use krylov or gram, or raise tol if this accuracy is enough."
        else:
            remedy = "Raise max_rounds, or raise tol if this accuracy is enough."
        warn_caller(f"{stopped}, above tol={self.tol:g}. {remedy}", ConvergenceWarning)

    def _make_prior(self) -> Prior:
        """What this model knows of the data, for a run on nearly the same data."""
        check_is_fitted(self)
        total = self.explained_variance_.sum() / self.explained_variance_ratio_.sum() * (self.n_samples_ - 1)
        return Prior(self.basis_.T, self.basis_variance_ratio_ * total)

    def _drop_null_space(self, theta: Array, Z: Array, rows: float, floor: float) -> tuple[Array, Array]:
        """Keep the components that the data determine: those of zero variance, up to rounding, are arbitrary."""
        tiny = max(rows, len(Z)) * np.finfo(np.float64).eps * (theta[0] if len(theta) else 0.0)
        rank, exact = (int(np.sum(theta > least)) for least in (max(tiny, floor), tiny))
        if rank == 0:
            raise InputError("All rows are equal (after centering), so there are no components; the data must vary.")
        if is_whole(self.n_components) and rank < self.n_components:
            short = f"The data have rank {rank}, so there are only {rank} components"
            if rank < exact:
                short = f"Only {rank} components have more variance than bits='auto' rounds off at tol={self.tol:g}"
            warn_caller(f"{short}, not {self.n_components}; lower n_components to {rank}.")
        return theta[:rank], Z[:, :rank]

    def fit_transform(self, X: object, y: object = None, **fit_params: object) -> Array:
        """Not available: the rows of a federation are not in one place."""
        raise InputError(
            "A federation has no pooled rows: call fit(clients), then transform(X) where the rows are. Inside a "
            "Pipeline, wrap the fitted model: sklearn.frozen.FrozenEstimator(model)."
        )

    def transform(self, X: object) -> Array:
        """Coordinates of rows in the components, (n, k). Sparse rows stay sparse, and float32 stays float32."""
        check_is_fitted(self)
        return project_rows(self._take_rows(X), self.mean_, self.find_projection())

    def to_sklearn(self) -> BaseEstimator:
        """A fitted scikit-learn `PCA`, or a `Pipeline` of all that the model does with a table, and a `PCA`.

        With scale=True a `StandardScaler` comes first; before it, if words were encoded or gaps filled, a
        `ColumnTransformer` that does the same.
        """
        return pca_to_sklearn(self)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write `transform` as an ONNX graph of float64: X (n, d), or a column each (n, 1) → transformed (n, k)."""
        projection_to_onnx(self, path)


def _find_rest(state: SpectralState, dropped: Array) -> Array | None:
    """The sums of powers of all shares that are left out: those that the solver left out, and those dropped since."""
    rest = state.known_rest()
    return None if rest is None else np.maximum(rest, 0.0) + [float((dropped**i).sum()) for i in (1, 2, 3)]


def _find_basis(state: SpectralState, Z: Array, theta: Array, total: float) -> tuple[Array, Array]:
    """All that the server knows of the spectrum, (m, d) and (m,): krylov has seen more than the k components."""
    basis = state.known_basis()
    if basis is None:
        return Z.T, theta / total
    Q, AQ = basis
    values, S, _ = rayleigh_ritz(Q, AQ, 1)
    known = values > 0
    return S[:, known].T @ Q.T, values[known] / total
