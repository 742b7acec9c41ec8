"""What a researcher asks of a federation, signed with the key of his or her kit, so that the sites need not trust the
server to say who asks for what.

The signature is over the text as it was sent (RSA-PSS, SHA-256). Its digest names the order everywhere: in the list of
what waits, in the site's book, and in the file that keeps the administrator's decision.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TypedDict

from fedspan._foreign import parse_json, printable
from fedspan._version import __version__
from fedspan.core.checkpoint import build
from fedspan.deployment.kit_identity import KitIdentity
from fedspan.deployment.run_request import RunRequest
from fedspan.errors import CheckpointError, PolicyRefusal, ProtocolError

_SIGNED_FOR = b"fedspan order\n"  # so that no other signature of the same key can stand for an order
_MOST_ORDER = 1_000_000  # characters of an order


class _OrderTree(TypedDict):
    """An `Order` in JSON."""

    fedspan: str
    sites: tuple[str, ...]
    requests: list[object]


@dataclass(frozen=True)
class Submitter:
    """Who signed an order, as the certificate says that the coordinator's root signed."""

    name: str
    organisation: str
    role: str
    fingerprint: str  # of the certificate, SHA-256


@dataclass(frozen=True)
class SignedOrder:
    """An order as it travels: its text, the submitter's certificate (DER) and signature, both in base64."""

    text: str
    certificate: str
    signature: str

    @cached_property
    def digest(self) -> str:
        return sha256(self.text.encode()).hexdigest()

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_json(cls, tree: object) -> SignedOrder:
        """The signed order in a job, or a refusal."""
        try:
            signed = build(cls, tree)
        except CheckpointError as error:
            raise PolicyRefusal(f"The job must carry an order that a researcher has signed: {error}") from None
        if len(signed.text) > _MOST_ORDER:
            raise PolicyRefusal(f"The job's order has {len(signed.text)} characters; at most {_MOST_ORDER} are read.")
        return signed


@dataclass(frozen=True)
class Order:
    """An order whose signature is good: who asks which sites for which runs."""

    digest: str
    submitter: Submitter
    fedspan: str
    sites: tuple[str, ...]
    requests: tuple[RunRequest, ...]

    def find_request(self, run: str) -> RunRequest:
        """What was asked under that run's name."""
        found = next((request for request in self.requests if request.run == run), None)
        if found is None:
            raise PolicyRefusal(
                f"The server opens the run {run[:12]!r}, but the order that {self.submitter.name} signed has no such "
                "run."
            )
        return found


def sign_order(kit: Path, requests: Sequence[RunRequest], sites: Sequence[str]) -> SignedOrder:
    """Sign requests with the key of a researcher's kit. The same requests to the same sites are the same order."""
    tree: dict[str, object] = {"fedspan": __version__, "sites": sorted(sites)}
    tree["requests"] = [request.to_json() for request in requests]
    text = json.dumps(tree, sort_keys=True)
    identity = KitIdentity(kit)
    signature = identity.sign(_SIGNED_FOR + text.encode())
    return SignedOrder(text, _encode_order(identity.certificate), _encode_order(signature))


def verify_order(kit: Path, signed: SignedOrder) -> Order:
    """The order, if a researcher signed it whose certificate the root in this kit has signed; else a refusal."""
    try:
        certificate, signature = (
            base64.b64decode(part, validate=True) for part in (signed.certificate, signed.signature)
        )
    except (binascii.Error, ValueError):
        raise PolicyRefusal("The order's certificate or signature is not in base64.") from None
    submitter = _read_submitter(certificate)
    try:
        KitIdentity(kit).check(submitter.name, certificate, _SIGNED_FOR + signed.text.encode(), signature)
    except ProtocolError as error:
        raise PolicyRefusal(
            f"The order is not one that a researcher of this federation signed, or it was changed since: {error}"
        ) from None
    if not submitter.role:
        raise PolicyRefusal(
            f"The order is signed by {printable(submitter.name)!r}, whose certificate is not a researcher's."
        )
    try:
        tree = build(_OrderTree, parse_json(signed.text, constants=True))
        requests = tuple(RunRequest.from_json(each) for each in tree["requests"])
    except (CheckpointError, ProtocolError, ValueError) as error:
        raise PolicyRefusal(f"The order cannot be read: {error}") from None
    if not requests or len({request.run for request in requests}) < len(requests):
        raise PolicyRefusal("An order must ask for at least one run, and for each run once.")
    return Order(signed.digest, submitter, tree["fedspan"], tree["sites"], requests)


def _read_submitter(certificate: bytes) -> Submitter:
    from cryptography import x509

    try:
        found = x509.load_der_x509_certificate(certificate)
    except ValueError:
        raise PolicyRefusal("The order's certificate cannot be read.") from None

    def read(oid: x509.ObjectIdentifier) -> str:
        values = [item.value for item in found.subject.get_attributes_for_oid(oid)]
        return str(values[0]) if len(values) == 1 else ""

    names = x509.NameOID
    role = read(names.UNSTRUCTURED_NAME)  # where FLARE keeps it; sites and the server have none
    return Submitter(read(names.COMMON_NAME), read(names.ORGANIZATION_NAME), role, sha256(certificate).hexdigest())


def _encode_order(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
