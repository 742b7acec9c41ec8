"""From the parameters of PersonalizedPCA to the algorithm that runs, if they make sense."""

from __future__ import annotations

import math
from typing import Any

from fedspan.algorithms import PersonalAuto, PersonalEigen, PersonalPaper
from fedspan.algorithms.personalized.eigen import Personalized
from fedspan.data.common_schema import Schema
from fedspan.errors import InputError, nearest
from fedspan.estimators._options.spectral_solvers import Request, checked
from fedspan.estimators.launch import secure_from

CENTER = {True: "client", "client": "client", "global": "global", False: "none"}
METHODS: dict[str, type[Personalized]] = {"auto": PersonalAuto, "eigen": PersonalEigen, "paper": PersonalPaper}


def solver_for(model: Any, schema: Schema) -> Personalized:
    """The algorithm with the parameters in it, if they make sense."""
    request = checked(
        Request(
            model.n_components, "", bool(model.center), model.scale, model.tol, model.max_rounds, model.local_steps,
            None, model.participation, model.privacy, model.secure,
        ),
        schema,
    )  # fmt: skip
    if model.privacy is not None:
        raise InputError("a client's own components have no known sensitivity; leave privacy out")
    if secure_from(model.secure) and model.collect:
        raise InputError(
            "secure=True hides every client's part, collect=True would show its components; give collect=False, "
            "and use personalize(X) at the clients"
        )
    if model.method not in METHODS:
        raise InputError(f"need a known method, got {model.method!r}; {nearest(str(model.method), METHODS)}")
    if not isinstance(model.center, bool | str) or model.center not in CENTER:
        raise InputError(f"need center to be True, 'client', 'global' or False, got {model.center!r}")
    if model.clip is not None and (isinstance(model.clip, bool | str) or not 0 < model.clip < math.inf):
        raise InputError(f"need clip to be None or a number of MADs above 0, got {model.clip!r}")
    more: dict[str, Any] = {}
    for name in ("local_steps", "step"):
        if getattr(model, name) is not None:
            if model.method != "paper":
                raise InputError(f"{name} is for method='paper', got method={model.method!r}; leave it out")
            more[name] = getattr(model, name)
    if model.method != "auto":
        more |= {"tol": float(model.tol) or -1.0, "rounds": request.max_rounds}  # tol=0: all rounds
    part = model.participation
    if part is not None:
        if model.method == "eigen" or part.scheme != 2:
            what = "method='eigen' needs every client" if model.method == "eigen" else "need scheme 2"
            raise InputError(f"{what} in a round; use method='auto' or 'paper', and scheme=2, with participation")
        more |= {"count": part.count, "fraction": part.fraction}
    k = request.n_components
    return METHODS[model.method](
        k=k,
        shrinkage=model.shrinkage,
        center=CENTER[model.center],  # type: ignore[arg-type]
        scale=bool(model.scale),
        clip=float(model.clip or 0.0),
        share="sums" if model.secure or schema.n_features < 4 * k else "eigenpairs",
        collect=model.collect,
        **more,
    )
