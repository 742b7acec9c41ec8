"""Who a site is: it signs its keys, and others can check that the signature is its own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

from fedspan.errors import MissingExtraError, ProtocolError


class Identity(Protocol):
    """A site's own signing key, and what it believes of the others'."""

    @property
    def certificate(self) -> bytes:
        """What others need to check its signatures."""
        ...

    def sign(self, message: bytes) -> bytes:
        """This site's signature."""
        ...

    def check(self, name: str, certificate: bytes, message: bytes, signature: bytes) -> None:
        """Refuse a signature that is not the named site's."""
        ...


@cache
def _signatures() -> Any:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    except ImportError:
        raise MissingExtraError("Secure aggregation", "privacy") from None
    return SimpleNamespace(PrivateKey=Ed25519PrivateKey, PublicKey=Ed25519PublicKey, Invalid=InvalidSignature)


class LocalIdentity:
    """An identity for clients of one process: keys that are made for it and thrown away with it."""

    def __init__(self, key: Any, known: dict[str, bytes]) -> None:
        self._key, self._known = key, known

    @property
    def certificate(self) -> bytes:
        return bytes(self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        return bytes(self._key.sign(message))

    def check(self, name: str, certificate: bytes, message: bytes, signature: bytes) -> None:
        lib = _signatures()
        if self._known.get(name) != certificate:
            raise ProtocolError(f"The certificate that comes for {name!r} is not its own.")
        try:
            lib.PublicKey.from_public_bytes(certificate).verify(signature, message)
        except lib.Invalid:
            raise ProtocolError(f"The key that comes for {name!r} is not signed by it for this run.") from None


def make_identities(names: Iterable[str]) -> dict[str, LocalIdentity]:
    """Identities that know each other, for clients of one process."""
    known: dict[str, bytes] = {}
    made = {name: LocalIdentity(_signatures().PrivateKey.generate(), known) for name in names}
    known.update({name: identity.certificate for name, identity in made.items()})
    return made
