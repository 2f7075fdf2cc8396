"""The schema history of subjects: when a table's schema changed, how, and which columns were added or removed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cdcworker.schemas.log import SchemaLog, StoredSchema, SubjectVersion
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.routing import Endpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

Json = dict[str, Any]


async def list_subjects(api: ApiContext, request: Request) -> Response:
    log = api.schemas
    return JSONResponse({"subjects": [_subject(log, subject) for subject in log.subjects()]})


def _subject(log: SchemaLog, subject: str) -> Json:
    versions = log.versions(subject)
    last = versions[-1]
    return {
        "subject": subject,
        "versions": len(versions),
        "last": last.version,
        "change": last.change,
        "table": ".".join(last.path) or None,
    }


async def history(api: ApiContext, request: Request) -> Response:
    """Answers the versions, oldest first. `effective` is the source position of the first record with the schema."""
    log, subject = api.schemas, request.path_params["subject"]
    versions = log.versions(subject)
    if not versions:
        raise e.not_found(f"Subject {subject} not found")
    out: list[Json] = []
    before: Mapping[str, str] | None = None
    for version in versions:
        stored = log.by_fingerprint(version.fingerprint)
        columns = columns_of(stored)
        out.append(_version(version, stored, columns, before))
        before = columns
    return JSONResponse({"subject": subject, "versions": out})


def _version(
    version: SubjectVersion, stored: StoredSchema | None, columns: Mapping[str, str], before: Mapping[str, str] | None
) -> Json:
    known = before if before is not None else columns
    return {
        "version": version.version,
        "id": stored.id if stored else None,
        "fingerprint": version.fingerprint,
        "change": version.change,
        "table": {"id": version.table_id, "path": list(version.path)} if version.path else None,
        "effective": dict(zip(("commit_lsn", "tx_index"), version.effective, strict=True))
        if version.effective
        else None,
        "ddl": version.ddl,
        "columns": dict(columns),
        "added": sorted(columns.keys() - known.keys()),
        "removed": sorted(known.keys() - columns.keys()),
        "retyped": sorted(name for name in columns.keys() & known.keys() if columns[name] != known[name]),
    }


def columns_of(stored: StoredSchema | None) -> dict[str, str]:
    """Returns the columns of a key, or of the rows in an envelope, with their types as text."""
    # Of other types than Avro the text alone is known.
    schema = stored.schema if stored and stored.type == "AVRO" else None
    if not isinstance(schema, Mapping):
        return {}
    record = _row(schema) or schema
    return {str(field["name"]): _type(field["type"]) for field in record.get("fields", ())}


def _row(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for field in schema.get("fields", ()):
        if field["name"] in ("before", "after"):
            branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
            for branch in branches:
                if isinstance(branch, Mapping) and branch.get("fields"):
                    return branch
    return None


def _type(schema: Any) -> str:
    """Returns an Avro type as text: `["null", "long"]` is `long?`; other compound types are JSON."""
    if isinstance(schema, list) and "null" in schema:
        rest = [branch for branch in schema if branch != "null"]
        return (_type(rest[0]) if len(rest) == 1 else json.dumps(rest)) + "?"
    if isinstance(schema, Mapping):
        return str(schema.get("logicalType") or schema.get("connect.name") or json.dumps(schema, sort_keys=True))
    return str(schema)


ENDPOINTS = (
    Endpoint("GET", "/v1/schemas", list_subjects, "Subjects of the schema log", "schemas", role="read"),
    Endpoint(
        "GET",
        "/v1/schemas/{subject}/history",
        history,
        "How a subject's schema changed",
        "schemas",
        (200, 404),
        role="read",
    ),
)
