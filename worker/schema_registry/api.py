"""Confluent's Schema Registry REST API over the schema log: reads, look-ups, and registration where it is enabled."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from cdcworker.connectors.formats.protobuf.proto_parser import ProtoRefused, parse_proto
from cdcworker.schemas import avro
from cdcworker.schemas.avro import SCHEMA_TYPES, SchemaType, TypedSchema, check_text
from cdcworker.schemas.change import Avro
from cdcworker.schemas.compat import incompatibilities
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import ID_MAX, SchemaLog, StoredSchema, SubjectVersion, text_of
from cdcworker.schemas.untrusted.json_text import JsonLimits, JsonRefused, parse_json
from cdcworker.worker.http.body import check_values
from cdcworker.worker.http.errors import HEADERS_OF_STATUS, RestError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
BODY_BYTES_MAX: Final = 2 << 20
SCHEMA_VALUES_MAX = 30_000
"""Members and items of a schema, about: what is larger would keep the event loop from other requests."""
LEVELS: Final = frozenset(
    ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
)
DEFAULT_LEVEL: Final = "NONE"
"""A change of a table has already happened and cannot be refused, only classified."""

RegisterSchema = Callable[[str, Avro | TypedSchema], int]
"""Registers (subject, schema) and returns the id once the records are committed and readable."""
SetLevel = Callable[[str, str | None], None]
"""Sets the level of (subject or "", level or None to unset it)."""
JUDGED_AT_ONCE: Final = 2
_Work = TypeVar("_Work")
_Handler = Callable[[Request], Awaitable[Any]]


class RegistryError(Exception):
    """An error of the Schema Registry: HTTP status, its own error code, and a message."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def _no_subject(subject: str) -> RegistryError:
    return RegistryError(404, 40401, f"Subject '{subject}' not found.")


def _no_schema() -> RegistryError:
    return RegistryError(404, 40403, "Schema not found")


def _invalid(message: str) -> RegistryError:
    return RegistryError(422, 42201, f"Invalid schema: {message}")


def _not_supported(message: str) -> RegistryError:
    return RegistryError(405, 40501, message)


def routes(
    log: Callable[[], SchemaLog], register: RegisterSchema | None = None, set_level: SetLevel | None = None
) -> list[Route]:
    """Returns the routes. Without the callbacks, requests that write are refused with a message that says so."""
    api = _RegistryApi(log, register, set_level)
    table: list[tuple[str, str, _Handler]] = [
        ("/schemas", "GET", api.list_schemas),
        ("/schemas/types", "GET", api.types),
        ("/schemas/ids/{id}", "GET", api.by_id),
        ("/schemas/ids/{id}/schema", "GET", api.text_by_id),
        ("/schemas/ids/{id}/subjects", "GET", api.subjects_by_id),
        ("/schemas/ids/{id}/versions", "GET", api.versions_by_id),
        ("/schemas/guids/{guid}", "GET", api.by_guid),
        ("/schemas/guids/{guid}/ids", "GET", api.ids_by_guid),
        ("/subjects", "GET", api.subjects),
        ("/subjects/{subject}", "POST", api.look_up),
        ("/subjects/{subject}", "DELETE", api.refuse_delete),
        ("/subjects/{subject}/in-force", "GET", api.in_force),
        ("/subjects/{subject}/metadata", "GET", api.latest_with_metadata),
        ("/subjects/{subject}/versions", "GET", api.versions),
        ("/subjects/{subject}/versions", "POST", api.register),
        ("/subjects/{subject}/versions/{version}", "GET", api.version),
        ("/subjects/{subject}/versions/{version}", "DELETE", api.refuse_delete),
        ("/subjects/{subject}/versions/{version}/schema", "GET", api.version_text),
        ("/subjects/{subject}/versions/{version}/referencedby", "GET", api.referenced_by),
        ("/compatibility/subjects/{subject}/versions", "POST", api.compatibility),
        ("/compatibility/subjects/{subject}/versions/{version}", "POST", api.compatibility),
        ("/config", "GET", api.config),
        ("/config", "PUT", api.put_config),
        ("/config", "DELETE", api.delete_config),
        ("/config/{subject}", "GET", api.config),
        ("/config/{subject}", "PUT", api.put_config),
        ("/config/{subject}", "DELETE", api.delete_config),
        ("/mode", "GET", api.mode),
        ("/mode", "PUT", api.refuse_mode),
        ("/mode/{subject}", "GET", api.mode),
        ("/mode/{subject}", "PUT", api.refuse_mode),
        ("/contexts", "GET", api.contexts),
    ]
    by_path: dict[str, dict[str, _Handler]] = {}
    for path, method, handler in table:
        by_path.setdefault(path, {})[method] = handler
    return [_RegistryRoute(path, _endpoint(handlers), methods=list(handlers)) for path, handlers in by_path.items()]


