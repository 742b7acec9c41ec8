"""fedspan: learn one model from data that must stay apart.

>>> from sklearn.datasets import load_iris
>>> from fedspan import FederatedPCA
>>> X = load_iris().data
>>> pca = FederatedPCA(n_components=2, random_state=0).fit({"a": X[:60], "b": X[60:]})
>>> pca.explained_variance_ratio_.round(3)
array([0.925, 0.053])
"""

from fedspan import algorithms, channel, engines, protocol
from fedspan.channel import Channel
from fedspan.errors import FedspanError, InputError
from fedspan.estimators.auto import Auto
from fedspan.estimators.pca import FederatedPCA
from fedspan.estimators.svd import FederatedSVD
from fedspan.federation.participation import Participation
from fedspan.ledger import Ledger
from fedspan.run import run

__version__ = "0.1.0"
__all__ = [
    "Auto",
    "Channel",
    "FederatedPCA",
    "FederatedSVD",
    "FedspanError",
    "InputError",
    "Ledger",
    "Participation",
    "algorithms",
    "channel",
    "engines",
    "protocol",
    "run",
]
