"""The cryptography that secure aggregation stands on, all of it from one library; nothing is invented here.

X25519 agrees on a secret between two clients, HKDF-SHA256 binds it to the roster, HMAC-SHA256 makes one key per
purpose from it, ChaCha20 stretches a key to a mask, ChaCha20-Poly1305 seals a share for one reader, and the polynomial
of Poly1305 tags sums. Randomness is the operating system's. (Shares are made in shamir.py, tags in tags.py.)
"""

from __future__ import annotations

import hmac
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from fedspan._types import Array
from fedspan.errors import MissingExtraError, ProtocolError


@cache
def _crypto_library() -> Any:
    """What is needed of the optional packages."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        from cryptography.hazmat.primitives.poly1305 import Poly1305
    except ImportError:
        raise MissingExtraError("Secure aggregation", "privacy") from None
    return SimpleNamespace(
        InvalidTag=InvalidTag,
        PrivateKey=X25519PrivateKey,
        PublicKey=X25519PublicKey,
        Cipher=Cipher,
        AEAD=ChaCha20Poly1305,
        ChaCha20=ChaCha20,
        SHA256=SHA256,
        HKDF=HKDF,
        Poly1305=Poly1305,
    )


def require_library() -> None:
    """Fail now, with what to install, rather than at the first client."""
    _crypto_library()


class PrivateKey(Protocol):
    """What is used of a private key of X25519."""

    def exchange(self, peer_public_key: Any) -> bytes: ...


def new_key() -> tuple[PrivateKey, bytes]:
    """A private key and its public half (32 bytes)."""
    key = _crypto_library().PrivateKey.generate()
    return key, key.public_key().public_bytes_raw()


def shared_secret(private: PrivateKey, public: bytes, context: bytes) -> bytes:
    """What both ends know and nobody else, bound to the context; a degenerate public key is refused."""
    lib = _crypto_library()
    try:
        agreed = private.exchange(lib.PublicKey.from_public_bytes(public))  # refuses an all-zero result
    except ValueError:
        raise ProtocolError("A public key is not one of X25519, or gives an all-zero secret.") from None
    return lib.HKDF(algorithm=lib.SHA256(), length=32, salt=context, info=b"fedspan pair").derive(agreed)


def is_public_key(public: bytes) -> bool:
    """Whether those 32 bytes are a key with which others can agree on a secret: not one of the few degenerate ones."""
    try:
        shared_secret(_throwaway_key(), public, b"check")
    except ProtocolError:
        return False
    return True


@cache
def _throwaway_key() -> PrivateKey:
    return new_key()[0]


def purpose_key(secret: bytes, *purpose: object) -> bytes:
    """A key of 32 bytes for one purpose."""
    return hmac.digest(secret, repr(purpose).encode(), "sha256")


def same(tag: bytes, other: bytes) -> bool:
    """Whether two tags are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(tag, other)


def stream(key: bytes, words: int, out: bytearray | None = None) -> Array:
    """A mask: that many uniform numbers modulo 2^64. A key is used for one mask only, so the nonce may be constant.

    `out`: 8 bytes per word to write the mask into, for those who make many of them.
    """
    lib = _crypto_library()
    cipher = lib.Cipher(lib.ChaCha20(key, bytes(16)), None).encryptor()
    if out is None:
        return np.frombuffer(cipher.update(_zeros(8 * words)), dtype="<u8")
    cipher.update_into(_zeros(8 * words), out)
    return np.frombuffer(out, dtype="<u8", count=words)


@lru_cache(maxsize=2)
def _zeros_up_to(exponent: int) -> memoryview:
    return memoryview(bytes(2**exponent))


def _zeros(length: int) -> memoryview:
    return _zeros_up_to(length.bit_length())[:length]


def seal(key: bytes, secret: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate, 16 bytes longer. A key seals one message only, so the nonce may be constant."""
    return _crypto_library().AEAD(key).encrypt(bytes(12), secret, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """What was sealed; a message that is not the sender's for this place is refused."""
    try:
        return _crypto_library().AEAD(key).decrypt(bytes(12), sealed, context)
    except _crypto_library().InvalidTag:
        raise ProtocolError("A sealed share does not open: it was tampered with, swapped or replayed.") from None


def evaluate_poly1305(r: bytes, blocks: Array) -> int:
    """Σ_j (u_j + 2^128) r^(q+1-j) modulo 2^130 - 5, and that modulo 2^128, for whole blocks u_j of 16 bytes."""
    return int.from_bytes(_crypto_library().Poly1305.generate_tag(r + bytes(16), blocks.view(np.uint8).data), "little")
