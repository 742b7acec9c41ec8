"""The papers' algorithms: server and client side by side, one file each."""

from fedspan.algorithms.faps import Faps
from fedspan.algorithms.fedpower import FedPower
from fedspan.algorithms.krylov import Davidson, Krylov, Prior
from fedspan.algorithms.oneshot import DrSvd, Gram, Uda, Wda
from fedspan.algorithms.perpca import PerPca
from fedspan.algorithms.personalized_auto import PersonalAuto, PersonalEigen
from fedspan.algorithms.personalized_paper import PersonalPaper
from fedspan.algorithms.power import LocalPower, Ssi

__all__ = [
    "Davidson",
    "DrSvd",
    "Faps",
    "FedPower",
    "Gram",
    "Krylov",
    "LocalPower",
    "PerPca",
    "PersonalAuto",
    "PersonalEigen",
    "PersonalPaper",
    "Prior",
    "Ssi",
    "Uda",
    "Wda",
]
