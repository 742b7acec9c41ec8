"""What the estimators of views share: which view is meant, and the mean of what the views say of new entities."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.data.views import OpenView, ViewSource, gather_ids
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import ClientData, FederatedEstimator
from fedspan.estimators.matching.new_rows import keep_column_names, open_new_rows
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

    def _mean_over_views(self, views: ClientData, ids: Any = None) -> Array:
        """The mean of what the views say of the same entities; a view may be None."""
        check_is_fitted(self)
        given = views if isinstance(views, Mapping) else dict(zip(self.view_names_, views, strict=False))
        if len(views) != self.n_views_ or set(given) != set(self.view_names_):
            raise InputError(
                f"The model was fitted on {self.n_views_} views ({', '.join(self.view_names_[:5])}), but {len(views)} "
                "were given; give None for missing ones."
            )
        there = {name: given[name] for name in self.view_names_ if given[name] is not None}
        if not there:
            raise InputError("At least one view must be given, but all are None.")
        opened = self._open_rows(there, None if ids is None else gather_ids(ids, given))
        parts = [self._say_of(self.view_names_.index(name), view) for name, view in opened.items()]
        if len({len(part) for part in parts}) > 1:
            counts = ", ".join(str(len(part)) for part in parts)
            raise InputError(f"All views must have the same entities, but they have {counts} rows.")
        first, *others = (np.asarray(part, dtype=np.float64) for part in parts)
        return np.asarray(sum(others, first) / len(parts))

    def _open_rows(self, views: Mapping[str, object], ids: Mapping[str, Any] | None) -> dict[str, OpenView]:
        """New rows of some views, with the columns of the fit."""
        return open_new_rows(views, ids, dict(zip(self.view_names_, self.column_names_, strict=True)))

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
        name = self.view_names_[at]
        X = (source if isinstance(source, OpenView) else self._open_rows({name: source}, None)[name]).X
        if X.shape[1] != self.n_features_[at]:
            raise InputError(f"View {name!r} has {self.n_features_[at]} features, but the table has {X.shape[1]}.")
        if not np.isfinite(X.data if sp.issparse(X) else np.asarray(X, dtype=np.float64)).all():
            raise InputError(
                f"View {name!r} contains NaN or infinity; impute the values, or give None for the whole view."
            )
        return self._say(at, X)