class _RegistryRoute(Route):
    """A route that is also found with a slash at its end, as some clients write it."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope.get("path", "")
        bare = path.endswith("/") and not path.endswith("//")
        return super().matches({**scope, "path": path[:-1]} if bare else scope)


def _endpoint(handlers: dict[str, _Handler]) -> Callable[[Request], Awaitable[Response]]:
    """Returns the handler of one path: it picks the handler of the method and turns its result or error into the
    registry's JSON."""

    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        try:
            found = await handlers[method](request)
            return found if isinstance(found, Response) else _answer(200, found)
        except RegistryError as exc:
            return _answer(exc.status, {"error_code": exc.code, "message": exc.message})
        except CdcError as exc:
            return _answer_cdc_error(exc)

    return endpoint


def _answer(status: int, content: Any) -> Response:
    return Response(json.dumps(content).encode(), status_code=status, media_type=MEDIA_TYPE)


def _answer_cdc_error(error: CdcError) -> Response:
    if error.code == avro.INVALID:
        return _answer(422, {"error_code": 42201, "message": f"Invalid schema: {error}"})
    log.warning("registry_request_failed code=%s error=%s", error.code, error)
    status = 503 if error.retriable else 500
    answer = _answer(status, {"error_code": 50001, "message": f"{error} {error.hint}".strip()})
    answer.headers.update(HEADERS_OF_STATUS.get(status, {}))
    return answer


def _schema_answer(schema: StoredSchema) -> dict[str, Any]:
    return {"id": schema.id, "guid": schema.guid, "schema": schema.text, **_type_of(schema)}


def _type_of(schema: StoredSchema) -> dict[str, str]:
    """Returns the member that says a schema's type; as in Confluent's registry Avro needs none."""
    return {} if schema.type == "AVRO" else {"schemaType": schema.type}


def _shown(schema: StoredSchema) -> Any:
    """Returns a schema as the answer that is nothing but it: JSON, or text where it is none."""
    return PlainTextResponse(schema.text) if schema.type == "PROTOBUF" else json.loads(schema.text)


