"""The reference page of the REST API, from the declared endpoints and the schemas of what they take and answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from cdcworker.worker.generators.markdown import bullets, code, codes, page, sentence, table
from cdcworker.worker.rest.openapi.document import PATH, ROLES, SEGMENT, document, statuses
from cdcworker.worker.rest.openapi.json_schemas import SCHEMAS
from cdcworker.worker.rest.openapi.parameters import PARAMETERS
from cdcworker.worker.rest.routing import JSON, Endpoint
from cdcworker.worker.server.application import ENDPOINTS

TITLES: Final[Mapping[str, str]] = {
    "worker": "The worker",
    "cluster": "The cluster",
    "connectors": "Managing connectors",
    "tasks": "Tasks of a connector",
    "offsets": "Offsets of a connector",
    "plugins": "Plugins and validation",
    "loggers": "Log levels",
    "schemas": "Schema history",
    "snapshots": "Snapshots on demand",
    "console": "The console",
    "internal": "Between workers",
}
REGISTRY: Final = (
    "Every worker is also a read-only Confluent Schema Registry over the cluster's schema log. Its paths are `/subjects`,"
    " `/schemas`, `/config`, `/mode`, `/compatibility` and `/contexts`, with Confluent's bodies and error codes."
)


def rest_page() -> str:
    paths = document(ENDPOINTS)["paths"]
    tags = dict.fromkeys(endpoint.tag for endpoint in ENDPOINTS)
    parts = [part for tag in tags for part in _of_tag(tag, paths)]
    return page(
        "REST API",
        "Kafka Connect's REST API and cdcworker's own under `/v1`, on every worker. What only the leader can do is forwarded"
        f" to it. The same as OpenAPI 3.1: `GET {PATH}`.",
        REGISTRY,
        "Answers with a status of 400 or above have the body [`Error`](#error). Of its members the routes of Kafka Connect have"
        " `error_code` and `message` alone, unless the request asks for all of them with `?details=true`, which each route takes.",
        *parts,
        "## Bodies",
        "A name in the lists below is a JSON object; `?` marks a property that may be missing.",
        *_schemas(),
    )


def _of_tag(tag: str, paths: Mapping[str, Any]) -> Iterator[str]:
    members = [endpoint for endpoint in ENDPOINTS if endpoint.tag == tag]
    yield f"## {TITLES.get(tag, tag.capitalize())}"
    yield table(
        ("request", "", "role"),
        ((code(f"{each.method} {_path(each)}"), sentence(each.summary), each.role or "admin") for each in members),
    )
    for endpoint in members:
        yield _endpoint(endpoint, paths[_path(endpoint)][endpoint.method.lower()])


def _path(endpoint: Endpoint) -> str:
    return SEGMENT.sub(r"{\1}", endpoint.path)


def _endpoint(endpoint: Endpoint, operation: Mapping[str, Any]) -> str:
    lines = [sentence(endpoint.summary), sentence(ROLES[endpoint.role or "admin"])]
    facts = list(_parameters(endpoint))
    if endpoint.body:
        facts.append(f"body: {_link(endpoint.body)}")
    facts.append(f"answer: {_answer(endpoint, operation)}")
    facts.append(f"statuses: {codes(map(str, statuses(endpoint)))}")
    return f"#### {code(f'{endpoint.method} {_path(endpoint)}')}\n\n{' '.join(lines)}\n\n{bullets(facts)}"


def _parameters(endpoint: Endpoint) -> Iterator[str]:
    for name in endpoint.query:
        yield f"{code(f'?{name}=')}: {sentence(PARAMETERS[name]['description'])}"


def _answer(endpoint: Endpoint, operation: Mapping[str, Any]) -> str:
    if endpoint.produces != JSON:
        return codes(media for media in (endpoint.produces, endpoint.also) if media)
    shapes: dict[str, None] = {}
    for status, response in operation["responses"].items():
        if status.isdigit() and int(status) < 400:
            schema = response.get("content", {}).get(JSON, {}).get("schema")
            shapes.setdefault(_type(schema) if schema else "nothing")
    return " or ".join(shapes) or "an error"


def _schemas() -> Iterator[str]:
    for name, schema in SCHEMAS.items():
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        yield f"### {name}"
        if not properties:
            yield sentence(_type(schema).capitalize() if not _type(schema).startswith(("[", "`")) else _type(schema))
            continue
        yield bullets(
            f"{code(key)}{'' if key in required else '?'}: {_described(value)}" for key, value in properties.items()
        )


def _described(schema: Mapping[str, Any]) -> str:
    words = schema.get("description", "")
    return sentence(f"{_type(schema)}. {words}") if words else _type(schema)


def _type(schema: Mapping[str, Any]) -> str:
    """Return the schema's kind in words, with links to the bodies that it names."""
    if "$ref" in schema:
        return _link(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return _either(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return f"one of {codes(map(str, schema['enum']))}"
    kind = schema.get("type", "any value")
    if isinstance(kind, list):
        return _either(kind)
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    values = schema.get("additionalProperties")
    if kind == "object" and isinstance(values, Mapping):
        return f"map of {_type(values)}"
    return str(kind)


def _either(kinds: Iterable[str]) -> str:
    return " or ".join(kinds)


def _link(name: str) -> str:
    return f"[`{name}`](#{name.lower()})"
