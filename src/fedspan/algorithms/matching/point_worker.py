"""Points of the curve P-256 in a process of its own: reads points from its input, and writes them multiplied.

It is started by its path, so that it needs nothing of the package and none of a user's script. A request is one byte
(`HASH` or `MULTIPLY`), the number of points in 4 bytes, and 32 bytes for each; before the first one come the 32 bytes
of the key. An answer is one byte (`DONE` or `INVALID`), and after `DONE` 32 bytes for each point.

A point is its x-coordinate: x(k·P) and x(k·(-P)) are the same, so blinding needs no y, and the order of two blindings
does not matter. The group has prime order, so that every point on the curve other than infinity, which has no x, is as
good as any other: there are no small subgroups, and nothing of an id survives blinding.
"""

import sys
from hashlib import sha256

HASH, MULTIPLY, DONE, INVALID = b"h", b"m", b"+", b"-"
SIZE = 32
LABEL = b"fedspan matching of ids, P-256, 1"


class InvalidPointError(ValueError):
    """What was sent is not the x-coordinate of a point on the curve."""


class Blinder:
    """A secret key, and what it does to points."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self.curve, self.exchange = ec.SECP256R1(), ec.ECDH()
        self.decode = ec.EllipticCurvePublicKey.from_encoded_point
        self.key = ec.derive_private_key(int.from_bytes(key, "big"), self.curve)

    def multiply(self, points: bytes) -> bytes:
        """Every point times the key; one that is not on the curve is refused."""
        found = []
        for start in range(0, len(points), SIZE):
            try:
                point = self.decode(self.curve, b"\x02" + points[start : start + SIZE])
            except ValueError:
                raise InvalidPointError(start // SIZE) from None
            found.append(self.key.exchange(self.exchange, point))
        return b"".join(found)

    def hash_and_multiply(self, digests: bytes) -> bytes:
        """Every digest as a point (the first of SHA-256 with a counter that is one), times the key."""
        starts = range(0, len(digests), SIZE)
        return b"".join([self._hash_and_multiply_one(digests[start : start + SIZE]) for start in starts])

    def _hash_and_multiply_one(self, digest: bytes) -> bytes:
        counter = 0
        while True:
            x = sha256(LABEL + counter.to_bytes(4, "big") + digest).digest()
            try:
                point = self.decode(self.curve, b"\x02" + x)
            except ValueError:
                counter += 1
            else:
                return self.key.exchange(self.exchange, point)


def serve() -> None:
    """Answer requests until the input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    blinder = Blinder(source.read(SIZE))
    while kind := source.read(1):
        points = source.read(SIZE * int.from_bytes(source.read(4), "big"))
        try:
            answer = DONE + (blinder.hash_and_multiply(points) if kind == HASH else blinder.multiply(points))
        except InvalidPointError:
            answer = INVALID
        sink.write(answer)
        sink.flush()


if __name__ == "__main__":
    serve()
