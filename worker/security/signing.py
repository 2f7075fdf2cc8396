"""Signatures of requests between workers: a key of the config log's session key and the operator's secret, and a MAC over
the whole request and its receiver."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cdcworker.coordinator.core.herd_state import CLOCKS_APART_S_MAX
from cdcworker.coordinator.model import JsonObject, View
from cdcworker.coordinator.versions import sign_for_their_receiver
from cdcworker.schemas.errors import declare
from cdcworker.worker.http import errors as e
from cdcworker.worker.security.access import Caller, unsigned
from cdcworker.worker.security.signature_forms import (
    ALGORITHM_HEADER,
    MAC_HEADER,
    SIGNED_HEADER,
    VERSION_1_PARTS,
    decoded_caller,
    encoded_caller,
    length_prefixed,
    mac_bytes,
    mac_text,
    version_1_text,
)
from cdcworker.worker.security.worker_secrets import PLAIN, SECRETS_MAX, Secrets, plain_only, signing_key

SESSION_KEY: Final = "session-key"
"""The key of the record in the config log, as Kafka Connect names it."""
ALGORITHM: Final = "HmacSHA256"
SIGNATURE_HEADER: Final = "x-cdc-signature"
"""The version of its form, then key id, milliseconds, nonce, the names of the covered headers, who asks through which
worker, and a MAC with each secret of the worker that signs."""
VERSION: Final = "2"
FIELDS: Final = 5
KEY_BYTES: Final = 32
KEYS_KEPT: Final = 2
"""The key before the newest stays valid: a request may be under way while keys change."""
FRESH_S: Final = CLOCKS_APART_S_MAX
"""Seconds by which the clocks of two workers may differ."""
NONCES_MAX: Final = 100_000

BAD_SIGNATURE: Final = declare(
    "rest.bad_signature",
    "transient",
    "The signature of a request between workers does not hold",
    "Repeat: the key may just have changed. If it stays, compare the workers' clocks (120 s apart at most), "
    "inter.worker.secret.file and inter.worker.certificates.",
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
    """Returns the session keys, newest first; none without a record, or with one that this version cannot read."""
    try:
        items = settings.get(SESSION_KEY, {}).get("keys", [])
        keys = (SessionKey(str(i["id"]), base64.b64decode(i["key"]), int(i["created_ms"])) for i in items)
        return tuple(key for key in keys if len(key.secret) >= KEY_BYTES and key.id)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError):
        return ()


def next_value(keys: tuple[SessionKey, ...], now_ms: int) -> JsonObject:
    """Returns the record with a new key before the present one."""
    new = SessionKey(secrets.token_hex(4), secrets.token_bytes(KEY_BYTES), now_ms)
    kept_keys = (new, *keys)[:KEYS_KEPT]
    listed = [
        {"id": key.id, "key": base64.b64encode(key.secret).decode(), "created_ms": key.created_ms} for key in kept_keys
    ]
    return {"v": 1, "algorithm": ALGORITHM, "keys": listed}


def no_key() -> e.RestError:
    """Returns the refusal of a request between workers while this one has not read a session key."""
    return e.RestError(503, "No session key has been read yet", NO_KEY, headers={"Retry-After": "1"})


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The part of a request that is signed. `target` is the raw path with its query, `receiver` the URL of the worker
    that shall act on it; `headers` are pairs of a name in small letters and a value."""

    method: str
    target: str
    body: bytes
    receiver: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def text(self, signed_fields: str, names: Collection[str]) -> bytes:
        """Returns what a MAC covers: the request with these signed fields and its headers of these names."""
        digest = hashlib.sha256(self.body).hexdigest()
        fixed = ("cdc-internal-2", self.receiver.rstrip("/"), self.method, self.target, signed_fields, digest)
        covered = sorted(pair for pair in self.headers if pair[0] in names)
        return length_prefixed((*fixed, *itertools.chain(*covered)))


@dataclass(frozen=True, slots=True)
class Signature:
    """The content of a valid signature: the caller, the worker that received the request, and the caller's address."""

    caller: Caller
    worker: str = ""
    address: str = ""
    headers: frozenset[str] | None = None
    """The names of the headers that it covers; None in the earlier form, which covers none."""


