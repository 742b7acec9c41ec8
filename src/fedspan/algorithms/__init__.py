"""The papers' algorithms: server and client side by side, one file each."""

from fedspan.algorithms.faps import Faps
from fedspan.algorithms.fedpower import FedPower
from fedspan.algorithms.fedsgd import FedAvg, FedSgd, SscaMomentum
from fedspan.algorithms.krylov import Davidson, Krylov, Prior
from fedspan.algorithms.learning import Limit, Steps
from fedspan.algorithms.oneshot import DrSvd, Gram, Uda, Wda
from fedspan.algorithms.power import LocalPower, Ssi
from fedspan.algorithms.ssca import Ssca
from fedspan.algorithms.ssca_vertical import VerticalSgd, VerticalSsca

__all__ = [
    "Davidson",
    "DrSvd",
    "Faps",
    "FedAvg",
    "FedPower",
    "FedSgd",
    "Gram",
    "Krylov",
    "Limit",
    "LocalPower",
    "Prior",
    "Ssca",
    "SscaMomentum",
    "Ssi",
    "Steps",
    "Uda",
    "VerticalSgd",
    "VerticalSsca",
    "Wda",
]
