"""Signatures of web hooks as the Standard Webhooks specification has them: HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

PLAIN_PREFIX: Final = "whsec_"


def signing_key(text: str) -> bytes:
    """Returns the key of a secret: base64 behind `whsec_`, or the text itself. ValueError when it is none."""
    given = text.strip()
    try:
        key = (
            base64.b64decode(given.removeprefix(PLAIN_PREFIX), validate=True)
            if given.startswith(PLAIN_PREFIX)
            else given.encode()
        )
    except (binascii.Error, ValueError):
        raise ValueError("is no base64 behind whsec_") from None
    if not key:
        # Anybody could sign with it.
        raise ValueError("is empty")
    return key


def signature(key: bytes, id: str, at: str, body: bytes) -> str:
    """Returns the signature of a request; `at` is its time in seconds, as the header has it."""
    digest = hmac.new(key, f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
