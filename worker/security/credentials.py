"""Passwords and tokens: created at random, stored as scrypt hashes, compared in constant time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import Final

SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
LOG_N: Final = 14
"""scrypt's cost: 16 MiB and about 40 ms for each guess."""
LOG_N_MAX: Final = 17
MEMORY_BYTES_MAX: Final = 192 << 20
HASH: Final = re.compile(
    r"scrypt\$ln=(?P<ln>1[0-7]),r=(?P<r>[0-9]{1,2}),p=(?P<p>[0-9])"
    r"\$(?P<salt>[A-Za-z0-9_-]{16,64})\$(?P<hash>[A-Za-z0-9_-]{43})"
)
TOKEN: Final = re.compile(r"cdc_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})")
"""The form of a token. Its id finds the hash without a check of all hashes; the id is no secret and appears in logs."""


def hashed(secret: str, *, log_n: int = LOG_N) -> str:
    """Returns the scrypt hash of a secret with a new salt."""
    salt = secrets.token_bytes(SALT_BYTES)
    return f"scrypt$ln={log_n},r=8,p=1${_text(salt)}${_text(_scrypt(secret, salt, log_n, 8, 1))}"


def is_hash(text: str) -> bool:
    return HASH.fullmatch(text) is not None


def matches(secret: str, stored: str) -> bool:
    """Returns whether the secret has this hash; slow on purpose. False for a text that is no hash."""
    parts = HASH.fullmatch(stored)
    if parts is None:
        return False
    given = _scrypt(secret, _bytes(parts["salt"]), int(parts["ln"]), int(parts["r"]), int(parts["p"]))
    return hmac.compare_digest(given, _bytes(parts["hash"]))


def new_token() -> tuple[str, str, str]:
    """Returns (id, the token to hand out, the hash to store)."""
    id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return id, f"cdc_{id}_{secret}", hashed(secret)


def token_parts(token: str) -> tuple[str, str] | None:
    """Returns (id, secret) of a token, None for a text that is none."""
    parts = TOKEN.fullmatch(token)
    return None if parts is None else (parts["id"], parts["secret"])


def _scrypt(secret: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, n=1 << log_n, r=r, p=p, maxmem=MEMORY_BYTES_MAX, dklen=HASH_BYTES)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
