"""What the estimators of views share: how views are prepared, which one is meant, what they say of new entities."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms.gcca.entities import Entities
from fedspan.algorithms.gcca.kept_maxvar import find_present, select_rows
from fedspan.algorithms.gcca.sum_views import SumViews, WeightedView
from fedspan.core.run import run
from fedspan.data.remote_tables import RemoteTable
from fedspan.data.tables import is_lazy
from fedspan.data.views import OpenView, ViewSource, gather_ids, match_columns, open_view
from fedspan.engines.inprocess import InProcess
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import ClientData, FederatedEstimator
from fedspan.estimators.launch import secure_from
from fedspan.estimators.matching.new_rows import NewRows, keep_column_names, open_new_rows, open_rows_with_gaps
from fedspan.estimators.parameters import is_whole

OF_VIEWS = ("view_names_", "column_names_", "n_features_", "n_samples_", "n_views_")  # what all of them learn


class ViewEstimator(FederatedEstimator):
    """An estimator whose clients hold different features of the same entities."""

    @abstractmethod
    def _say(self, at: int, X: Any) -> Array:
        """What the view with that number says of entities, given their features."""

    def _keep_column_names(self, sources: Mapping[str, ViewSource]) -> None:
        """Keep what each view's columns are called, because new tables are matched by it; None: they have no names."""
        self.column_names_ = keep_column_names(sources)

    def _mean_over_views(self, opened: Mapping[str, NewRows]) -> Array:
        """The mean of what these views say of the same entities."""
        if not opened:
            raise InputError("At least one view must be given, but all are None.")
        total, count = _add_parts(self._say_each(opened))
        return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)

    def _say_each(self, opened: Mapping[str, NewRows]) -> list[Array]:
        """What each of these views says, with rows of NaN for entities that it lacks."""
        parts = []
        for name, new in opened.items():
            rows = np.flatnonzero(new.present)
            some = new.view if new.present.all() else new.view._replace(X=select_rows(new.view.X, rows))
            said = np.asarray(self._say_of(self.view_names_.index(name), some), dtype=np.float64)
            part = np.full((len(new.present), said.shape[1]), np.nan)
            part[rows] = said
            parts.append(part)
        return parts

    def _may_lack_entities(self) -> bool:
        """Whether a view may lack entities: their rows are NaN, or their ids are not among the view's."""
        return False

    def _open_given(self, views: ClientData, ids: object) -> dict[str, NewRows]:
        """The rows of the views that are given (not None), all in one order, and which entities each view has."""
        given = self._match_views(views)
        there = {name: source for name, source in given.items() if source is not None}
        own_ids = None if ids is None else gather_ids(ids, given)
        columns = dict(zip(self.view_names_, self.column_names_, strict=True))
        if self._may_lack_entities():
            opened = open_rows_with_gaps(there, own_ids, columns)
        else:
            whole = open_new_rows(there, own_ids, columns)
            opened = {name: NewRows(view, np.ones(view.X.shape[0], dtype=bool)) for name, view in whole.items()}
        if len({len(new.present) for new in opened.values()}) > 1:
            counts = ", ".join(str(len(new.present)) for new in opened.values())
            raise InputError(f"All views must have the same entities, but they have {counts} rows.")
        return opened

    def _match_views(self, views: ClientData) -> Mapping[str, object]:
        """The views by name, which must be those that the model was fitted on; a view may be None."""
        check_is_fitted(self)
        given = views if isinstance(views, Mapping) else dict(zip(self.view_names_, views, strict=False))
        if len(views) != self.n_views_ or set(given) != set(self.view_names_):
            raise InputError(
                f"The model was fitted on {self.n_views_} views ({', '.join(self.view_names_[:5])}), but {len(views)} "
                "were given; give None for missing ones."
            )
        return given

    def _find_weights(self, at: int) -> tuple[Array, Array]:
        """W and c of a view whose part of a sum over the views is X W - c, as `_say` of linear models has it."""
        raise NotImplementedError

    def _sum_over_views(self, opened: Mapping[str, NewRows]) -> tuple[Array, Array]:
        """What the views say of the same entities, summed as in a federation: by secure sums if the fit has them.

        And of how many views each row is the sum, (n, 1).
        """
        data, partial = {}, self._may_lack_entities()
        for at, name in enumerate(self.view_names_):
            if name in opened:
                new = opened[name]
                X = self._open_own(at, new.view, new.present)
                data[name] = WeightedView(X, *self._find_weights(at), new.present if partial else None)
        result = run(SumViews(partial), InProcess(data), rounds=0, seed=0, secure=secure_from(self.secure))
        T, D = np.asarray(result.state.T, dtype=np.float64), result.state.D
        count = np.full(len(T), len(data)) if D is None else D
        return T, np.asarray(count, dtype=np.float64)[:, None]

    def _find_view(self, view: int | str) -> int:
        """The number of a view that is named or numbered."""
        check_is_fitted(self)
        if view in self.view_names_:
            return int(self.view_names_.index(view))
        if isinstance(view, int | np.integer) and is_whole(view) and 0 <= view < self.n_views_:
            return int(view)
        raise InputError(
            f"A view must be a number from 0 to {self.n_views_ - 1} or one of {self.view_names_}, but is {view!r}."
        )

    def _say_of(self, at: int, source: object) -> Array:
        """What a view says of the entities in a table, if that is one of the view's."""
        return self._say(at, self._open_own(at, source))

    def _open_own(self, at: int, source: object, present: Array | None = None) -> Any:
        """The rows of a table, if that is one of the view's; only those of entities that are present must be finite."""
        name = self.view_names_[at]
        columns = {name: self.column_names_[at]}
        X = (source if isinstance(source, OpenView) else open_new_rows({name: source}, None, columns)[name]).X
        if X.shape[1] != self.n_features_[at]:
            raise InputError(f"View {name!r} has {self.n_features_[at]} features, but the table has {X.shape[1]}.")
        known = X if present is None or present.all() else select_rows(X, np.flatnonzero(present))
        if not np.isfinite(known.data if sp.issparse(known) else np.asarray(known, dtype=np.float64)).all():
            raise InputError(
                f"View {name!r} contains NaN or infinity; impute the values, or give None for the whole view."
            )
        return X


