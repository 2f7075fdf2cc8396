"""The texts of signatures between workers: what a MAC covers, who asks, and the form that builds before version 2 of it send."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.schemas.untrusted.json_text import parse_json
from cdcworker.worker.security.access import Caller, parse_grants

MAC_HEADER: Final = "x-connect-authorization"
ALGORITHM_HEADER: Final = "x-connect-request-signature-algorithm"
SIGNED_HEADER: Final = "x-cdc-signed"
"""The three headers of the earlier form. The last one holds key id, milliseconds, nonce and caller, separated by spaces."""
EARLIER_PARTS: Final = 4


def earlier_text(method: str, target: str, body: bytes, signed_fields: str) -> bytes:
    """Returns what a MAC of the earlier form covers: neither headers nor the receiver."""
    return with_lengths(("cdc-internal-1", method, target, signed_fields, hashlib.sha256(body).hexdigest()))


def with_lengths(parts: Iterable[str]) -> bytes:
    """Returns the parts, each behind its length, so that no two lists of parts give the same bytes."""
    return "".join(f"{len(part.encode())}:{part}" for part in parts).encode()


def mac_text(key: bytes, text: bytes) -> str:
    return base64.b64encode(hmac.digest(key, text, "sha256")).decode()


def mac_bytes(text: str) -> bytes:
    """Returns the MAC that a request brings; empty, which no MAC is, for a text that holds none."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def encoded_caller(caller: Caller, **more: str) -> str:
    """Returns the caller as a text without spaces; `more` goes with it, and readers may ignore it."""
    content = {"name": caller.name, "grants": [str(grant) for grant in caller.grants], "by": caller.by, **more}
    if caller.subject:
        content["subject"] = caller.subject
    return base64.urlsafe_b64encode(json.dumps(content, separators=(",", ":")).encode()).decode()


def decoded_caller(text: str) -> tuple[Caller, Mapping[str, Any]]:
    """Returns the caller and all that goes with it. ValueError for a text of another form."""
    try:
        content: Any = parse_json(base64.urlsafe_b64decode(text))
        subject = str(content.get("subject", ""))
        return Caller(str(content["name"]), parse_grants(content["grants"]), str(content["by"]), subject), content
    except (AttributeError, KeyError, TypeError, RecursionError) as exc:
        raise ValueError(f"names no caller: {type(exc).__name__}") from None
