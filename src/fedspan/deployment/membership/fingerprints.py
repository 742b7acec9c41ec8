"""Fingerprints that two people can compare over the telephone: 128 bits of a SHA-256, in groups of four digits."""

from __future__ import annotations

from hashlib import sha256

from fedspan.errors import InputError, MissingExtraError

_SHOWN_DIGITS = 32  # hexadecimal: nobody finds a second text with the same 128 bits


def fingerprint(data: bytes) -> str:
    """The fingerprint of some bytes, as people read it out."""
    digits = sha256(data).hexdigest()[:_SHOWN_DIGITS]
    return "-".join(digits[i : i + 4] for i in range(0, _SHOWN_DIGITS, 4))


def same_fingerprint(typed: str, own: str) -> bool:
    """Whether what somebody typed is this fingerprint, whatever stands between its digits."""
    digits = "".join(c for c in typed.lower() if c not in "-: \t")
    return digits == own.replace("-", "")


def fingerprint_key(public: bytes) -> str:
    """The fingerprint of the public key in a certificate, or in a request for one (PEM)."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization as form
    except ImportError:
        raise MissingExtraError("A federation", "flare") from None
    try:
        if b"BEGIN CERTIFICATE REQUEST" in public:
            holder: x509.CertificateSigningRequest | x509.Certificate = x509.load_pem_x509_csr(public)
        else:
            holder = x509.load_pem_x509_certificate(public)
    except ValueError:
        raise InputError("A key or a certificate cannot be read: it is not in PEM.") from None
    return fingerprint(holder.public_key().public_bytes(form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo))
