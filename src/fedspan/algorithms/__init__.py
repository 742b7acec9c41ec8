"""The papers' algorithms: server and client side by side, one file each."""

from fedspan.algorithms.deep_maxvar import DeepMaxVar
from fedspan.algorithms.faps import Faps
from fedspan.algorithms.fedpower import FedPower
from fedspan.algorithms.fedsgd import FedAvg, FedSgd, SscaMomentum
from fedspan.algorithms.krylov import Davidson, Krylov, Prior
from fedspan.algorithms.learning import Limit, Sampling, Steps
from fedspan.algorithms.maxvar import AltMaxVar, CuteMaxVar, Mvlsa
from fedspan.algorithms.maxvar_krylov import MaxVarDavidson, MaxVarKrylov
from fedspan.algorithms.oneshot import DrSvd, Gram, Uda, Wda
from fedspan.algorithms.paper_noise import PaperNoise
from fedspan.algorithms.perpca import PerPca
from fedspan.algorithms.personalized_auto import PersonalAuto, PersonalEigen
from fedspan.algorithms.personalized_paper import PersonalPaper
from fedspan.algorithms.power import LocalPower, Ssi
from fedspan.algorithms.private import NoisyGram, NoisyPower
from fedspan.algorithms.ssca import Ssca
from fedspan.algorithms.ssca_vertical import VerticalSgd, VerticalSsca

__all__ = [
    "AltMaxVar",
    "CuteMaxVar",
    "Davidson",
    "DeepMaxVar",
    "DrSvd",
    "Faps",
    "FedAvg",
    "FedPower",
    "FedSgd",
    "Gram",
    "Krylov",
    "Limit",
    "LocalPower",
    "MaxVarDavidson",
    "MaxVarKrylov",
    "Mvlsa",
    "NoisyGram",
    "NoisyPower",
    "PaperNoise",
    "PerPca",
    "PersonalAuto",
    "PersonalEigen",
    "PersonalPaper",
    "Prior",
    "Sampling",
    "Ssca",
    "SscaMomentum",
    "Ssi",
    "Steps",
    "Uda",
    "VerticalSgd",
    "VerticalSsca",
    "Wda",
]
