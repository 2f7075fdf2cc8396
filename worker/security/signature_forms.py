"""The signed text of requests between workers, the header that names the caller, and version 1 of both, which older builds send."""

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
"""Of version 1: key id, milliseconds, nonce and caller, separated by spaces."""
VERSION_1_PARTS: Final = 4
"""So many parts has that header."""


def version_1_text(method: str, target: str, body: bytes, signed_fields: str) -> bytes:
    """Returns what a MAC of version 1 covers: neither headers nor the receiver."""
    return length_prefixed(("cdc-internal-1", method, target, signed_fields, hashlib.sha256(body).hexdigest()))


def length_prefixed(parts: Iterable[str]) -> bytes:
    """Returns the parts, each behind its length, so that no two lists of parts give the same bytes."""
    return "".join(f"{len(part.encode())}:{part}" for part in parts).encode()


def mac_text(key: bytes, text: bytes) -> str:
    """Returns the HMAC-SHA256 of a text in base64."""
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
    """Returns the caller and all that goes with it. Raises ValueError where the text is malformed."""
    try:
        content: Any = parse_json(base64.urlsafe_b64decode(text))
        subject = str(content.get("subject", ""))
        return Caller(str(content["name"]), parse_grants(content["grants"]), str(content["by"]), subject), content
    except (AttributeError, KeyError, TypeError, RecursionError) as exc:
        raise ValueError(f"the text of the caller is malformed: {type(exc).__name__}") from None
