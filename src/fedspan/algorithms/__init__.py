"""The papers' algorithms: server and client side by side, one file each."""

from fedspan.algorithms.deep_maxvar import DeepMaxVar
from fedspan.algorithms.faps import Faps
from fedspan.algorithms.fedpower import FedPower
from fedspan.algorithms.krylov import Davidson, Krylov, Prior
from fedspan.algorithms.oneshot import DrSvd, Gram, Uda, Wda
from fedspan.algorithms.power import LocalPower, Ssi

__all__ = [
    "Davidson", "DeepMaxVar", "DrSvd", "Faps", "FedPower", "Gram", "Krylov", "LocalPower", "Prior", "Ssi", "Uda", "Wda",
]  # fmt: skip
