"""Registers the schemas of one side of a connector's records in an existing registry."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from cdcworker.connectors.external_registry.client import RegistryClient
from cdcworker.connectors.external_registry.errors import NOT_REGISTERED
from cdcworker.connectors.external_registry.subjects import subject_of
from cdcworker.connectors.formats.protobuf.proto_parser import parse_proto
from cdcworker.connectors.formats.registry_keys import RegistrySettings
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.schemas.avro import TypedSchema, canonical_tree
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import Registration, StoredSchema

log = logging.getLogger(__name__)

IDS_MAX: Final = 16_384
"""Schemas of which the id is known (INV-10)."""
_ENCODING: Final = ("type", "name", "fields", "symbols", "items", "values", "size")
"""What of an Avro schema decides on the bytes."""


class ExternalRegistrar:
    """Returns the ids of schemas: registered, or looked up where the config says so. One thread uses it. What it has learned stays
    known when it is closed: a session that is dropped half-way goes on from there."""

    def __init__(self, settings: RegistrySettings, side: str, client: RegistryClient) -> None:
        self.settings = settings
        self._side = side
        self._client = client
        self._ids: BoundedCache[tuple[str, str], int] = BoundedCache(IDS_MAX)

    def close(self) -> None:
        """Closes the connections; the next request opens one again."""
        self._client.close()

    def id_of(self, topic: str, registration: Registration) -> int:
        """Returns the id to write records of a topic with. CdcError: a refusal names the subject and the table, which is then
        held; an outage is of kind `transient`."""
        subject = subject_of(self.settings.strategy, topic, self._side, registration.schema)
        key = (subject, registration.fingerprint)
        known = self._ids.get(key)
        if known is not None:
            return known
        try:
            found = self._found(subject, registration.schema)
        except CdcError as error:
            raise _of_table(error, registration, subject) from None
        log.info("schema registered at %s subject=%s id=%d", self.settings.key, subject, found)
        self._ids[key] = found
        return found

    def _found(self, subject: str, schema: Avro | TypedSchema) -> int:
        if self.settings.auto_register:
            return self._client.register(subject, schema)
        if not self.settings.use_latest:
            return self._client.look_up(subject, schema)
        latest = self._client.latest(subject)
        if not _is_alike(schema, latest.stored):
            text = "the newest schema of the subject is another than the one that is to be written"
            raise CdcError(NOT_REGISTERED, text, where={"subject": subject})
        return latest.id


def _is_alike(schema: Avro | TypedSchema, stored: StoredSchema) -> bool:
    """Returns whether the bytes that one schema gives are read by the other as what they are."""
    if isinstance(schema, TypedSchema):
        if schema.type != stored.type:
            return False
        read: Any = parse_proto if schema.type == "PROTOBUF" else json.loads
        try:
            return bool(read(schema.text) == read(stored.text))
        except ValueError:
            return False
    return stored.type == "AVRO" and _encoding(canonical_tree(schema)) == _encoding(canonical_tree(stored.schema))


def _encoding(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_encoding(branch) for branch in tree]
    if not isinstance(tree, dict):
        return tree
    kept = {name: tree[name] for name in _ENCODING if name in tree}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = _encoding(kept[name])
    if "fields" in kept:
        kept["fields"] = [{"name": field["name"], "type": _encoding(field["type"])} for field in kept["fields"]]
    return kept["type"] if kept.keys() == {"type"} else kept


def _of_table(error: CdcError, registration: Registration, subject: str) -> CdcError:
    where = {"subject": subject, **error.where}
    path = registration.meta.path
    if error.kind == "data" and path and registration.meta.table_id is not None:
        where.setdefault("table", ".".join(path))
    return CdcError(error.code, error.message, where=where, hint=error.hint)
