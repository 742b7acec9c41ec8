"""Principal components of each client's own, drawn towards what all clients share; scikit-learn's conventions."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms.personalized.at_home import choose_share_at_home
from fedspan.algorithms.personalized.personal_server import Personalized, PersonalState
from fedspan.algorithms.personalized.shrinkage import LAMBDAS, personal_basis
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES
from fedspan.data.clients import Schema, name_clients, open_clients
from fedspan.data.tables import open_table
from fedspan.errors import InputError, suggest
from fedspan.estimators._bases.export import personal_to_sklearn
from fedspan.estimators._bases.federated_estimator import OF_RUN, OF_TABLES, ClientData, FederatedEstimator, FitOptions
from fedspan.estimators._bases.new_rows_as_fitted import prepare_rows
from fedspan.estimators._bases.onnx_export import personal_to_onnx
from fedspan.estimators._options.personalized_methods import CENTER, PersonalParameters, build_personal_algorithm
from fedspan.estimators._options.private_personal import (
    build_private_prior,
    check_private_personal,
    describe_private_prior,
)
from fedspan.estimators._options.private_solvers import measure_rows
from fedspan.estimators.launch import count_sharers, secure_from, warn_caller
from fedspan.estimators.parameters import about, check_parameters
from fedspan.numerics.folds import Folded, Prep
from fedspan.numerics.stiefel import span_distance
from fedspan.privacy.request import RowDP
from fedspan.reports.drawing.charts import to_standalone
from fedspan.reports.drawing.client_charts import draw_distances

_SHARES = ((0.01, "local"), (0.4, "mostly local"), (0.6, "half local, half shared"), (0.99, "mostly shared"))


@dataclass(eq=False, repr=False)
class PersonalizedPCA(FederatedEstimator, PersonalParameters):
    """Components of each client's own: better than those of its few rows alone, and than one set for all.

    Parameters:
        n_components: How many components each client gets.
        method: The method; "auto" needs three exchanges, "eigen" and "paper" alternate until they converge. The three
            exchanges are sketches, held-out losses and the result; "eigen" is the exact alternation between clients and
            shared components, "paper" alternating Stiefel gradient descent (Ozkara et al.).
        shrinkage: λ, how strongly clients are drawn together: 0 is each client alone, inf one set for all; "auto" finds
            it by cross-validation, in 5 folds of the clients' own rows. For method "auto" λ is the weight of the shared
            second moments beside the client's own; for "eigen" and "paper" it is σ_ε²(1+σ_ε²)/σ_U² of the paper.
        center: Whether to subtract each client's own mean; 'global' subtracts the mean of all rows.
        scale: Whether to divide each column by its standard deviation over all clients' rows (around each client's own
            mean, if so centered).
        tol: Stop when the objective changes by at most this share of itself (eigen, paper); 0 runs all rounds.
        max_rounds: Stop after this many rounds in any case (eigen, paper).
        local_steps: Steps at the clients in each round (paper).
        step: The step sizes (paper): "safe", "lemmas" or a pair (α, β).
        clip: Cut every column of a client at its median ± clip·MAD before anything else (of that client's own rows).
        collect: Whether the clients' components and means come back to the caller. False: they stay where they are made
            (`components_` is None; each site calls `personalize` on its own rows), and no client shows them to anyone.
        participation: How many clients take part in each round (auto, paper), as a `Participation`. The last exchange,
            in which components are made, reaches all.
        privacy: Not available: a client's own components have no known sensitivity.
        privacy: The differential privacy to keep, or None to add no noise. The components stay at the clients: with
            `RowDP(…)`, collect=False and secure=True, all that is shared is one noised Gram matrix of all rows, and
            each client finds its components, and how far to lean on that matrix, in `personalize`, at home.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`. It needs
            collect=False, because collected components are those of single clients.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is the shared components.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. None draws one, which is kept as `seed_`.

    What the server sees: of each client the leading 2k eigenpairs of its second moments (of all rows, and without each
    of five folds), sizes, traces and column squares; sums of held-out losses; then, if `collect`, components and mean.
    Where d < 4k second moments are shorter than eigenpairs, and only their sums over clients are shown.

    Attributes:
        components_: (m, k, d) in the order of `client_names_`, each turned towards the shared ones, so that coordinates
            of different clients can be compared.
        shared_components_: (k, d).
        means_, scale_, bounds_: (m, d), (d,) and, if clipped, (m, 2, d).
        distances_: (m,), from 0 (the client's components span what the shared ones do) to 1 (nothing in common).
        shrinkage_: λ; `shrinkage_share_` the same from 0, local, to 1, shared; `shrinkage_in_words_` says it.
        cv_shrinkages_, cv_losses_: (14,) and (kinds, 14), the held-out loss per row for each λ.
        shared_part_: What `personalize` needs.
        client_names_, n_features_in_, feature_names_in_, n_samples_, n_clients_: What the model was fitted on.
        n_rounds_, converged_, history_, ledger_, seed_: As in `FederatedPCA`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import PersonalizedPCA
        >>> rng = np.random.default_rng(0)
        >>> clients = {name: rng.normal(size=(20, 3)) @ rng.normal(size=(3, 8)) for name in ("ann", "ben", "cleo")}
        >>> model = PersonalizedPCA(n_components=3, random_state=0).fit(clients)
        >>> model.components_.shape, model.shrinkage_in_words_
        ((3, 3, 8), 'local')
        >>> model.transform(clients["ben"], client="ben").shape
        (20, 3)
    """

    privacy: RowDP | None = field(
        default=None,
        kw_only=True,
        metadata=about(
            "The differential privacy to keep, or None to add no noise. The components stay at the clients.",
            in_job=False,
        ),
    )

    task: ClassVar[str] = "personalized"
    learned: ClassVar[tuple[str, ...]] = (
        "components_",
        "shared_components_",
        "client_names_",
        "means_",
        "scale_",
        "bounds_",
        "distances_",
        "mean_distance_",
        "shrinkage_",
        "shrinkage_share_",
        "shrinkage_in_words_",
        "cv_shrinkages_",
        "cv_losses_",
        "shared_part_",
        *OF_TABLES,
        *OF_RUN,
    )

    def fit(
        self,
        clients: ClientData,
        y: object = None,
        *,
        min_clients: int | None = None,
        retries: int = RETRIES,
        ledger: Ledger | None = None,
    ) -> Self:
        """Run the federation. The parameters are those of `FederatedPCA.fit`; nothing here starts warm."""
        check_parameters(self)
        data, schema = open_clients(clients)
        if self.privacy is not None:
            ledger = ledger if ledger is not None else Ledger()
            self._fit_privately(data, schema, self.privacy, FitOptions(ledger, retries, min_clients), ledger)
            return self
        algorithm = build_personal_algorithm(self, schema, secure_from(self.secure))
        auto = self.method == "auto"
        result = self._run(
            algorithm,
            data,
            FitOptions(ledger, retries, min_clients),
            why="it needs only three exchanges" if auto else "as requested",
            rounds=algorithm.rounds + 1,
            facts={"features": schema.n_features},
        )
        state: PersonalState = result.state
        self._learn(algorithm, state)
        self._keep_columns(schema)
        self.n_clients_ = len(data)
        self._keep_run(result)
        self.converged_ = auto or self.tol == 0 or bool(state.change <= self.tol)
        if not self.converged_:
            warn_caller(
                f"Stopped after {state.t} rounds, but the objective still changed by {state.change:.2g}, above "
                f"tol={self.tol:g}; raise max_rounds or tol, or use method='auto'.",
                ConvergenceWarning,
            )
        return self

    def _fit_privately(
        self, data: Mapping[str, object], schema: Schema, dp: RowDP, options: FitOptions, ledger: Ledger
    ) -> None:
        """Share one noised Gram matrix of all rows; what each client makes of it stays there."""
        check_private_personal(self, dp, schema)
        sharers = count_sharers(secure_from(self.secure), len(data), options.min_clients)
        run_part = partial(self._run_opening, data, options)
        measured = measure_rows(run_part, dp, CENTER[self.center] != "none", len(data), sharers, ledger)
        algorithm, plan = build_private_prior(self, measured, schema, sharers)
        result = self._run(
            algorithm,
            data,
            options,
            why="with privacy, clients share one noised Gram matrix and keep their components",
            rounds=1,
            plan=plan,
            facts={"features": schema.n_features},
        )
        k, moments = int(self.n_components), result.state.moments
        part = describe_private_prior(result.state, len(data))
        V = part["Q"][:, :k]
        signs = np.where(V[np.abs(V).argmax(axis=0), np.arange(k)] < 0, -1.0, 1.0)
        mean = {"mean": moments.mean} if CENTER[self.center] == "global" else {}
        self.shared_components_, self.shared_part_ = (V * signs).T, {**part, "signs": signs, **mean}
        at_the_clients: Any = None
        self.components_ = self.means_ = self.bounds_ = self.distances_ = at_the_clients
        self.client_names_: list[str] = []
        self.scale_, self.n_samples_ = np.ones(schema.n_features), moments.n
        self.mean_distance_ = self.shrinkage_ = self.shrinkage_share_ = math.nan
        self.shrinkage_in_words_ = "chosen by each client"
        self.cv_shrinkages_, self.cv_losses_ = np.zeros(0), np.zeros((0, 0))
        self._keep_columns(schema)
        self.n_clients_, self.converged_ = len(data), True
        self._keep_run(result)

    def _learn(self, solver: Personalized, state: PersonalState) -> None:
        """Set the attributes from the last state of the run."""
        shared, got, k = state.shared, state.collected, solver.k
        if shared is None or not state.closed:
            raise InputError("The run did not reach its end; raise max_rounds.")
        V = state.V
        signs = np.where(V[np.abs(V).argmax(axis=0), np.arange(k)] < 0, -1.0, 1.0)
        self.shared_components_ = (V * signs).T
        self.components_ = (got.U * signs).transpose(0, 2, 1) if solver.collect else None
        self.client_names_ = list(got.names)
        self.means_ = got.means if solver.collect else None
        self.bounds_ = got.bounds if solver.collect and solver.clip else None
        self.distances_ = got.distances if solver.collect else None
        self.mean_distance_ = got.mean_distance
        self.scale_ = state.shift.get("scale", np.ones(len(V)))
        self.n_samples_ = int(got.sizes.sum()) if solver.collect else shared.n
        told = solver.describe_shared(state)
        self.shared_part_ = {**told, "signs": signs} | dict(state.shift)
        self.shrinkage_ = float(state.shrinkage)
        self.shrinkage_share_ = float(told["omega"])
        self.shrinkage_in_words_ = next((word for top, word in _SHARES if self.shrinkage_share_ < top), "shared")
        self.cv_shrinkages_ = np.array(LAMBDAS)
        if state.kind == 2:
            self.cv_shrinkages_ = self.cv_shrinkages_ * float(shared.rows[0] * shared.v[0]) / k
        self.cv_losses_ = state.losses / shared.n
        if state.losses.size == 0:
            self.cv_shrinkages_ = np.zeros(0)
        largest = np.sort(shared.squares)[::-1]
        if not self.scale and len(largest) > 2 * k and largest[:k].sum() > 0.9 * largest.sum():
            warn_caller(
                f"{k} of the {len(largest)} features hold {largest[:k].sum() / largest.sum():.0%} of the variance, so "
                "the components are hardly more than these features. If the features have different units, use "
                "scale=True."
            )

    def personalize(self, X: object, client: str | None = None) -> Array:
        """The components (k, d) of a client that joins later, from its own rows and the shared part: no new run.

        With a name the client is added to the model, so that `transform(X, client=name)` knows it.
        """
        check_is_fitted(self)
        part = self.shared_part_
        rows = self._open_rows(X)
        own = CENTER[self.center] == "client"
        prep = Prep(own, part.get("mean"), part.get("scale"), float(self.clip or 0.0))
        folded = Folded(rows, prep)
        if not np.isfinite(folded.squares()).all():
            raise InputError("The rows contain NaN or infinity; drop those rows or impute the values.")
        k = len(self.shared_components_)
        if np.isnan(part["omega"]):  # of a private model: only the client can tell how far to lean on it
            part = {**part, "omega": choose_share_at_home(rows, prep, part, k)}
        U = (personal_basis(folded.whole, part, k) * part["signs"]).T
        if client is not None:
            if self.components_ is None:
                raise InputError("This model holds no client's components (collect=False); leave client out.")
            if client in self.client_names_:
                raise InputError(f"The model already has a client {client!r}; give another name.")
            self.client_names_ = [*self.client_names_, client]
            self.components_ = np.concatenate([self.components_, U[None]])
            self.means_ = np.vstack([self.means_, folded.mean])
            self.distances_ = np.append(self.distances_, span_distance(self.shared_components_.T, U.T))
            if self.bounds_ is not None:
                self.bounds_ = np.concatenate([self.bounds_, np.asarray(folded.bounds)[None]])
        return U

    def transform(self, X: object, client: str | int | None = None) -> Array:
        """Coordinates (n, k) of a client's rows in its own components."""
        i = self._find_client(client)
        return self._prepare_rows(X, i) @ self.components_[i].T

    def inverse_transform(self, X: object, client: str | int | None = None) -> Array:
        """The rows (n, d) with those coordinates."""
        i = self._find_client(client)
        Z = np.asarray(X, dtype=np.float64)
        if Z.ndim != 2 or Z.shape[1] != self.components_.shape[1]:
            raise InputError(
                f"Rows must have {self.components_.shape[1]} coordinates, but the array has shape {Z.shape}."
            )
        return Z @ self.components_[i] * self.scale_ + self.means_[i]

    def reconstruction_error(self, clients: ClientData) -> float:
        """Mean of ‖z - UUᵀz‖² over the rows of these clients (after clipping, centering, scaling), as in the paper."""
        lost, n = 0.0, 0
        for name, X in name_clients(clients).items():
            i = self._find_client(name)
            Z = self._prepare_rows(X, i)
            lost += float((Z**2).sum() - ((Z @ self.components_[i].T) ** 2).sum())
            n += len(Z)
        return lost / n

    def plot_distances(self) -> str:
        """How far each client is from the shared components, as an SVG picture."""
        check_is_fitted(self)
        if self.distances_ is None:
            raise InputError("The clients' distances were not collected (collect=False).")
        return to_standalone(draw_distances(self.client_names_, self.distances_))

    def _find_client(self, client: str | int | None) -> int:
        check_is_fitted(self)
        if self.components_ is None:
            raise InputError(
                "This model holds no client's components (collect=False); call personalize(X) at the client."
            )
        known = self.client_names_
        if isinstance(client, int | np.integer) and not isinstance(client, bool) and 0 <= client < len(known):
            return int(client)
        if client not in known:
            hint = suggest("" if client is None else str(client), known[:20])
            raise InputError(
                f"client=… must say whose rows these are, but is {client!r}. {hint} For a client that was not in fit, "
                "call personalize(X, client=name) first."
            )
        return known.index(str(client))

    def _open_rows(self, X: object) -> Any:
        how = self.preparation_
        made = how is not None and bool(how.categories or how.fill)  # words and gaps become numbers as in fit
        rows = prepare_rows(self, X, dtype=np.float64) if made else open_table(X).X
        if rows.shape[1] != self.n_features_in_:
            raise InputError(
                f"The model was fitted on {self.n_features_in_} features, but the rows have {rows.shape[1]}."
            )
        return rows

    def _prepare_rows(self, X: object, i: int) -> Array:
        rows = self._open_rows(X)
        rows = np.asarray(rows.toarray() if sp.issparse(rows) else rows, dtype=np.float64)
        if not np.isfinite(rows).all():
            raise InputError("The rows contain NaN or infinity; drop those rows or impute the values.")
        if self.bounds_ is not None:
            rows = np.clip(rows, *self.bounds_[i])
        return (rows - self.means_[i]) / self.scale_

    def to_sklearn(self, client: str | int | None = None) -> BaseEstimator:
        """A client's own components as a fitted scikit-learn `PCA`, behind what the model does with a table first."""
        return personal_to_sklearn(self, self._find_client(client))

    def to_onnx(self, path: str | os.PathLike[str], client: str | int | None = None) -> None:
        """Write a client's own `transform` as an ONNX graph of float64: X (n, d) → transformed (n, k)."""
        personal_to_onnx(self, self._find_client(client), path)
