"""Indexes and data streams that are there before the first document, with the fields of its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from cdcworker.connectors.record_sink.errors import TARGET_REFUSES
from cdcworker.connectors.targets.opensearch.client import Reply, SearchClient
from cdcworker.connectors.targets.opensearch.errors import MAPPING_CONFLICT
from cdcworker.connectors.targets.opensearch.names import path_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectSchema
from cdcworker.schemas.errors import CdcError

KNOWN_MAX: Final = 10_000
TRIES_MAX: Final = 3
TEMPLATE_PRIORITY: Final = 300
TEMPLATE_PARTS: Final = (
    "index_patterns",
    "composed_of",
    "priority",
    "version",
    "_meta",
    "data_stream",
    "allow_auto_create",
)
"""What an index template may be written with, beside what it gives to indexes; a server tells more of it."""
_THERE: Final = frozenset(("resource_already_exists_exception", "index_already_exists_exception"))
Mapped = Mapping[str, Any]


class IndexRules(NamedTuple):
    """`creates`: whether what is not there is made; `streams`: what is made are data streams."""

    creates: bool
    streams: bool
    gc_deletes_ms: int


class Indexes:
    """What the server has of the indexes that records go to."""

    def __init__(self, client: SearchClient, rules: IndexRules) -> None:
        self._client = client
        self._rules = rules
        self._ready: BoundedCache[tuple[str, int], ConnectSchema | None] = BoundedCache(KNOWN_MAX)

    def knows(self, index: str, schema: ConnectSchema | None) -> bool:
        return (index, id(schema)) in self._ready

    def prepare(self, index: str, schema: ConnectSchema | None, properties: Mapped) -> None:
        """Makes an index ready for documents of a schema. CdcError of kind `data` for fields that it cannot have, of kind `config` for an
        index that is not there and is not to be made."""
        wanted = dict(properties)
        for _ in range(TRIES_MAX):
            present = self._present(index)
            if present is None:
                if not self._rules.creates:
                    text = "there is no such index: create it, or set index.create=true"
                    raise CdcError(TARGET_REFUSES, text, where={"index": index})
                self._create(index, wanted)
                continue
            absent = missing(wanted, present)
            if absent:
                self._add(index, absent, present)
            break
        self._ready[index, id(schema)] = schema

    def forget(self) -> None:
        """What was there may have been dropped."""
        self._ready.clear()

    def _present(self, index: str) -> Mapped | None:
        """Returns the fields of the index behind a name, of several those of the last one; None: there is none."""
        reply = self._client.ask("GET", f"/{path_of(index)}/_mapping", None, (404,))
        if reply.status == 404:
            return None
        found = reply.json()
        # Of a data stream's backing indexes, which are numbered, the last one is written to.
        return dict(found[max(found)].get("mappings", {}).get("properties", {})) if found else {}

    def _create(self, index: str, properties: Mapped) -> None:
        if self._rules.streams:
            self._create_stream(index, properties)
            return
        body = {
            "settings": {"index.gc_deletes": f"{self._rules.gc_deletes_ms}ms"},
            "mappings": {"properties": properties},
        }
        self._made(self._client.ask("PUT", f"/{path_of(index)}", body, (400,)), index)

    def _create_stream(self, index: str, properties: Mapped) -> None:
        template = {
            "index_patterns": [index],
            "data_stream": {},
            "priority": TEMPLATE_PRIORITY,
            "template": {"mappings": {"properties": properties}},
        }
        self._made(self._client.ask("PUT", _template_path(index), template, (400,)), index)
        self._made(self._client.ask("PUT", f"/_data_stream/{path_of(index)}", None, (400,)), index)

    def _add(self, index: str, properties: Mapped, present: Mapped) -> None:
        if self._rules.creates and self._rules.streams:
            self._add_to_template(index, with_fields(present, properties))
        path = f"/{path_of(index)}/_mapping"
        self._made(self._client.ask("PUT", path, {"properties": properties}, (400,)), index)

    def _add_to_template(self, index: str, properties: Mapped) -> None:
        """Has the next backing index of a data stream have fields too. A stream of the user's own has another template."""
        path = _template_path(index)
        reply = self._client.ask("GET", path, None, (403, 404))
        if reply.status != 200:
            return
        found = reply.json()["index_templates"][0]["index_template"]
        inner = found.get("template", {})
        mappings = inner.get("mappings", {})
        present = mappings.get("properties", {})
        fields = with_fields(present, missing(properties, present))
        template = {name: found[name] for name in TEMPLATE_PARTS if name in found}
        template["template"] = {**inner, "mappings": {**mappings, "properties": fields}}
        self._made(self._client.ask("PUT", path, template, (400,)), index)

    @staticmethod
    def _made(reply: Reply, index: str) -> None:
        if reply.status == 400 and reply.error not in _THERE:
            text = f"the index cannot have the fields of the record's schema ({reply.error})"
            raise CdcError(MAPPING_CONFLICT, text, where={"index": index})


def _template_path(index: str) -> str:
    return f"/_index_template/{path_of(f'cdcworker-{index}')}"


def with_fields(present: Mapped, more: Mapped) -> dict[str, Any]:
    """Returns fields with more of them, at each depth."""
    return {**present, **{name: _with(present.get(name, {}), kind) for name, kind in more.items()}}


def _with(present: Mapped, kind: Any) -> Mapped:
    if "properties" not in kind:
        return dict(kind)
    return {**present, **kind, "properties": with_fields(present.get("properties", {}), kind["properties"])}


def missing(wanted: Mapped, present: Mapped) -> dict[str, Any]:
    """Returns the fields that are wanted and not present, at each depth. A field that is there keeps its type."""
    return dict(_missing(wanted, present))


def _missing(wanted: Mapped, present: Mapped) -> Iterator[tuple[str, Any]]:
    for name, kind in wanted.items():
        there = present.get(name)
        if there is None:
            yield name, kind
        elif (
            "properties" in kind
            and "properties" in there
            and (inner := missing(kind["properties"], there["properties"]))
        ):
            yield name, {"properties": inner}
