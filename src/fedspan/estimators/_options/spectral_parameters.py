"""The parameters of FederatedPCA and FederatedSVD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from fedspan.algorithms import Davidson, DrSvd, Faps, FedPower, Gram, Krylov, LocalPower, Ssi, Uda, Wda
from fedspan.core.participation import Participation
from fedspan.core.protocol import Server
from fedspan.estimators._options.common_parameters import BITS_ON_LINKS, MAX_ROUNDS, SCALE_BY_ALL
from fedspan.estimators.choice import Auto
from fedspan.estimators.parameters import about

SOLVERS: dict[str, Callable[[], Server[Any]]] = {
    "gram": Gram,
    "krylov": Krylov,
    "davidson": Davidson,
    "faps": Faps,
    "ssi": Ssi,
    "localpower": LocalPower,
    "fedpower": FedPower,
    "uda": Uda,
    "wda": Wda,
    "drsvd": DrSvd,
}


@dataclass(eq=False, repr=False)
class SpectralParameters:
    """What can be asked of a spectral solver."""

    n_components: int | float | str | None = field(
        default=2,
        metadata=about("How many components to compute.", least=1, choices=("mle", "auto"), share=True),
    )
    _: KW_ONLY
    solver: str | Auto | Server[Any] = field(
        default="auto",
        metadata=about('The method; "auto" chooses one by its expected time.', choices=("auto", *SOLVERS)),
    )
    center: bool = field(default=True, metadata=about("Whether to subtract the mean over all clients' rows."))
    scale: bool = field(default=False, metadata=SCALE_BY_ALL)
    whiten: bool = field(
        default=False, metadata=about("Whether `transform` divides each coordinate by its standard deviation.")
    )
    tol: float = field(
        default=1e-6,
        metadata=about("Stop when the violation or the change is at most this; 0 runs all rounds.", least=0, below=1),
    )
    max_rounds: int = field(default=200, metadata=MAX_ROUNDS)
    local_steps: int | None = field(
        default=None,
        metadata=about(
            "Iterations at the clients between two communications (fedpower, localpower).", least=1, example=4
        ),
    )
    bits: int | str | None = field(default=None, metadata=BITS_ON_LINKS)
    width: int | str | None = field(
        default="auto",
        metadata=about(
            'Columns of krylov\'s first block; "auto" is several times n_components, for few rounds.',
            least=1,
            choices=("auto",),
            example=30,
        ),
    )
    angle_tol: float | None = field(
        default=None,
        metadata=about(
            "Stop when the components are this near to the exact ones, as an angle in radians (krylov).",
            above=0,
            below=1,
            example=1e-4,
        ),
    )
    participation: Participation | None = field(
        default=None,
        metadata=about("How many clients take part in each round (fedpower).", example={"fraction": 0.1}),
    )
