"""fedspan: learn one model from data that must stay apart.

>>> from sklearn.datasets import load_iris
>>> from fedspan import FederatedPCA
>>> X = load_iris().data
>>> pca = FederatedPCA(n_components=2, random_state=0).fit({"a": X[:60], "b": X[60:]})
>>> pca.explained_variance_ratio_.round(3)
array([0.925, 0.053])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedspan import channel, protocol
from fedspan.channel import Channel
from fedspan.errors import FedspanError, InputError
from fedspan.federation.participation import Participation
from fedspan.ledger import Ledger
from fedspan.privacy.dp import PaperDP, RowDP
from fedspan.privacy.masking import Secure
from fedspan.run import run

if TYPE_CHECKING:
    from fedspan import algorithms, engines
    from fedspan.estimators.auto import Auto
    from fedspan.estimators.classifier import FederatedClassifier
    from fedspan.estimators.deep_gcca import DeepFederatedGCCA
    from fedspan.estimators.gcca import FederatedGCCA
    from fedspan.estimators.pca import FederatedPCA
    from fedspan.estimators.personalized import PersonalizedPCA
    from fedspan.estimators.prepare import prepare
    from fedspan.estimators.svd import FederatedSVD
    from fedspan.estimators.vertical_classifier import VerticalFederatedClassifier

__version__ = "0.1.0"
__all__ = [
    "Auto",
    "Channel",
    "DeepFederatedGCCA",
    "FederatedClassifier",
    "FederatedGCCA",
    "FederatedPCA",
    "FederatedSVD",
    "FedspanError",
    "InputError",
    "Ledger",
    "PaperDP",
    "Participation",
    "PersonalizedPCA",
    "RowDP",
    "Secure",
    "VerticalFederatedClassifier",
    "algorithms",
    "channel",
    "engines",
    "prepare",
    "protocol",
    "run",
]

# What needs scipy and scikit-learn is imported when first used: `fedspan --help` need not wait for them.
_LATER = {
    "Auto": "auto",
    "DeepFederatedGCCA": "deep_gcca",
    "FederatedClassifier": "classifier",
    "FederatedGCCA": "gcca",
    "FederatedPCA": "pca",
    "FederatedSVD": "svd",
    "PersonalizedPCA": "personalized",
    "VerticalFederatedClassifier": "vertical_classifier",
    "prepare": "prepare",
}


def __getattr__(name: str) -> Any:
    if name in ("algorithms", "engines"):
        return import_module(f"fedspan.{name}")
    if name in _LATER:
        return getattr(import_module(f"fedspan.estimators.{_LATER[name]}"), name)
    raise AttributeError(f"module 'fedspan' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
