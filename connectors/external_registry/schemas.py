"""Finds schemas by their ids, in an existing registry and in the cluster's own: a topic may have records of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from cdcworker.connectors.external_registry.client import RegistryClient
from cdcworker.connectors.formats.format import SCHEMAS_MAX, FindsSchemas
from cdcworker.connectors.formats.registry_keys import registry_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.schemas.decode import UNKNOWN_ID
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import StoredSchema

OWN_IDS_FROM: Final = 10_000_000
"""Other registries count their ids from one, the cluster's own are spread over 31 bits: one below this number is looked for in the
other registry first, any other in the own one."""


class FindsById(Protocol):
    """A registry."""

    def by_id(self, id: int) -> StoredSchema | None:
        """Returns the schema of an id, None if there is none."""


class RegistrySchemas:
    """The schemas of a registry and of the cluster's own. One thread uses it."""

    def __init__(self, registry: FindsById, own: FindsSchemas) -> None:
        self._registry = registry
        self._own = own
        self._known: BoundedCache[int, StoredSchema] = BoundedCache(SCHEMAS_MAX)

    def stored(self, id: int) -> StoredSchema:
        """Raises CdcError `schema.unknown_id`, or of kind `transient` where nobody could be asked."""
        known = self._known.get(id)
        if known is None:
            known = self._known[id] = self._of_registry(id) if id < OWN_IDS_FROM else self._of_own(id)
        return known

    def _of_registry(self, id: int) -> StoredSchema:
        return self._registry.by_id(id) or self._own.stored(id)

    def _of_own(self, id: int) -> StoredSchema:
        try:
            return self._own.stored(id)
        except CdcError as error:
            if error.code != UNKNOWN_ID:
                raise
            found = self._registry.by_id(id)
            if found is None:
                raise
            return found


def schemas_of(config: Mapping[str, Any], side: str, own: FindsSchemas, state_dir: str = "") -> FindsSchemas:
    """Returns what finds the schemas of keys or values, as a validated config says."""
    client = client_of(config, side, state_dir)
    return own if client is None else RegistrySchemas(client, own)


def client_of(config: Mapping[str, Any], side: str, state_dir: str = "") -> RegistryClient | None:
    """Returns a client of the registry that a validated config names for keys or values, None where it names none."""
    settings = registry_of(config, side)
    return None if settings is None else RegistryClient(settings, state_dir=state_dir)
