"""Keys and certificates as a federation's coordinator makes them, in milliseconds and without FLARE."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

NAMES = x509.NameOID
ADA, BOB = "ada@uni.example.org", "bob@uni.example.org"


def _make_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


class Authority:
    """A root, and the kits that it makes."""

    def __init__(self, name: str = "study") -> None:
        self.key, self.name = _make_key(), x509.Name([x509.NameAttribute(NAMES.COMMON_NAME, name)])

    @cached_property
    def root(self) -> bytes:
        made = self._sign(self.name, self.key.public_key(), days=(-1, 30), authority=True)
        return made.public_bytes(serialization.Encoding.PEM)

    def make_kit(self, kit: Path, name: str, role: str = "", days: tuple[float, float] = (-1, 30)) -> Path:
        """Put key, certificate and root into a kit's startup folder."""
        key = _make_key()
        parts = [x509.NameAttribute(NAMES.COMMON_NAME, name), x509.NameAttribute(NAMES.ORGANIZATION_NAME, "org")]
        if role:
            parts.append(x509.NameAttribute(NAMES.UNSTRUCTURED_NAME, role))
        made = self._sign(x509.Name(parts), key.public_key(), days)
        startup = kit / "startup"
        startup.mkdir(parents=True, exist_ok=True)
        pem, plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        (startup / "client.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, pem, plain))
        (startup / "client.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        (startup / "rootCA.pem").write_bytes(self.root)
        return kit

    def _sign(
        self, subject: x509.Name, public: rsa.RSAPublicKey, days: tuple[float, float], *, authority: bool = False
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=days[0]))
            .not_valid_after(now + timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
