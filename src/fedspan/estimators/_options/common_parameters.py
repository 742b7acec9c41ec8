"""What several kinds of estimators say in the same words of a parameter."""

from __future__ import annotations

from fedspan.estimators.parameters import about

N_COMPONENTS = about("How many components to compute.", least=1)
SCALE_BY_ALL = about("Whether to divide each column by its standard deviation over all clients' rows.")
MAX_ROUNDS = about("Stop after this many rounds in any case.", least=1)
ROUNDS = about("How many rounds to run.", least=1)
BITS_ON_LINKS = about(
    'Bits per number on both links; "auto" takes just enough for tol.',
    least=2,
    most=16,
    choices=("auto",),
    example=8,
)
