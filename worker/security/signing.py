"""How workers know each other's requests: a session key in the config log, and a MAC over all that a request says."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import declare
from cdcworker.worker.rest import errors as e
from cdcworker.worker.security.access import Caller, parse_grants, unsigned

SESSION_KEY: Final = "session-key"
"""The record's key in the config log, as Kafka Connect names it."""
ALGORITHM: Final = "HmacSHA256"
MAC_HEADER: Final = "x-connect-authorization"
ALGORITHM_HEADER: Final = "x-connect-request-signature-algorithm"
SIGNED_HEADER: Final = "x-cdc-signed"
"""Key id, milliseconds, nonce and caller: what the MAC covers besides the request itself."""
KEY_BYTES: Final = 32
KEYS_KEPT: Final = 2
"""The key before the present one stays good: a request may be under way while keys change."""
FRESH_S: Final = 120.0
"""How far the clocks of two workers may be apart."""
NONCES_MAX: Final = 100_000

BAD_SIGNATURE: Final = declare(
    "rest.bad_signature",
    "transient",
    "The signature of a request between workers does not hold",
    "Repeat: the key may just have changed. If it stays, compare the clocks of the workers (120 s apart at most).",
)
NO_KEY: Final = declare(
    "rest.no_session_key",
    "transient",
    "This worker has not read the key of requests between workers yet",
    "Repeat after Retry-After seconds.",
)


@dataclass(frozen=True, slots=True)
class SessionKey:
    id: str
    secret: bytes
    created_ms: int

    def __repr__(self) -> str:
        return f"SessionKey({self.id})"


def keys_of(settings: Mapping[str, JsonObject]) -> tuple[SessionKey, ...]:
    """Newest first; none when there is no record, or one that this version cannot read."""
    try:
        items = settings.get(SESSION_KEY, {}).get("keys", [])
        keys = (SessionKey(str(i["id"]), base64.b64decode(i["key"]), int(i["created_ms"])) for i in items)
        return tuple(key for key in keys if len(key.secret) >= KEY_BYTES and key.id)
    except (KeyError, TypeError, ValueError, AttributeError):
        return ()


def next_value(keys: tuple[SessionKey, ...], now_ms: int) -> JsonObject:
    """The record with a new key in front of the one that was."""
    new = SessionKey(secrets.token_hex(4), secrets.token_bytes(KEY_BYTES), now_ms)
    kept = (new, *keys)[:KEYS_KEPT]
    listed = [
        {"id": key.id, "key": base64.b64encode(key.secret).decode(), "created_ms": key.created_ms} for key in kept
    ]
    return {"v": 1, "algorithm": ALGORITHM, "keys": listed}


@dataclass(frozen=True, slots=True)
class Signed:
    """What a signature is over. `target` is the raw path with its query."""

    method: str
    target: str
    body: bytes

    def mac(self, key: SessionKey, said: str) -> bytes:
        digest = hashlib.sha256(self.body).hexdigest()
        parts = ("cdc-internal-1", self.method, self.target, said, digest)
        text = "".join(f"{len(part.encode())}:{part}" for part in parts)
        return hmac.digest(key.secret, text.encode(), "sha256")


class Signer:
    """Signs what this worker sends, checks what it gets. `settings` gives the folded config log's records."""

    def __init__(
        self, settings: Callable[[], Mapping[str, JsonObject]], clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._seen: OrderedDict[str, float] = OrderedDict()

    def sign(self, request: Signed, caller: Caller) -> dict[str, str]:
        """The headers; none when there is no key yet."""
        keys = keys_of(self._settings())
        if not keys:
            return {}
        key, nonce = keys[0], secrets.token_hex(16)
        said = f"{key.id} {round(self._clock() * 1000)} {nonce} {_packed(caller)}"
        mac = base64.b64encode(request.mac(key, said)).decode()
        return {MAC_HEADER: mac, ALGORITHM_HEADER: ALGORITHM, SIGNED_HEADER: said}

    def knows_key(self, headers: Mapping[str, str]) -> bool:
        """Whether this worker has read the key that the request names."""
        id = headers.get(SIGNED_HEADER, "").partition(" ")[0]
        return any(key.id == id for key in keys_of(self._settings()))

    def verified(self, request: Signed, headers: Mapping[str, str]) -> Caller:
        """Who asks, as the signing worker says. RestError: 400 unsigned or another algorithm, 403 wrong, 503 no key."""
        if MAC_HEADER not in headers or SIGNED_HEADER not in headers:
            raise unsigned()
        if headers.get(ALGORITHM_HEADER, ALGORITHM) != ALGORITHM:
            raise e.bad_request(f"This worker takes {ALGORITHM} only as signature algorithm")
        keys = {key.id: key for key in keys_of(self._settings())}
        if not keys:
            raise e.RestError(503, "No session key has been read yet", NO_KEY, headers={"Retry-After": "1"})
        said = headers[SIGNED_HEADER]
        parts = said.split(" ")
        if len(parts) != 4 or parts[0] not in keys:
            raise bad_signature()
        if not hmac.compare_digest(request.mac(keys[parts[0]], said), _mac(headers[MAC_HEADER])):
            raise bad_signature()
        self._check_fresh(parts[1], parts[2])
        return _unpacked(parts[3])

    def _check_fresh(self, moment_ms: str, nonce: str) -> None:
        """After the MAC: only workers can fill the memory of nonces."""
        now = self._clock()
        if not moment_ms.isdigit() or abs(now - int(moment_ms) / 1000) > FRESH_S or nonce in self._seen:
            raise bad_signature()
        while self._seen and (now - next(iter(self._seen.values())) > 2 * FRESH_S or len(self._seen) >= NONCES_MAX):
            self._seen.popitem(last=False)
        self._seen[nonce] = now


def bad_signature() -> e.RestError:
    return e.RestError(403, "The signature of the internal request is not valid", BAD_SIGNATURE)


def _mac(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _packed(caller: Caller) -> str:
    content = {"name": caller.name, "grants": [str(grant) for grant in caller.grants], "by": caller.by}
    return base64.urlsafe_b64encode(json.dumps(content, separators=(",", ":")).encode()).decode()


def _unpacked(text: str) -> Caller:
    try:
        content: Any = json.loads(base64.urlsafe_b64decode(text))
        return Caller(str(content["name"]), parse_grants(content["grants"]), str(content["by"]))
    except (ValueError, KeyError, TypeError):
        raise bad_signature() from None
