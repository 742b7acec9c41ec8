"""The parameters of PersonalizedPCA, and the algorithm that they come to."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from fedspan.algorithms import PersonalAuto, PersonalEigen, PersonalPaper
from fedspan.algorithms.personalized.personal_server import Personalized
from fedspan.core.participation import Participation
from fedspan.data.clients import Schema
from fedspan.errors import InputError
from fedspan.estimators._options.common_parameters import SCALE_BY_ALL
from fedspan.estimators._options.spectral_solvers import check_components
from fedspan.estimators.parameters import about
from fedspan.secure.masking import Secure

CENTER: dict[bool | str, Literal["client", "global", "none"]] = {
    True: "client",
    "client": "client",
    "global": "global",
    False: "none",
}
METHODS: dict[str, type[Personalized]] = {"auto": PersonalAuto, "eigen": PersonalEigen, "paper": PersonalPaper}


@dataclass(eq=False, repr=False)
class PersonalParameters:
    """What can be asked of a method of personalized PCA."""

    n_components: int = field(default=2, metadata=about("How many components each client gets.", least=1))
    _: KW_ONLY
    method: str = field(
        default="auto",
        metadata=about(
            'The method; "auto" needs three exchanges, "eigen" and "paper" alternate until they converge.',
            choices=tuple(METHODS),
        ),
    )
    shrinkage: float | str = field(
        default="auto",
        metadata=about(
            "λ, how strongly clients are drawn together: 0 is each client alone, inf one set for all; "
            '"auto" finds it by cross-validation.',
            least=0,
            choices=("auto",),
        ),
    )
    center: bool | str = field(
        default=True,
        metadata=about(
            "Whether to subtract each client's own mean; 'global' subtracts the mean of all rows.",
            choices=("client", "global"),
        ),
    )
    scale: bool = field(default=False, metadata=SCALE_BY_ALL)
    tol: float = field(
        default=1e-8,
        metadata=about(
            "Stop when the objective changes by at most this share of itself (eigen, paper); 0 runs all rounds.",
            least=0,
            below=1,
        ),
    )
    max_rounds: int = field(
        default=500, metadata=about("Stop after this many rounds in any case (eigen, paper).", least=1)
    )
    local_steps: int | None = field(
        default=None, metadata=about("Steps at the clients in each round (paper).", least=1, example=4)
    )
    step: str | tuple[float, float] | None = field(
        default=None,
        metadata=about("The step sizes (paper).", choices=("safe", "lemmas"), example="safe"),
    )
    clip: float | None = field(
        default=None,
        metadata=about(
            "Cut every column of a client at its median ± clip·MAD before anything else.",
            above=0,
            below=math.inf,
            example=5.0,
        ),
    )
    collect: bool = field(
        default=True, metadata=about("Whether the clients' components and means come back to the caller.")
    )
    participation: Participation | None = field(
        default=None,
        metadata=about("How many clients take part in each round (auto, paper).", example={"fraction": 0.1}),
    )


def build_personal_algorithm(asked: PersonalParameters, schema: Schema, secure: Secure | None) -> Personalized:
    """The algorithm with all its options; a combination that makes no sense is refused."""
    k = int(asked.n_components)
    check_components(k, schema.n_features)
    if secure is not None and asked.collect:
        raise InputError(
            "secure=True hides each client's part, but collect=True would show its components. Give collect=False, and "
            "call personalize(X) at the clients."
        )
    options: dict[str, object] = {
        "k": k,
        "shrinkage": asked.shrinkage,
        "center": CENTER[asked.center],
        "scale": bool(asked.scale),
        "clip": float(asked.clip or 0.0),
        "share": "sums" if secure is not None or schema.n_features < 4 * k else "eigenpairs",
        "collect": asked.collect,
    }
    for name, value in (("local_steps", asked.local_steps), ("step", asked.step)):
        if value is not None:
            if asked.method != "paper":
                raise InputError(f"{name} is for method='paper', not for method={asked.method!r}; leave it out.")
            options[name] = value
    if asked.method != "auto":
        options["tol"] = float(asked.tol) or -1.0  # tol=0: all rounds
        options["rounds"] = int(asked.max_rounds)
    part = asked.participation
    if part is not None:
        if asked.method == "eigen":
            raise InputError(
                "method='eigen' needs every client in each round; use method='auto' or 'paper' with participation."
            )
        if part.scheme != 2:
            raise InputError(f"participation must be of scheme 2 here, but is of scheme {part.scheme}.")
        options |= {"count": part.count, "fraction": part.fraction}
    return METHODS[asked.method](**options)  # type: ignore[arg-type]
