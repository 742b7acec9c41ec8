"""What the root key of a federation signs besides first certificates: their renewals, and lists of who was removed."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedspan.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.padding import PSS
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.x509 import Certificate

_BACKDATED = timedelta(minutes=10)  # clocks are not all alike


def load_certificate(pem: bytes) -> Certificate:
    """The certificate in PEM."""
    try:
        from cryptography import x509
    except ImportError:
        raise MissingExtraError("A federation", "flare") from None
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise InputError("A certificate cannot be read: it is not in PEM.") from None


def renew_certificate(pem: bytes, root: Path, days: int) -> bytes:
    """The same certificate with a new time: name, key and rights are those of the old one."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding

    old, authority = load_certificate(pem), load_certificate((root / "rootCA.pem").read_bytes())
    now = datetime.now(UTC)
    ends = min(now + timedelta(days=days), authority.not_valid_after_utc)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(authority.subject)
    builder = builder.public_key(old.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _BACKDATED).not_valid_after(ends)
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return bytes(builder.sign(load_root_key(root), SHA256()).public_bytes(Encoding.PEM))


def check_renewal(old: bytes, new: bytes, root: bytes) -> str:
    """Refuse a certificate that is not a later one for the same name by the same root; until when it is valid."""
    from cryptography.exceptions import InvalidSignature

    before, after, authority = map(load_certificate, (old, new, root))
    try:
        after.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise InputError("The certificate was not signed by the root certificate in this kit.") from None
    if after.subject != before.subject:
        raise InputError("The certificate is for another name than this kit's. Ask the coordinator for this kit's own.")
    if after.not_valid_after_utc <= before.not_valid_after_utc:
        raise InputError("The certificate does not last longer than the one in this kit; it is the old one.")
    return f"{after.not_valid_after_utc:%Y-%m-%d}"


def load_root_key(root: Path) -> RSAPrivateKey:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key((root / "rootCA.key").read_bytes(), None)
    except (OSError, ValueError):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise InputError(f"Cannot read the root key in {root}. Bring it from where it is kept.")
    return key


def sign_by_root(root: Path, text: bytes) -> str:
    """The root's signature of a text, in base64."""
    from cryptography.hazmat.primitives.hashes import SHA256

    return base64.b64encode(load_root_key(root).sign(text, _root_padding(), SHA256())).decode("ascii")


def is_signed_by_root(pem: bytes, text: bytes, signature: str) -> bool:
    """Whether the holder of this root certificate's key signed the text."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.hashes import SHA256

    key = load_certificate(pem).public_key()
    if not isinstance(key, RSAPublicKey):
        return False
    try:
        key.verify(base64.b64decode(signature, validate=True), text, _root_padding(), SHA256())
    except (InvalidSignature, binascii.Error, ValueError, TypeError):
        return False
    return True


def _root_padding() -> PSS:
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
    from cryptography.hazmat.primitives.hashes import SHA256

    return PSS(MGF1(SHA256()), 32)
