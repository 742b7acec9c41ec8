"""fedspan: learn one model from data that must stay apart.

>>> from sklearn.datasets import load_iris
>>> from fedspan import FederatedPCA
>>> X = load_iris().data
>>> pca = FederatedPCA(n_components=2, random_state=0).fit({"a": X[:60], "b": X[60:]})
>>> pca.explained_variance_ratio_.round(3)
array([0.925, 0.053])
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedspan import channel
from fedspan._version import __version__
from fedspan.channel import Channel
from fedspan.core import callbacks, protocol
from fedspan.core.ledger import Ledger
from fedspan.core.participation import Participation
from fedspan.core.run import run
from fedspan.errors import FedspanError, InputError
from fedspan.privacy.request import PaperDP, RowDP
from fedspan.secure.masking import Secure

if TYPE_CHECKING:
    from fedspan import algorithms, engines, jobs
    from fedspan.audit.auditor import audit
    from fedspan.estimators.choice import Auto
    from fedspan.estimators.classifier import FederatedClassifier
    from fedspan.estimators.deep_gcca import DeepFederatedGCCA
    from fedspan.estimators.field.genotype_results import read_loadings, write_loadings, write_scores
    from fedspan.estimators.field.prepare_cells import prepare_cells, write_cells
    from fedspan.estimators.field.prepare_genotypes import prepare_genotypes
    from fedspan.estimators.gcca import FederatedGCCA
    from fedspan.estimators.matching.match_entities import match_entities
    from fedspan.estimators.notebook.client_folds import ClientKFold, score_clients
    from fedspan.estimators.pca import FederatedPCA
    from fedspan.estimators.personalized import PersonalizedPCA
    from fedspan.estimators.prepare import prepare
    from fedspan.estimators.regressor import FederatedRegressor
    from fedspan.estimators.svd import FederatedSVD
    from fedspan.estimators.vertical_classifier import VerticalFederatedClassifier
    from fedspan.estimators.views.vertical_pca import VerticalPCA, VerticalSVD
    from fedspan.estimators.views.vertical_regressor import VerticalFederatedRegressor
    from fedspan.jobs.checking.check import check
    from fedspan.jobs.model import Job

__all__ = [
    "Auto",
    "Channel",
    "ClientKFold",
    "DeepFederatedGCCA",
    "FederatedClassifier",
    "FederatedGCCA",
    "FederatedPCA",
    "FederatedRegressor",
    "FederatedSVD",
    "FedspanError",
    "InputError",
    "Job",
    "Ledger",
    "PaperDP",
    "Participation",
    "PersonalizedPCA",
    "RowDP",
    "Secure",
    "VerticalFederatedClassifier",
    "VerticalFederatedRegressor",
    "VerticalPCA",
    "VerticalSVD",
    "__version__",
    "algorithms",
    "audit",
    "callbacks",
    "channel",
    "check",
    "engines",
    "jobs",
    "match_entities",
    "prepare",
    "prepare_cells",
    "prepare_genotypes",
    "protocol",
    "read_loadings",
    "run",
    "score_clients",
    "write_cells",
    "write_loadings",
    "write_scores",
]

# Public modules that live in core/: `from fedspan.protocol import Ask` works as `fedspan.protocol.Ask` does.
sys.modules["fedspan.protocol"] = protocol
sys.modules["fedspan.callbacks"] = callbacks

# What needs scipy and scikit-learn is imported when first used: `fedspan --help` need not wait for them.
_LATER = {
    "Auto": "estimators.choice",
    "ClientKFold": "estimators.notebook.client_folds",
    "DeepFederatedGCCA": "estimators.deep_gcca",
    "FederatedClassifier": "estimators.classifier",
    "FederatedGCCA": "estimators.gcca",
    "FederatedPCA": "estimators.pca",
    "FederatedRegressor": "estimators.regressor",
    "FederatedSVD": "estimators.svd",
    "PersonalizedPCA": "estimators.personalized",
    "VerticalFederatedClassifier": "estimators.vertical_classifier",
    "VerticalPCA": "estimators.views.vertical_pca",
    "VerticalSVD": "estimators.views.vertical_pca",
    "VerticalFederatedRegressor": "estimators.views.vertical_regressor",
    "Job": "jobs.model",
    "audit": "audit.auditor",
    "check": "jobs.checking.check",
    "match_entities": "estimators.matching.match_entities",
    "prepare": "estimators.prepare",
    "prepare_cells": "estimators.field.prepare_cells",
    "prepare_genotypes": "estimators.field.prepare_genotypes",
    "write_cells": "estimators.field.prepare_cells",
    "read_loadings": "estimators.field.genotype_results",
    "write_loadings": "estimators.field.genotype_results",
    "write_scores": "estimators.field.genotype_results",
    "score_clients": "estimators.notebook.client_folds",
}

# `fedspan.audit` is a function. Python would bind that name to the folder of the same name when it is first imported;
# imported here and unbound again, it stays out of the way (`from fedspan.audit.attacks import …` works all the same).
import_module("fedspan.audit")
globals().pop("audit", None)


def __getattr__(name: str) -> Any:
    if name in ("algorithms", "engines", "jobs"):
        return import_module(f"fedspan.{name}")
    if name in _LATER:
        return getattr(import_module(f"fedspan.{_LATER[name]}"), name)
    raise AttributeError(f"module 'fedspan' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
