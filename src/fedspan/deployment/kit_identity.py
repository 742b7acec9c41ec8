"""A site's identity in a federation on FLARE: the key and the certificate in its kit, and the root that all share.

The coordinator's root signs a certificate for each site, for the server and for each researcher. A signature counts as
a site's if its certificate is valid, was issued by that root, and names that site. That a name is a site's, and not a
researcher's, only the list of sites in the site's own file can say.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from fedspan.deployment.membership.removals import check_not_removed
from fedspan.errors import InputError, MissingExtraError, ProtocolError

_KEY, _CERTIFICATE, _ROOT = "client.key", "client.crt", "rootCA.pem"


class KitIdentity:
    """Signs with the key of a kit (RSA-PSS); reads it when it is first needed."""

    def __init__(self, kit: Path) -> None:
        self.startup = kit / "startup"

    @classmethod
    def find(cls, kit: Path) -> KitIdentity | None:
        """The identity in a kit, if there is one."""
        return cls(kit) if all((kit / "startup" / name).is_file() for name in (_KEY, _CERTIFICATE, _ROOT)) else None

    @cached_property
    def _key(self) -> Any:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        return load_pem_private_key((self.startup / _KEY).read_bytes(), None)

    @cached_property
    def _root(self) -> Any:
        return _load_pem(self.startup / _ROOT)

    @cached_property
    def certificate(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding

        return bytes(_load_pem(self.startup / _CERTIFICATE).public_bytes(Encoding.DER))

    def sign(self, message: bytes) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256

        return bytes(self._key.sign(message, _pss(), SHA256()))

    def check(self, name: str, certificate: bytes, message: bytes, signature: bytes) -> None:
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            found = x509.load_der_x509_certificate(certificate)
            found.verify_directly_issued_by(self._root)
        except (ValueError, TypeError, InvalidSignature):
            raise ProtocolError(
                f"The certificate that comes for {name!r} was not issued by this federation's root."
            ) from None
        check_not_removed(self.startup.parent, name)
        names = [item.value for item in found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
        if names != [name]:
            raise ProtocolError(f"The certificate that comes for {name!r} is another's.")
        now = datetime.now(UTC)
        for part in (found, self._root):
            if not part.not_valid_before_utc <= now <= part.not_valid_after_utc:
                raise ProtocolError(
                    f"The certificate that comes for {name!r} is valid from {part.not_valid_before_utc:%Y-%m-%d %H:%M} "
                    f"to {part.not_valid_after_utc:%Y-%m-%d %H:%M} (UTC), and by this machine's clock it is "
                    f"{now:%Y-%m-%d %H:%M}. Renew the certificate, or set the clock."
                )
        public = found.public_key()
        if not isinstance(public, RSAPublicKey):
            raise ProtocolError(f"The certificate that comes for {name!r} has no RSA key.")
        try:
            public.verify(signature, message, _pss(), SHA256())
        except InvalidSignature:
            raise ProtocolError(f"The key that comes for {name!r} is not signed by it for this run.") from None


def _pss() -> Any:
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
    from cryptography.hazmat.primitives.hashes import SHA256

    return PSS(MGF1(SHA256()), 32)


def _load_pem(path: Path) -> Any:
    try:
        from cryptography import x509
    except ImportError:
        raise MissingExtraError("A verified run", "flare") from None
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise InputError(f"{path.name} of this kit cannot be read. Ask the coordinator for a new kit.") from None