def _add_parts(parts: list[Array]) -> tuple[Array, Array]:
    """The sum of what views say, and of how many of them each row is the sum."""
    total, count = np.zeros(parts[0].shape), np.zeros((len(parts[0]), 1))
    for part in parts:
        said_of = ~np.isnan(part).any(axis=1, keepdims=True)
        total, count = total + np.where(said_of, part, 0.0), count + said_of
    return total, count


def prepare_view(view: ViewSource, secret: str, *, gaps: bool = False, present: object = None) -> object:
    """What a client of a view is opened with: files stay closed until then."""
    if isinstance(view.source, RemoteTable):
        return view.source  # its site has the ids, the secret and the held-out rows
    open_entities: Callable[[], Entities] = partial(_open_entities, view, secret, gaps, present)
    return open_entities if is_lazy(view.source) else open_entities()


def _open_entities(given: ViewSource, secret: str, gaps: bool, present: object) -> Entities:
    """The view in the common order. With `gaps`, entities may be missing: those of a mask, or rows of NaN."""
    if gaps:
        view = open_view(given.source, given.ids, gaps=True)
        mask = find_present(Entities(view.X, present=None if present is None else np.asarray(present, dtype=bool)))
        if given.rows is None:
            return Entities(view.X, view.ids, secret, None, mask)
        at = np.maximum(given.rows, 0)  # the ids were matched: which of them a view lacks is in the mask
        return Entities(select_rows(view.X, at), None, secret, None, (given.rows >= 0) & mask[at])
    view = given.open()
    held = None if given.held_out is None else open_view(given.held_out)
    if held is None:
        return Entities(view.X, view.ids, secret)
    if held.X.shape[1] != view.X.shape[1]:
        raise InputError(f"The held_out rows have {held.X.shape[1]} features, but the view has {view.X.shape[1]}.")
    return Entities(view.X, view.ids, secret, match_columns(held.X, held.names, view.names, "held_out"))


def count_features(sources: Mapping[str, ViewSource], components: list[Array]) -> list[int]:
    """How many features each view has: by its components (k, N_i), or by what a remote site said of its table."""
    if components:
        return [part.shape[1] for part in components]
    return [one.source.n_features if isinstance(one.source, RemoteTable) else 0 for one in sources.values()]
