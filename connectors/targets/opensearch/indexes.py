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
                self._add(index, absent)
            break
        self._ready[index, id(schema)] = schema

    def forget(self) -> None:
        """What was there may have been dropped."""
        self._ready.clear()

    def _present(self, index: str) -> Mapped | None:
        """Returns the fields that all indexes behind a name have; None: there is none."""
        reply = self._client.ask("GET", f"/{path_of(index)}/_mapping", None, (404,))
        if reply.status == 404:
            return None
        found = [dict(one.get("mappings", {}).get("properties", {})) for one in reply.json().values()]
        # A new backing index of a data stream has the fields of its template; the last one is written to.
        return found[-1] if found else {}

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
        path = f"/_index_template/{path_of(f'cdcworker-{index}')}"
        self._made(self._client.ask("PUT", path, template, (400,)), index)
        self._made(self._client.ask("PUT", f"/_data_stream/{path_of(index)}", None, (400,)), index)

    def _add(self, index: str, properties: Mapped) -> None:
        path = f"/{path_of(index)}/_mapping"
        self._made(self._client.ask("PUT", path, {"properties": properties}, (400,)), index)

    @staticmethod
    def _made(reply: Reply, index: str) -> None:
        if reply.status == 400 and reply.error not in _THERE:
            text = f"the index cannot have the fields of the record's schema ({reply.error})"
            raise CdcError(MAPPING_CONFLICT, text, where={"index": index})


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
