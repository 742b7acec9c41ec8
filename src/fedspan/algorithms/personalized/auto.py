"""Personalized PCA without iterating over the data: "auto", in three exchanges.

    K. Ozkara, B. Huang, S. Diggavi. Personalized PCA for Federated Heterogeneous Data. IEEE ISIT, 2023.

Notation and what the server sees: personal_server.py; the kinds of shared part: shrinkage.py.

What differs from the paper: it iterates over all U_i and V for given variances; here λ is found by cross-validation,
and U_i = top_r(M_i + λ K_i) at once, with K_i from the pooled second moments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedspan.algorithms.personalized.personal_server import Personalized, PersonalState, blank_state
from fedspan.core.protocol import Course, Round
from fedspan.core.rng import Streams


@dataclass(frozen=True)
class PersonalAuto(Personalized):
    """Three exchanges: sketches, held-out losses, λ. U_i = top_r(M_i + λ K_i), K_i from the pooled second moments.

    (Two exchanges if `shrinkage` is a number: λ of kind 0. One more before them for each of global centering, scaling
    and partial participation.) Round 1, 2 and 3 are these exchanges.
    """

    @property
    def rounds(self) -> int:
        return 3

    def course(self) -> Course:
        return Course(self.measure_turns(), (*self.survey_turns(), self.closing_turn()))

    def init(self, rng: Streams) -> Round[PersonalState]:
        shift = yield from self.measure()
        clients = yield from self.list_clients(shift)
        return blank_state(shift, clients)

    def round(self, state: PersonalState, rng: Streams) -> Round[PersonalState]:
        t = state.t + 1
        if state.shared is None:
            shared, came = yield from self.survey(state.shift, self.draw(state.clients, rng))
            V = shared.Q[0, :, : self.k]
            state = replace(state, t=t, shared=shared, cohort=came, V=V)
            return state if self.shrinkage == "auto" else replace(state, shrinkage=float(self.shrinkage))
        if math.isnan(state.shrinkage):
            return replace((yield from self.choose(state, (0, 1))), t=t)
        return replace((yield from self.close(state)), t=t)
