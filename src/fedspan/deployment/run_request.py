"""What a researcher asks of a federation, as plain data: an estimator with its parameters, or an algorithm's fields.

Where data is, it cannot say: that is the sites' own business. Sites read requests, too, so nothing here needs the
estimators themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from fedspan.core.checkpoint import build
from fedspan.core.protection import RETRIES
from fedspan.engines.start import TableRequest, check_run_name
from fedspan.errors import CheckpointError, ProtocolError
from fedspan.estimators.matching.match_views import MATCHES
from fedspan.secure.masking import Secure

LABELLED_ESTIMATORS = ("FederatedClassifier", "VerticalFederatedClassifier")
VIEW_ESTIMATORS = ("FederatedGCCA", "DeepFederatedGCCA", "VerticalFederatedClassifier", "VerticalPCA", "VerticalSVD")
# Those of views that compare ids themselves.
COMPARING_ESTIMATORS = ("FederatedGCCA", "DeepFederatedGCCA", "VerticalPCA", "VerticalSVD")
FEDERATED_ESTIMATORS = (
    "FederatedPCA",
    "FederatedSVD",
    "PersonalizedPCA",
    *LABELLED_ESTIMATORS,
    "FederatedGCCA",
    "DeepFederatedGCCA",
    "FederatedRegressor",
    "VerticalPCA",
    "VerticalSVD",
)


class SecureRequest(TypedDict, total=False):
    """Whether sums are to be secure, over how many sites at least, whether the sites verify them, and in which groups.

    `verified` None: where the algorithm allows it.
    """

    enabled: bool
    threshold: int | None
    verified: bool | None
    groups: list[list[str]] | int | None


@dataclass(frozen=True)
class RunRequest:
    """What a researcher requests, as plain data.

    `secure` None: secure sums if there are three sites or more, where the estimator can do with sums.
    """

    run: str
    estimator: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str | None = None  # in place of an estimator
    fields: object = None
    channel: object = None
    rounds: int = 0
    seed: int = 0
    table: TableRequest = field(default_factory=TableRequest)
    privacy: Mapping[str, object] = field(default_factory=dict)
    secure: Mapping[str, object] | None = None  # a `SecureRequest`
    sums: bool = True  # whether secure sums are to be the default
    min_clients: int | None = None
    retries: int = RETRIES
    checkpoint_every: int = 1
    timeout: float = 60.0
    match: str = "order"  # how the rows of views are matched by their ids

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, tree: object) -> RunRequest:
        """The request in a job, or a refusal."""
        try:
            request = build(cls, tree, defaults=True)
        except CheckpointError as error:
            raise ProtocolError(f"The job must hold a request of fedspan, but holds something else: {error}") from None
        check_run_name(request.run)  # it names a folder here, too
        if (request.estimator is None) == (request.algorithm is None):
            raise ProtocolError("A request must name either an estimator or an algorithm.")
        if request.match not in MATCHES or (request.match != "order" and request.estimator not in VIEW_ESTIMATORS):
            raise ProtocolError(f"Rows of views are matched by one of {', '.join(MATCHES)}, not by {request.match!r}.")
        if request.estimator is not None and request.estimator not in FEDERATED_ESTIMATORS:
            raise ProtocolError(
                f"{request.estimator!r} does not run in a federation, but these do: {', '.join(FEDERATED_ESTIMATORS)}."
            )
        return request

    def choose_secure(self, sites: int) -> Secure | None:
        """The secure sums that are requested, or that are the default with this many sites."""
        if self.secure is None:
            return Secure(verified="auto") if self.sums and sites >= 3 else None
        requested = build(SecureRequest, self.secure)
        if not requested.get("enabled"):
            return None
        verified = requested.get("verified")
        return Secure(requested.get("threshold"), "auto" if verified is None else verified, requested.get("groups"))
