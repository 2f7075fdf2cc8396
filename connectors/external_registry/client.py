"""A client of an existing schema registry: asks each of its addresses, and says what its answers mean."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.config import tls_policy
from cdcworker.connectors.config.tls_policy import PLAIN, VERIFIED
from cdcworker.connectors.external_registry.errors import INCOMPATIBLE, INVALID, NOT_REGISTERED, REFUSED, UNAVAILABLE
from cdcworker.connectors.formats.registry_keys import SSL, RegistrySettings
from cdcworker.connectors.network.http_client import Answer, AnswerLimits, Codes, HttpClient
from cdcworker.connectors.network.sockets import Endpoint
from cdcworker.connectors.network.tls import tls_context
from cdcworker.schemas.avro import SCHEMA_CHARS_MAX, SCHEMA_TYPES, TypedSchema, check_text
from cdcworker.schemas.change import Avro, JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import ID_MAX, StoredSchema, fingerprint_of_schema, text_of
from cdcworker.schemas.threads import start_thread
from cdcworker.schemas.untrusted.json_text import JsonLimits, JsonRefused, parse_object

CONNECT_S: Final = 5.0
ASKED_S: Final = 20.0
"""How long all addresses together have for one answer: less than a task may be without a step."""
BREAK_S: Final = 0.2
BODY_BYTES_MAX: Final = 4 * SCHEMA_CHARS_MAX
_MEDIA: Final = "application/vnd.schemaregistry.v1+json"
_LIMITS: Final = JsonLimits(BODY_BYTES_MAX)
_CODES: Final = Codes(UNAVAILABLE, REFUSED)
_LOGIN: Final = frozenset((401, 403, 407))
_INCOMPATIBLE: Final = 409
_MISSING: Final = frozenset((40401, 40402, 40403))
"""What a registry says of a subject, a version or a schema that it does not have."""
_UNPROCESSABLE: Final = 422
_READ_ONLY: Final = 42205
"""A registry or a subject that takes nothing new for now."""
Beat = Callable[[str, float], None]
"""Told before each request what follows, and how many seconds it may take."""


class LatestSchema(NamedTuple):
    """The newest version of a subject."""

    id: int
    stored: StoredSchema


class RegistryClient:
    """Asks a registry. One thread uses it. An address that does not answer is passed over for the next one."""

    def __init__(
        self,
        settings: RegistrySettings,
        beat: Beat = lambda _doing, _allow_s: None,
        *,
        state_dir: str = "",
        asked_s: float = ASKED_S,
    ) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self._beat = beat
        self._asked_s = asked_s
        self._clients: dict[str, HttpClient] = {}
        self._first = 0

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    # Requests

    def register(self, subject: str, schema: Avro | TypedSchema) -> int:
        """Returns the id of a schema, which is registered if it is not yet. CdcError `registry.incompatible` and others."""
        path = f"/subjects/{_quoted(subject)}/versions{self._normalize()}"
        return self._id(self._asked("POST", path, _body(schema)), subject)

    def look_up(self, subject: str, schema: Avro | TypedSchema) -> int:
        """Returns the id of a schema that the subject has. CdcError `registry.not_registered`."""
        path = f"/subjects/{_quoted(subject)}{self._normalize()}"
        return self._id(self._asked("POST", path, _body(schema), may_miss=True), subject)

    def latest(self, subject: str) -> LatestSchema:
        """Returns the newest schema of a subject. CdcError `registry.not_registered`."""
        answer = self._asked("GET", f"/subjects/{_quoted(subject)}/versions/latest", None, may_miss=True)
        if answer.status == 404:
            raise CdcError(NOT_REGISTERED, "the subject has no version", where={"subject": subject})
        found = self._content(answer, subject)
        id = _number(found)
        return LatestSchema(id, _stored(id, found))

    def by_id(self, id: int) -> StoredSchema | None:
        """Returns the schema of an id, None if the registry does not have it. Ids are asked for once: no connection is kept."""
        try:
            answer = self._asked("GET", f"/schemas/ids/{id}", None, may_miss=True)
        finally:
            self.close()
        if answer.status == 404:
            return None
        return _stored(id, self._content(answer, ""))

    def _normalize(self) -> str:
        return "?normalize=true" if self._settings.normalize else ""

    def _id(self, answer: Answer, subject: str) -> int:
        if answer.status == 404:
            text = "the subject does not have the schema that is to be written"
            raise CdcError(NOT_REGISTERED, text, where={"subject": subject})
        return _number(self._content(answer, subject))

    def _content(self, answer: Answer, subject: str) -> JsonObject:
        where: dict[str, str | int] = {"status": answer.status, **({"subject": subject} if subject else {})}
        if answer.status == _INCOMPATIBLE:
            raise CdcError(INCOMPATIBLE, "the registry refuses the schema as incompatible", where=where)
        if not 200 <= answer.status < 300:
            raise CdcError(INVALID, "the registry refuses the schema", where=where)
        try:
            return parse_object(answer.body, _LIMITS) if answer.is_whole else _too_long()
        except JsonRefused as error:
            raise CdcError(UNAVAILABLE, f"the answer cannot be read: {error}", where=where) from None

    # Addresses

    def _asked(self, method: str, path: str, body: bytes | None, *, may_miss: bool = False) -> Answer:
        """Returns an answer that is the registry's own: not that of a server that cannot answer now, does not let us in, or is a
        gateway before the registry. `may_miss`: the registry may say that it does not have what is asked for."""
        urls, deadline = self._settings.urls, time.monotonic() + self._asked_s
        failure: CdcError = CdcError(UNAVAILABLE, "no address has answered in time")
        for number in range(len(urls)):
            at = (self._first + number) % len(urls)
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._beat("the answer of a schema registry", left)
            try:
                # Each address that follows has its part of the time.
                with _broken_off(self._client(urls[at]), left / (len(urls) - number)) as client:
                    answer = client.request(method, urlsplit(urls[at]).path + path, body, self._headers())
            except TargetUnavailable as error:
                failure = error
                continue
            if answer.status in _LOGIN or 300 <= answer.status < 400:
                self._first = at
                raise self._refused(answer.status)
            if not _is_judgement(answer, may_miss=may_miss):
                where = {"status": answer.status}
                failure = CdcError(UNAVAILABLE, "the registry cannot answer now", where=where)
                continue
            self._first = at
            return answer
        raise failure

    def _refused(self, status: int) -> CdcError:
        text = "the registry does not let the connector in" if status in _LOGIN else "it points elsewhere"
        return CdcError(REFUSED, text, where={"key": self._settings.key, "status": status})

    def _client(self, url: str) -> HttpClient:
        client = self._clients.get(url)
        if client is None:
            limits = AnswerLimits(BODY_BYTES_MAX, self._asked_s)
            client = self._clients[url] = HttpClient(self._endpoint(url), _CODES, limits)
        return client

    def _endpoint(self, url: str) -> Endpoint:
        parts = urlsplit(url)
        is_tls, host = parts.scheme == "https", parts.hostname or ""
        tls_policy.check(self._settings.key, "http://", VERIFIED if is_tls else PLAIN, [host])
        port = parts.port or (443 if is_tls else 80)
        return Endpoint(host, port, self._tls() if is_tls else None, CONNECT_S, self._asked_s, self._settings.key)

    def _tls(self) -> ssl.SSLContext:
        texts = {f"{SSL}{name}": text for name, text in self._settings.tls.items()}
        return tls_context(texts, SSL, self._state_dir, REFUSED)

    def _headers(self) -> Mapping[str, str]:
        found = {"Content-Type": _MEDIA, "Accept": f"{_MEDIA}, application/json"}
        if self._settings.unresolved:
            text = "the login is a reference that leads nowhere on this worker"
            raise CdcError(REFUSED, text, where={"key": self._settings.unresolved})
        login = self._settings.authorization
        if login is None:
            return found
        text = login.reveal()
        if not text.isascii() or not text.isprintable():
            raise CdcError(
                REFUSED, "the login has characters that HTTP does not have", where={"key": self._settings.key}
            )
        return {**found, "Authorization": text}


def _is_judgement(answer: Answer, *, may_miss: bool) -> bool:
    """Returns whether an answer is what the registry says of a schema. A refusal is one with the registry's own code of an error:
    anything before it may answer with a status too."""
    if 200 <= answer.status < 300:
        return True
    if answer.status not in (404, _INCOMPATIBLE, _UNPROCESSABLE):
        return False
    try:
        code = parse_object(answer.body, _LIMITS).get("error_code")
    except JsonRefused:
        return False
    if answer.status == 404:
        return may_miss and code in _MISSING
    return isinstance(code, int) and code != _READ_ONLY


@contextlib.contextmanager
def _broken_off(client: HttpClient, after_s: float) -> Iterator[HttpClient]:
    """Ends what the client does after a time, however slowly a server sends what it sends."""
    done = threading.Event()

    def watch() -> None:
        if not done.wait(after_s):
            client.cancel()
            while not done.wait(BREAK_S):
                client.cancel()

    watching = start_thread(watch, name="registry-deadline")
    try:
        yield client
    finally:
        done.set()
        watching.join()


def _too_long() -> JsonObject:
    raise JsonRefused("too long")


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _body(schema: Avro | TypedSchema) -> bytes:
    kind = {"schemaType": schema.type} if isinstance(schema, TypedSchema) else {}
    text = schema.text if isinstance(schema, TypedSchema) else json.dumps(schema, separators=(",", ":"))
    return json.dumps({**kind, "schema": text}).encode()


def _number(found: JsonObject) -> int:
    id: Any = found.get("id")
    if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id <= ID_MAX:
        raise CdcError(UNAVAILABLE, "the registry's answer has no id")
    return id


def _stored(id: int, found: JsonObject) -> StoredSchema:
    """Returns a schema as the log would hold it. CdcError `schema.invalid` for one that is out of bounds."""
    type, text = found.get("schemaType", "AVRO"), found.get("schema")
    if type not in SCHEMA_TYPES or not isinstance(text, str):
        raise CdcError(INVALID, "the registry's answer has no schema of a known type", where={"id": id})
    if found.get("references"):
        raise CdcError(INVALID, "the schema refers to those of other subjects, which is not read", where={"id": id})
    if type != "AVRO":
        check_text(type, text)
        return StoredSchema(id, TypedSchema(type, text).fingerprint, text, type)
    from cdcworker.schemas import avro

    schema = avro.parse(text)
    return StoredSchema(id, fingerprint_of_schema(schema), text_of(schema))
