"""The papers' algorithms: a folder for each family, and in it a file for each method, server and client together."""

from fedspan.algorithms.gcca.altmaxvar import AltMaxVar, CuteMaxVar, Mvlsa
from fedspan.algorithms.gcca.deep import DeepMaxVar
from fedspan.algorithms.gcca.kept_maxvar import KeptMaxVar
from fedspan.algorithms.gcca.maxvar_krylov import MaxVarDavidson, MaxVarKrylov
from fedspan.algorithms.gcca.study import StudyViews
from fedspan.algorithms.learning import Limit, Sampling, Steps
from fedspan.algorithms.learning.local_ssca import LocalSsca
from fedspan.algorithms.learning.newton import LogisticNewton, RegressionNewton
from fedspan.algorithms.learning.sgd import FedAdam, FedAvg, FedSgd, Scaffold, SscaMomentum
from fedspan.algorithms.learning.ssca import Ssca
from fedspan.algorithms.learning.vertical import VerticalSgd, VerticalSsca
from fedspan.algorithms.learning.vertical_guarded import VerticalGuarded
from fedspan.algorithms.learning.vertical_linear import VerticalLinear
from fedspan.algorithms.personalized.auto import PersonalAuto
from fedspan.algorithms.personalized.eigen import PersonalEigen
from fedspan.algorithms.personalized.paper import PersonalPaper
from fedspan.algorithms.personalized.perpca import PerPca
from fedspan.algorithms.spectral import SpectralState
from fedspan.algorithms.spectral.columns_krylov import ColumnsKrylov
from fedspan.algorithms.spectral.faps import Faps
from fedspan.algorithms.spectral.fedpower import FedPower, PaperNoise
from fedspan.algorithms.spectral.krylov import Davidson, Krylov, Prior
from fedspan.algorithms.spectral.noisy import Known, NoisyGram, NoisyPower, NoisyRefine
from fedspan.algorithms.spectral.oneshot import DrSvd, Gram, Uda, Wda
from fedspan.algorithms.spectral.power import LocalPower, Ssi

__all__ = [
    "AltMaxVar",
    "ColumnsKrylov",
    "CuteMaxVar",
    "Davidson",
    "DeepMaxVar",
    "DrSvd",
    "Faps",
    "FedAdam",
    "FedAvg",
    "FedPower",
    "FedSgd",
    "Gram",
    "KeptMaxVar",
    "Known",
    "Krylov",
    "Limit",
    "LocalPower",
    "LocalSsca",
    "LogisticNewton",
    "MaxVarDavidson",
    "MaxVarKrylov",
    "Mvlsa",
    "NoisyGram",
    "NoisyPower",
    "NoisyRefine",
    "PaperNoise",
    "PerPca",
    "PersonalAuto",
    "PersonalEigen",
    "PersonalPaper",
    "Prior",
    "RegressionNewton",
    "Sampling",
    "Scaffold",
    "SpectralState",
    "Ssca",
    "SscaMomentum",
    "Ssi",
    "Steps",
    "StudyViews",
    "Uda",
    "VerticalGuarded",
    "VerticalLinear",
    "VerticalSgd",
    "VerticalSsca",
    "Wda",
]