class _RegistryApi:
    def __init__(
        self, log: Callable[[], SchemaLog], register: RegisterSchema | None, set_level: SetLevel | None
    ) -> None:
        self._log = log
        self._register = register
        self._set_level = set_level
        self._judging = asyncio.Semaphore(JUDGED_AT_ONCE)

    async def _judged(self, work: Callable[[], _Work]) -> _Work:
        """Returns what the work returns, which a thread does: a large schema takes longer than others may wait."""
        async with self._judging:
            return await run_in_threadpool(work)

    async def _schema_of(self, request: Request) -> tuple[Avro | TypedSchema, str]:
        """Returns the schema of a body and its fingerprint."""
        type, text = await _schema_text(request)

        def parsed() -> tuple[Avro | TypedSchema, str]:
            if type != "AVRO":
                check_text(type, text)
                if type == "PROTOBUF":
                    _check_proto(text)
                typed = TypedSchema(type, text)
                return typed, typed.fingerprint
            schema = avro.parse(text)
            avro.check(schema)
            return schema, avro.fingerprint(schema)

        return await self._judged(parsed)

    # Schemas

    async def list_schemas(self, request: Request) -> Any:
        view, query = self._log(), request.query_params
        uses: list[Any] = []
        for subject in view.subjects():
            if subject.startswith(query.get("subjectPrefix", "")):
                versions = view.versions(subject)
                uses += versions[-1:] if query.get("latestOnly") == "true" else versions
        readable = [use for use in uses if _is_readable(view, use)]
        return [self._version_answer(view, use) for use in _page(readable, request)]

    async def types(self, _: Request) -> Any:
        return list(SCHEMA_TYPES)

    async def by_id(self, request: Request) -> Any:
        view, schema = self._by_id(request)
        answer: dict[str, Any] = {"schema": schema.text, "guid": schema.guid, **_type_of(schema)}
        if request.query_params.get("fetchMaxId") == "true":
            answer["maxId"] = max(known.id for known in view.schemas())
        uses = view.uses(schema.fingerprint)
        if request.query_params.get("subject") and uses:
            answer["subject"], answer["version"] = uses[0]
        return answer

    async def text_by_id(self, request: Request) -> Any:
        return _shown(self._by_id(request)[1])

    async def subjects_by_id(self, request: Request) -> Any:
        view, schema = self._by_id(request)
        return _page(sorted({subject for subject, _ in view.uses(schema.fingerprint)}), request)

    async def versions_by_id(self, request: Request) -> Any:
        view, schema = self._by_id(request)
        uses = view.uses(schema.fingerprint)
        return _page([{"subject": subject, "version": version} for subject, version in uses], request)

    async def by_guid(self, request: Request) -> Any:
        schema = self._by_guid(request)
        return {"schema": schema.text, "guid": schema.guid, **_type_of(schema)}

    async def ids_by_guid(self, request: Request) -> Any:
        return [{"context": ".", "id": self._by_guid(request).id}]

    def _by_id(self, request: Request) -> tuple[SchemaLog, StoredSchema]:
        view, text = self._log(), request.path_params["id"]
        if not text.isdecimal() or len(text) > 10 or int(text) > ID_MAX:
            raise RegistryError(404, 404, "HTTP 404 Not Found")
        schema = view.by_id(int(text))
        if schema is None:
            raise RegistryError(404, 40403, f"Schema {text} not found")
        return view, schema

    def _by_guid(self, request: Request) -> StoredSchema:
        schema = self._log().by_guid(request.path_params["guid"])
        if schema is None:
            raise _no_schema()
        return schema

    # Subjects

    async def subjects(self, request: Request) -> Any:
        prefix = request.query_params.get("subjectPrefix", "").removeprefix(":*:")
        return _page([name for name in self._log().subjects() if name.startswith(prefix)], request)

    async def versions(self, request: Request) -> Any:
        _, versions = self._subject(request)
        return _page([use.version for use in versions], request)

    async def version(self, request: Request) -> Any:
        view, use = self._version(request)
        return self._version_answer(view, use)

    async def latest_with_metadata(self, request: Request) -> Any:
        """Returns the newest version with the given metadata. Our schemas have none, so any question for some finds
        nothing."""
        view, versions = self._subject(request)
        if request.query_params.getlist("key"):
            raise _no_schema()
        return self._version_answer(view, versions[-1])

    async def version_text(self, request: Request) -> Any:
        view, use = self._version(request)
        return _shown(self._stored(view, use))

    async def referenced_by(self, request: Request) -> Any:
        self._version(request)
        return []

    async def in_force(self, request: Request) -> Any:
        """Returns the version whose records are written at a source position (`commit_lsn`, `tx_index`). Confluent's
        API has no such path."""
        view, _ = self._subject(request)
        try:
            commit = int(request.query_params["commit_lsn"])
            event = int(request.query_params.get("tx_index", "0"))
        except (KeyError, ValueError):
            raise RegistryError(422, 42202, "commit_lsn and tx_index have to be numbers") from None
        use = view.in_force(request.path_params["subject"], commit, event)
        if use is None:
            raise RegistryError(404, 40402, "No version is in force at this position")
        answer = self._version_answer(view, use)
        if use.effective:
            answer["effective"] = {"commit_lsn": use.effective[0], "tx_index": use.effective[1]}
        return {**answer, "change": use.change}

    async def look_up(self, request: Request) -> Any:
        _, fp = await self._schema_of(request)
        view, _ = self._subject(request)
        subject = request.path_params["subject"]
        number = view.version_of(subject, fp)
        if number is None:
            raise _no_schema()
        stored = view.by_fingerprint(fp)
        if stored is None:
            raise _no_schema()
        return {"subject": subject, "version": number, **_schema_answer(stored)}

    async def register(self, request: Request) -> Any:
        schema, fp = await self._schema_of(request)
        view, subject = self._log(), request.path_params["subject"]
        stored = view.by_fingerprint(fp)
        known = view.version_of(subject, fp)
        if stored is not None and known is not None:
            return {**_schema_answer(stored), "version": known}
        if self._register is None:
            raise _not_supported("This worker serves schemas for reading only: it cannot register them")
        if view.owned(subject):
            raise RegistryError(422, 42205, f"The versions of subject {subject} are given by the task of its table")
        problems = await self._judged(lambda: self._incompatible(view, subject, schema, view.versions(subject)))
        if problems:
            raise RegistryError(409, 40901, f"Schema being registered is incompatible: {'; '.join(problems[:10])}")
        id = await run_in_threadpool(self._register, subject, schema)
        text = await self._judged(lambda: text_of(schema))
        # The records are read by now, by this worker too unless it lags behind.
        version = self._log().version_of(subject, fp)
        type = schema.type if isinstance(schema, TypedSchema) else "AVRO"
        registered = StoredSchema(id, fp, text, type)
        return {**_schema_answer(registered), **({"version": version} if version else {})}

    async def refuse_delete(self, _: Request) -> Any:
        raise _not_supported("Schemas are never deleted: records in topics refer to them")

    def _subject(self, request: Request) -> tuple[SchemaLog, tuple[SubjectVersion, ...]]:
        view, subject = self._log(), request.path_params["subject"]
        versions = view.versions(subject)
        if not versions:
            raise _no_subject(subject)
        return view, versions

    def _version(self, request: Request) -> tuple[SchemaLog, SubjectVersion]:
        view, versions = self._subject(request)
        text = request.path_params.get("version", "latest")
        if text in ("latest", "-1"):
            return view, versions[-1]
        if not text.isdecimal() or len(text) > 10 or not 0 < int(text) <= ID_MAX:
            raise RegistryError(422, 42202, f"The specified version '{text}' is not a valid version id.")
        for use in versions:
            if use.version == int(text):
                return view, use
        raise RegistryError(404, 40402, f"Version {text} not found.")

    @staticmethod
    def _stored(view: SchemaLog, use: SubjectVersion) -> StoredSchema:
        schema = view.by_fingerprint(use.fingerprint)
        if schema is None:
            raise _no_schema()
        return schema

    def _version_answer(self, view: SchemaLog, use: SubjectVersion) -> dict[str, Any]:
        return {"subject": use.subject, "version": use.version, **_schema_answer(self._stored(view, use))}

    # Compatibility, config, mode

    async def compatibility(self, request: Request) -> Any:
        schema, _ = await self._schema_of(request)
        view, subject = self._log(), request.path_params["subject"]
        if "version" in request.path_params:
            versions: tuple[SubjectVersion, ...] = (self._version(request)[1],)
        else:
            versions = view.versions(subject)
        problems = await self._judged(lambda: self._incompatible(view, subject, schema, versions))
        answer: dict[str, Any] = {"is_compatible": not problems}
        if request.query_params.get("verbose") == "true":
            answer["messages"] = problems
        return answer

    def _incompatible(
        self, view: SchemaLog, subject: str, schema: Avro | TypedSchema, versions: tuple[SubjectVersion, ...]
    ) -> list[str]:
        level = view.level(subject) or view.level() or DEFAULT_LEVEL
        if level == "NONE" or not versions:
            return []
        stored = [self._stored(view, use) for use in versions]
        if isinstance(schema, TypedSchema) or any(one.type != "AVRO" for one in stored):
            raise _invalid(f"compatibility {level} is judged of Avro only: set the subject's compatibility to NONE")
        return incompatibilities(level, schema, [one.schema for one in stored])

    async def config(self, request: Request) -> Any:
        view, subject = self._log(), request.path_params.get("subject", "")
        level = view.level(subject)
        if level is None and subject and request.query_params.get("defaultToGlobal") != "true":
            message = f"Subject '{subject}' does not have subject-level compatibility configured"
            raise RegistryError(404, 40408, message)
        return {"compatibilityLevel": level or view.level() or DEFAULT_LEVEL}

    async def put_config(self, request: Request) -> Any:
        level = str((await _json_body(request)).get("compatibility", "")).upper()
        if level not in LEVELS:
            raise RegistryError(
                422, 42203, "Invalid compatibility level. Valid values are " + ", ".join(sorted(LEVELS))
            )
        await self._change_level(request, level)
        return {"compatibility": level}

    async def delete_config(self, request: Request) -> Any:
        before = self._log().level(request.path_params.get("subject", ""))
        await self._change_level(request, None)
        return {"compatibilityLevel": before or DEFAULT_LEVEL}

    async def _change_level(self, request: Request, level: str | None) -> None:
        if self._set_level is None:
            raise _not_supported("This worker serves schemas for reading only: it cannot change compatibility levels")
        await run_in_threadpool(self._set_level, request.path_params.get("subject", ""), level)

    async def mode(self, request: Request) -> Any:
        view, subject = self._log(), request.path_params.get("subject", "")
        if subject and view.owned(subject):
            return {"mode": "READONLY"}
        if subject and request.query_params.get("defaultToGlobal") != "true":
            raise RegistryError(404, 40409, f"Subject '{subject}' does not have subject-level mode configured")
        return {"mode": "READONLY" if self._register is None else "READWRITE"}

    async def refuse_mode(self, _: Request) -> Any:
        raise RegistryError(422, 42205, "The mode follows from who owns a subject and cannot be set")

    async def contexts(self, _: Request) -> Any:
        return ["."]


