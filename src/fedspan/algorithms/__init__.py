"""The papers' algorithms: server and client side by side, one file each."""

from fedspan.algorithms.faps import Faps
from fedspan.algorithms.fedpower import FedPower
from fedspan.algorithms.krylov import Davidson, Krylov, Prior
from fedspan.algorithms.maxvar import AltMaxVar, CuteMaxVar, Mvlsa
from fedspan.algorithms.maxvar_krylov import MaxVarKrylov
from fedspan.algorithms.oneshot import DrSvd, Gram, Uda, Wda
from fedspan.algorithms.power import LocalPower, Ssi

__all__ = [
    "AltMaxVar",
    "CuteMaxVar",
    "Davidson",
    "DrSvd",
    "Faps",
    "FedPower",
    "Gram",
    "Krylov",
    "LocalPower",
    "MaxVarKrylov",
    "Mvlsa",
    "Prior",
    "Ssi",
    "Uda",
    "Wda",
]
