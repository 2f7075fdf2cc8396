"""The OpenAPI 3.1 document, made from the table of endpoints."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from cdcworker.worker.http.error_members import DETAILS, is_own
from cdcworker.worker.rest.openapi.json_schemas import ANSWERS, SCHEMAS
from cdcworker.worker.rest.openapi.parameters import PARAMETERS
from cdcworker.worker.rest.routing import JSON, Endpoint

Json = dict[str, Any]

PATH = "/v1/openapi.json"
SEGMENT = re.compile(r"\{(\w+)(?::(\w+))?\}")
EMPTY = frozenset({202, 204, 303, 304, 308})
"""Statuses of success without a body, unless the table of answers names one."""
PAGE = "text/html"
CLOSED: list[Json] = [{"bearer": []}, {"basic": []}, {"certificate": []}]
SECURITY_SCHEMES: Json = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the operator, or of the identity provider.",
    },
    "basic": {"type": "http", "scheme": "basic"},
    "certificate": {"type": "mutualTLS"},
}
IF_MATCH: Json = {
    "name": "If-Match",
    "in": "header",
    "description": "The ETag of the version that the change is meant for.",
    "schema": {"type": "string", "examples": ['"3"', "*"]},
}
ROLES: Mapping[str, str] = {
    "open": "Needs no credentials.",
    "read": "Needs the role read.",
    "operate": "Needs the role operate.",
    "admin": "Needs the role admin.",
    "internal": "For workers only: the request has to be signed with the cluster's session key.",
}
HEADERS_OF: Mapping[int, Sequence[str]] = {
    201: ("Location", "ETag"),
    409: ("Retry-After", "X-CDC-Reason"),
    503: ("Retry-After",),
}
HEADERS: Mapping[str, str] = {
    "Location": "Where the new connector is.",
    "ETag": "The version, for If-Match.",
    "Retry-After": "Seconds after which to repeat; absent where repeating does not help.",
    "X-CDC-Reason": "rebalance, exists, epoch, stale-epoch, concurrent, tasks or state.",
}


def document(endpoints: Iterable[Endpoint], *, closed: bool = True) -> Json:
    """Returns the document: everything that a generator of clients or of tests needs. `closed`: callers have to say who
    they are; an open worker declares no security."""
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        item = paths.setdefault(SEGMENT.sub(r"{\1}", endpoint.path), {"parameters": _in_path(endpoint.path)})
        item[endpoint.method.lower()] = _operation(endpoint, closed=closed)
    for item in paths.values():
        if not item["parameters"]:
            del item["parameters"]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cdcworker",
            "version": version("cdcworker"),
            "description": "Kafka Connect's REST API and our own under /v1, on every worker. Every worker also serves "
            "the schema log by Confluent's Schema Registry API, which is described there.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            **({"securitySchemes": SECURITY_SCHEMES} if closed else {}),
            "headers": {name: {"description": text, "schema": {"type": "string"}} for name, text in HEADERS.items()},
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(e.tag for e in endpoints)],
    }


def _in_path(path: str) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}
            if kind == "int"
            else {"type": "string", "minLength": 1},
        }
        for name, kind in SEGMENT.findall(path)
    ]


def _operation(endpoint: Endpoint, *, closed: bool) -> Json:
    out: Json = {
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "description": ROLES[endpoint.role or "admin"],
    }
    if closed:
        out["security"] = [] if endpoint.role == "open" else CLOSED
    parameters = [_in_query(name) for name in parameter_names(endpoint)]
    if 412 in endpoint.statuses:
        parameters.append(IF_MATCH)
    if parameters:
        out["parameters"] = parameters
    if endpoint.body:
        content = {JSON: {"schema": _ref(endpoint.body)}}
        out["requestBody"] = {"required": True, "content": content}
    out["responses"] = {str(status): _response(endpoint, status) for status in statuses(endpoint, closed=closed)}
    # Sizes, rates and time have limits too, and a worker may be in trouble.
    out["responses"]["default"] = _error("Any other refusal.", also=PAGE if endpoint.produces == PAGE else "")
    return out


def parameter_names(endpoint: Endpoint) -> list[str]:
    """Returns the query parameters that the endpoint declares, and those that every such endpoint has."""
    names = dict.fromkeys(endpoint.query)
    if not is_own(endpoint.path.split("/")[1:]):
        names[DETAILS] = None  # errors have more members with it
    if endpoint.method == "GET":
        names["min_version"] = None
    return list(names)


def operation_id(endpoint: Endpoint) -> str:
    """Returns the operation id of an endpoint, from its method and its path."""
    words = [endpoint.method.lower(), *re.findall(r"\w+", SEGMENT.sub(r"by_\1", endpoint.path))]
    return "_".join(words) if len(words) > 1 else f"{words[0]}_root"


def statuses(endpoint: Endpoint, *, closed: bool = True) -> list[int]:
    """Returns the statuses that the endpoint declares, and those that every such endpoint has."""
    codes = {*endpoint.statuses, 406}
    if closed and endpoint.role != "open":
        codes |= {401, 403}
    if endpoint.method == "GET":
        codes |= {400, 503}  # min_version
    if endpoint.needs_cluster:
        codes.add(503)  # while the worker starts
    if endpoint.body:
        codes |= {400, 413, 415}
    if "dry_run" in endpoint.query:
        codes.add(400)
    return sorted(codes)


def _in_query(name: str) -> Json:
    parameter = PARAMETERS[name]
    out: Json = {"name": name, "in": "query", "description": parameter["description"], "schema": parameter["schema"]}
    return out | ({"explode": True, "style": "form"} if parameter["schema"].get("type") == "array" else {})


def _response(endpoint: Endpoint, status: int) -> Json:
    if status >= 400:
        own = ANSWERS.get(f"{endpoint.method} {endpoint.path} {status}")
        if own is None:
            return _error(HTTPStatus(status).phrase, status, PAGE if endpoint.produces == PAGE else "")
        return _described(status, {"anyOf": [_ref(own), _ref("Error")]})
    key = f"{endpoint.method} {endpoint.path}"
    name = ANSWERS.get(f"{key} {status}")
    if name is None:
        name = "DryRun" if status == 200 and "dry_run" in endpoint.query and key not in ANSWERS else ANSWERS.get(key)
    if status in EMPTY and f"{key} {status}" not in ANSWERS:
        return {"description": "Done." if status < 300 else HTTPStatus(status).phrase}
    if endpoint.produces != JSON:
        return {
            "description": endpoint.summary,
            "content": {media: {} for media in (endpoint.produces, endpoint.also) if media},
        }
    assert name is not None, f"{key} {status} has no shape"
    schema = _ref(name)
    if status == 200 and "dry_run" in endpoint.query and name != "DryRun":
        schema = {"anyOf": [schema, _ref("DryRun")]}
    return _described(status, schema)


def _described(status: int, schema: Json) -> Json:
    out: Json = {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": schema}}}
    return out | _headers(status)


def _error(text: str, status: int = 0, also: str = "") -> Json:
    """Returns what a refusal looks like; `also` is another media type in which a browser gets it."""
    content: Json = {JSON: {"schema": _ref("Error")}, **({also: {}} if also else {})}
    return {"description": text, "content": content, **_headers(status)}


def _headers(status: int) -> Json:
    names = HEADERS_OF.get(status, ())
    return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}} if names else {}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


@functools.cache
def cached(endpoints: tuple[Endpoint, ...], *, closed: bool = True) -> Json:
    """Returns the document of a table of endpoints, which does not change while the process lives."""
    return document(endpoints, closed=closed)
