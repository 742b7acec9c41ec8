"""What all estimators share: six parameters, the run itself, model files, the report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedspan._files import write_whole
from fedspan._types import Array
from fedspan.channel import Channel
from fedspan.core.checkpoint import Checkpoint, build, save_tree
from fedspan.core.ledger import Ledger, Note
from fedspan.core.participation import Participation
from fedspan.core.protection import RETRIES
from fedspan.core.protocol import Server
from fedspan.core.run import Engine, Info, Result, run
from fedspan.data.clients import Schema
from fedspan.data.preparation import Preparation
from fedspan.errors import FedspanError, InputError
from fedspan.estimators._bases.model_file import check_model_file, read_model_file
from fedspan.estimators.launch import make_engine, open_checkpoint, secure_from, seed_from
from fedspan.estimators.parameters import about, parameters_of
from fedspan.privacy.plan import Plan
from fedspan.privacy.request import PaperDP, RowDP
from fedspan.reports.facts import RunFacts
from fedspan.reports.report import render_report
from fedspan.secure.masking import Secure

S = TypeVar("S")
# What users give for the clients: one entry each, by name or in a list. An entry is an array, a sparse matrix, a table
# of pandas, polars or Arrow, a path, a database address, or a function that opens one of them.
ClientData: TypeAlias = Mapping[str, object] | Sequence[object]

OF_TABLES = ("n_features_in_", "n_samples_", "n_clients_")  # learned by all models whose clients have the same columns
OF_RUN = ("n_rounds_", "converged_", "seed_")  # learned by all models


class FitOptions(NamedTuple):
    """What `fit` is told about the run itself: see `fedspan.run`."""

    ledger: Ledger | None = None
    retries: int = RETRIES
    min_clients: int | None = None

    def get_ledger(self) -> Ledger:
        """The ledger of this fit."""
        if self.ledger is None:
            raise FedspanError("A fit needs a ledger.")
        return self.ledger

    def tell(self, text: str) -> None:
        """Say something to whoever reads the report."""
        self.get_ledger().add(Note(text))


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of all estimators.

    A dataclass takes the fields of its bases from the last base to the first. So an estimator lists this class before
    the one with its own parameters, and these six come last in its constructor.
    """

    privacy: RowDP | PaperDP | None = field(
        default=None,
        metadata=about("The differential privacy to keep, or None to add no noise.", in_job=False),
    )
    secure: bool | Secure = field(
        default=False,
        metadata=about("Whether the server may see only sums over the clients.", in_job=False),
    )
    engine: Engine | Callable[..., Engine] | None = field(
        default=None,
        metadata=about("Where the clients run; None runs all of them in this process.", in_job=False, checked=False),
    )
    callback: Callable[[Info], None] | None = field(
        default=None,
        metadata=about("A function that is called after each round.", in_job=False),
    )
    checkpoint: str | os.PathLike[str] | Checkpoint | None = field(
        default=None,
        metadata=about("A folder in which the run is saved after every round.", in_job=False),
    )
    random_state: int | np.random.Generator | np.random.RandomState | None = field(
        default=None,
        metadata=about("The seed of all random streams.", least=0, example=0),
    )

    task: ClassVar[str]  # what a job file and a report call it
    learned: ClassVar[tuple[str, ...]]  # the attributes that a model file holds

    def _run(
        self,
        algorithm: Server[S],
        data: Mapping[str, object],
        options: FitOptions,
        *,
        why: str,
        rounds: int,
        channel: Channel | None = None,
        participation: Participation | None = None,
        plan: Plan | None = None,
        facts: Mapping[str, object] | None = None,
        engine: Engine | None = None,
        part: str | None = None,
    ) -> Result[S]:
        """Run the algorithm on the clients' data. A checkpoint that differs in `facts` belongs to another run.

        `part` names a run that comes before the fit itself, and has a checkpoint of its own.
        """
        checkpoint = open_checkpoint(self.checkpoint)
        if checkpoint is not None and part is not None:
            checkpoint = Checkpoint(checkpoint.path.parent / part)
        return run(
            algorithm,
            make_engine(self.engine, data) if engine is None else engine,
            rounds=rounds,
            seed=seed_from(self.random_state),
            channel=channel,
            participation=participation,
            retries=options.retries,
            min_clients=options.min_clients,
            secure=secure_from(self.secure),
            checkpoint=checkpoint,
            ledger=options.ledger,
            callback=self.callback,
            about=facts,
            privacy=plan,
            why=why,
        )

    def _run_opening(
        self, data: Mapping[str, object], options: FitOptions, algorithm: Server[S], plan: Plan, part: str
    ) -> Result[S]:
        """Run what a private fit finds out first."""
        why = "a private run needs noised counts and bounds first"
        return self._run(algorithm, data, options, why=why, rounds=0, plan=plan, part=part)

    def _keep_run(self, result: Result[S]) -> None:
        """Keep how the run went."""
        if result.ledger.started is None:
            raise FedspanError("The ledger of this run does not say how it started.")
        self.n_rounds_, self.seed_ = result.rounds, result.ledger.started.seed
        self.ledger_, self.history_ = result.ledger, result.ledger.history()

    def _keep_columns(self, schema: Schema) -> None:
        """Keep what the clients' columns are, and how they were made."""
        self.n_features_in_ = schema.n_features
        self.preparation_ = schema.preparation
        self._name_features(schema.names)

    def _name_features(self, names: Sequence[str] | None) -> None:
        """As in scikit-learn, the attribute exists only if the columns have names."""
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        else:
            self.__dict__.pop("feature_names_in_", None)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model as one safetensors file; equal models give equal files.

        Parameters that are not plain values (an engine, a callback, torch modules) are not in it.
        """
        check_is_fitted(self)
        given = {
            name: v for name, v in self.get_params(deep=False).items() if name != "checkpoint"
        }  # it is a path on this machine
        rows = parameters_of(type(self))
        plain = {
            name: v
            for name, v in given.items()
            if isinstance(v, bool | int | float | str) or (v is None and rows[name].default is not None)
        }
        values = {name: self.__dict__[name] for name in self.learned}
        names = get_feature_names(self)
        values["feature_names_in_"] = None if names is None else [str(name) for name in names]
        values["preparation_"] = self.__dict__.get("preparation_")
        with explain_refusal(path):
            tree = {"estimator": type(self).__name__, "params": plain, "learned": values}
            save_tree(path, "model", tree, public=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote. The file does not hold the ledger, which is in the run folder."""
        return cls._load(path)

    @classmethod
    def _load(cls, path: str | os.PathLike[str], **more: Any) -> Self:
        """Read the model in a file; `more` are parameters that a file cannot hold."""
        file = read_model_file(path)
        found = file["estimator"]
        if found != cls.__name__:
            raise InputError(f"{path} holds a {found}, not a {cls.__name__}; use {found}.load().")
        check_model_file(path, file, cls, cls.learned)
        model = cls(**{**file["params"], **more})
        learned = file["learned"]
        for name in cls.learned:
            setattr(model, name, dict(learned)[name])
        preparation = learned["preparation_"]
        model.preparation_ = None if preparation is None else build(Preparation, preparation)
        model._name_features(learned["feature_names_in_"])
        return model

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the report of the fit: one HTML file that needs nothing else."""
        check_is_fitted(self)
        ledger = self.__dict__.get("ledger_")
        if not isinstance(ledger, Ledger):
            raise InputError(
                "This model was loaded from a file, which does not hold the ledger of its run. Write the report where "
                "the model was fitted, or use `fedspan report` on the run folder."
            )
        facts = RunFacts(
            self.task,
            privacy=self.privacy if isinstance(self.privacy, RowDP) else None,
            secure=bool(self.secure),
            seed=self.seed_,
        )
        with explain_refusal(path):
            write_whole(path, render_report(self, ledger, facts), public=True)


@contextmanager
def explain_refusal(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file that cannot be written, and not the temporary one beside it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"Cannot write {os.fspath(path)}: {error.strerror}; choose another path.") from None


def get_feature_names(model: FederatedEstimator) -> Array | None:
    """The names of the columns that a model was fitted on; None if they had none."""
    names: Array | None = vars(model).get("feature_names_in_")
    return names