def _is_readable(view: SchemaLog, use: SubjectVersion) -> bool:
    """Tells whether the version's schema can be answered: one that cannot must not keep the others from being listed."""
    try:
        return view.by_fingerprint(use.fingerprint) is not None
    except CdcError:
        return False


def _page(items: Any, request: Request) -> Any:
    try:
        offset, limit = (int(request.query_params.get(name, value)) for name, value in (("offset", 0), ("limit", -1)))
    except ValueError:
        raise RegistryError(404, 404, "HTTP 404 Not Found") from None
    rest = items[max(offset, 0) :]
    return list(rest if limit < 0 else rest[:limit])


async def _json_body(request: Request) -> dict[str, Any]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise RegistryError(413, 413, f"The request has more than {BODY_BYTES_MAX} bytes")
    try:
        check_values(body)
        parsed = parse_json(body, JsonLimits(BODY_BYTES_MAX))
    except RestError as error:
        raise RegistryError(413, 413, error.message) from None
    except JsonRefused:
        raise RegistryError(400, 400, "The request is not JSON") from None
    if not isinstance(parsed, dict):
        raise RegistryError(400, 400, "The request is not a JSON object")
    return parsed


def _check_proto(text: str) -> None:
    try:
        parse_proto(text)
    except ProtoRefused as error:
        raise _invalid(str(error)) from None


async def _schema_text(request: Request) -> tuple[SchemaType, str]:
    """Returns the type and the text of a body's schema."""
    body = await _json_body(request)
    type = body.get("schemaType") or "AVRO"
    if type not in SCHEMA_TYPES:
        raise _invalid(f"schema type {type!s:.40} is not supported, {', '.join(SCHEMA_TYPES)} are")
    if body.get("references"):
        raise _invalid("references to other subjects are not supported")
    text = body.get("schema")
    if not isinstance(text, str) or not text:
        raise RegistryError(422, 42201, "Empty schema")
    if sum(map(text.count, ",[{")) > SCHEMA_VALUES_MAX:
        raise _invalid(f"the schema holds more than {SCHEMA_VALUES_MAX} values")
    return type, text
