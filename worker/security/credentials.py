"""Passwords and tokens: made at random, kept as scrypt hashes, compared in constant time."""

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
"""16 MiB and some 40 ms for each guess."""
LOG_N_MAX: Final = 17
MEMORY_BYTES_MAX: Final = 192 << 20
HASH: Final = re.compile(
    r"scrypt\$ln=(?P<ln>1[0-7]),r=(?P<r>[0-9]{1,2}),p=(?P<p>[0-9])"
    r"\$(?P<salt>[A-Za-z0-9_-]{16,64})\$(?P<hash>[A-Za-z0-9_-]{43})"
)
TOKEN: Final = re.compile(r"cdc_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})")
"""The id finds the hash without trying all of them; it is no secret and stands in logs."""


def hashed(secret: str, *, log_n: int = LOG_N) -> str:
    salt = secrets.token_bytes(SALT_BYTES)
    return f"scrypt$ln={log_n},r=8,p=1${_text(salt)}${_text(_scrypt(secret, salt, log_n, 8, 1))}"


def is_hash(text: str) -> bool:
    return HASH.fullmatch(text) is not None


def matches(secret: str, stored: str) -> bool:
    """Slow on purpose; False for a hash that is none."""
    found = HASH.fullmatch(stored)
    if found is None:
        return False
    given = _scrypt(secret, _bytes(found["salt"]), int(found["ln"]), int(found["r"]), int(found["p"]))
    return hmac.compare_digest(given, _bytes(found["hash"]))


def new_token() -> tuple[str, str, str]:
    """(id, the token to hand out, the hash to keep)."""
    id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return id, f"cdc_{id}_{secret}", hashed(secret)


def token_parts(token: str) -> tuple[str, str] | None:
    found = TOKEN.fullmatch(token)
    return None if found is None else (found["id"], found["secret"])


def _scrypt(secret: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, n=1 << log_n, r=r, p=p, maxmem=MEMORY_BYTES_MAX, dklen=HASH_BYTES)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