class Signer:
    """Signs requests to other workers and verifies theirs. `view` returns the cluster as this worker knows it."""

    def __init__(
        self, view: Callable[[], View], secrets: Secrets = plain_only, clock: Callable[[], float] = time.time
    ) -> None:
        self._view = view
        self._secrets = secrets
        self._clock = clock
        self._nonces: OrderedDict[str, float] = OrderedDict()

    def sign(self, request: SignedRequest, caller: Caller, address: str = "") -> dict[str, str]:
        """Returns the headers of the signature; none while there is no key. `address` is where the caller asked from."""
        view = self._view()
        keys, secrets_now = keys_of(view.state.settings), self._secrets()
        if not keys:
            return {}
        key, names = keys[0], sorted({name for name, _ in request.headers})
        begin = f"{key.id} {round(self._clock() * 1000)} {secrets.token_hex(16)}"
        fields = f"{begin} {';'.join(names)} {encoded_caller(caller, worker=view.worker_id, address=address)}"
        text = request.text(fields, names)
        macs = ",".join(mac_text(signing_key(secret, key.id, key.secret), text) for secret in secrets_now)
        headers = {SIGNATURE_HEADER: f"{VERSION} {fields} {macs}"}
        if PLAIN in secrets_now and not _takes_this_form(view, request.receiver):
            # The same nonce: a worker that takes both forms takes one of them.
            earlier = f"{begin} {encoded_caller(caller)}"
            mac = mac_text(key.secret, version_1_text(request.method, request.target, request.body, earlier))
            headers |= {MAC_HEADER: mac, ALGORITHM_HEADER: ALGORITHM, SIGNED_HEADER: earlier}
        return headers

    def knows_key(self, headers: Mapping[str, str]) -> bool:
        """Returns whether this worker has read the key that the request names."""
        id = _key_id(headers)
        return any(key.id == id for key in keys_of(self._view().state.settings))

    def verified(self, request: SignedRequest, headers: Mapping[str, str]) -> Signature:
        """Returns what the signature says to this worker. RestError 400 unsigned or another algorithm, 403 invalid,
        503 without a key."""
        if not is_signed(headers):
            raise unsigned()
        if headers.get(ALGORITHM_HEADER, ALGORITHM) != ALGORITHM:
            raise e.bad_request(f"This worker takes {ALGORITHM} only as signature algorithm")
        view = self._view()
        keys = {key.id: key for key in keys_of(view.state.settings)}
        if not keys:
            raise no_key()
        key = keys.get(_key_id(headers))
        if key is None:
            raise bad_signature()
        if SIGNATURE_HEADER in headers:
            return self._verified(replace(request, receiver=view.url), headers[SIGNATURE_HEADER], key)
        return self._verified_earlier(request, headers, key, view)

    def _verified(self, request: SignedRequest, signature: str, key: SessionKey) -> Signature:
        version, *fields, macs = signature.split(" ")
        if version != VERSION or len(fields) != FIELDS:
            raise bad_signature()
        _, moment_ms, nonce, listed, told = fields
        names = frozenset(listed.split(";"))
        text = request.text(" ".join(fields), names)
        given = [mac_bytes(mac) for mac in macs.split(",")[: SECRETS_MAX + 1]]
        accepted = [hmac.digest(signing_key(secret, key.id, key.secret), text, "sha256") for secret in self._secrets()]
        if not any(hmac.compare_digest(mine, theirs) for mine in accepted for theirs in given):
            raise bad_signature()
        self._check_fresh(moment_ms, nonce)
        caller, more = _caller(told)
        return Signature(caller, str(more.get("worker", "")), str(more.get("address", "")), names)

    def _verified_earlier(
        self, request: SignedRequest, headers: Mapping[str, str], key: SessionKey, view: View
    ) -> Signature:
        """Verifies the earlier form. It covers less, so it is taken only while a worker is there that sends no other, and
        while the published key may sign by itself."""
        if sign_for_their_receiver(view.workers.values()) or PLAIN not in self._secrets():
            raise bad_signature()
        fields = headers[SIGNED_HEADER].split(" ")
        if len(fields) != VERSION_1_PARTS:
            raise bad_signature()
        text = version_1_text(request.method, request.target, request.body, headers[SIGNED_HEADER])
        if not hmac.compare_digest(hmac.digest(key.secret, text, "sha256"), mac_bytes(headers[MAC_HEADER])):
            raise bad_signature()
        self._check_fresh(fields[1], fields[2])
        return Signature(_caller(fields[3])[0])

    def _check_fresh(self, moment_ms: str, nonce: str) -> None:
        """RestError 403 for an old or repeated request. Called after the MAC is verified: only workers can fill the
        memory of nonces."""
        now = self._clock()
        if not moment_ms.isdigit() or abs(now - int(moment_ms) / 1000) > FRESH_S or nonce in self._nonces:
            raise bad_signature()
        while self._nonces and (
            now - next(iter(self._nonces.values())) > 2 * FRESH_S or len(self._nonces) >= NONCES_MAX
        ):
            self._nonces.popitem(last=False)
        self._nonces[nonce] = now


def is_signed(headers: Mapping[str, str]) -> bool:
    """Returns whether the request brings a signature in one of the two forms."""
    return SIGNATURE_HEADER in headers or (MAC_HEADER in headers and SIGNED_HEADER in headers)


def claims_worker(headers: Mapping[str, str]) -> bool:
    """Returns whether the request claims to come from a worker: then its signature alone counts."""
    return SIGNATURE_HEADER in headers or MAC_HEADER in headers


def bad_signature(message: str = "The signature of the internal request is not valid") -> e.RestError:
    return e.RestError(403, message, BAD_SIGNATURE)


def _takes_this_form(view: View, receiver: str) -> bool:
    """Returns whether all workers understand the present form, and the receiver is known to be one of them."""
    workers = view.workers.values()
    is_known = any(presence.url.rstrip("/") == receiver.rstrip("/") for presence in workers)
    return is_known and sign_for_their_receiver(workers)


def _key_id(headers: Mapping[str, str]) -> str:
    if SIGNATURE_HEADER in headers:
        return headers[SIGNATURE_HEADER].partition(" ")[2].partition(" ")[0]
    return headers.get(SIGNED_HEADER, "").partition(" ")[0]


def _caller(text: str) -> tuple[Caller, Mapping[str, Any]]:
    try:
        return decoded_caller(text)
    except ValueError:
        raise bad_signature() from None
