"""Certificates as they would be if the clock that they were made by had been wrong."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key


def shift_certificate(pem: bytes, root: Path, *, days: float) -> bytes:
    """The same certificate, by the same root, so many days later."""
    old = x509.load_pem_x509_certificate(pem)
    key = load_pem_private_key((root / "rootCA.key").read_bytes(), None)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(old.issuer).public_key(old.public_key())
    builder = builder.serial_number(1).not_valid_before(old.not_valid_before_utc + timedelta(days=days))
    builder = builder.not_valid_after(old.not_valid_after_utc + timedelta(days=days))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
