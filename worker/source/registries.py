"""Which registry gives the ids of a source's schemas: an existing one that its config names, or the cluster's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from cdcworker.connectors.external_registry.client import RegistryClient
from cdcworker.connectors.external_registry.registrar import ExternalRegistrar
from cdcworker.connectors.formats.registry_keys import KEPT, registry_of
from cdcworker.schemas.log import Registration

log = logging.getLogger(__name__)

SIDES: Final = ("key", "value")


class OwnRegistrar(Protocol):
    """The registrar of the cluster's own registry."""

    def __call__(self, registrations: Sequence[Registration]) -> Sequence[int]: ...

    def subjects(self) -> Sequence[str]:
        """Returns the names of all subjects that the cluster's own registry has."""

    def close_idle(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class RoutedRegistrar:
    """Asks an existing registry for the ids of those sides for which the config names one, and the cluster's own for the rest.

    A connector whose topics have ids of the cluster's own registry keeps them: the ids of a topic are of one registry, and a
    config that named a url when that had no effect means what it meant. `schema.registry.ids=url` says otherwise.
    """

    def __init__(self, own: OwnRegistrar, external: Mapping[str, ExternalRegistrar], prefix: str) -> None:
        self._own = own
        self._external = external
        self._prefix = prefix
        self._kept: dict[str, frozenset[str] | None] = {}
        """By side the subjects that the own registry had at the first registration; None: it is the registry of all."""

    def __call__(self, registrations: Sequence[Registration]) -> Sequence[int]:
        routes = [self._route(registration) for registration in registrations]
        own = [registration for registration, route in zip(registrations, routes, strict=True) if route is None]
        ids = iter(self._own(own) if own else ())
        return [
            next(ids) if route is None else route[0].id_of(route[1], registration)
            for registration, route in zip(registrations, routes, strict=True)
        ]

    def close_idle(self) -> None:
        """Between bursts of registrations no connection is kept."""
        for external in self._external.values():
            external.close()
        self._own.close_idle()

    def abort(self) -> None:
        self._own.abort()

    def close(self) -> None:
        for external in self._external.values():
            external.close()
        self._own.close()

    def _route(self, registration: Registration) -> tuple[ExternalRegistrar, str] | None:
        """Returns who registers a schema, and for which topic; None: the cluster's own registry does."""
        topic, _, side = registration.subject.rpartition("-")
        external = self._external.get(side)
        if external is None:
            return None
        if external.settings.ids == KEPT:
            kept = self._kept_subjects(side)
            if kept is None or registration.subject in kept:
                return None
        return external, topic

    def _kept_subjects(self, side: str) -> frozenset[str] | None:
        if side not in self._kept:
            known = frozenset(name for name in self._own.subjects() if name.endswith(f"-{side}"))
            is_kept = any(name.startswith(f"{self._prefix}.") for name in known)
            self._kept[side] = None if is_kept else known
            if is_kept:
                log.warning(
                    "the %ss of this connector keep the schema ids of the cluster's own registry, which its topics have:"
                    " %s is not used; schema.registry.ids=url of the converter changes that",
                    side,
                    self._external[side].settings.key,
                )
        return self._kept[side]


def routed(
    own: OwnRegistrar, config: Mapping[str, str], prefix: str, state_dir: str = ""
) -> OwnRegistrar | RoutedRegistrar:
    """Returns the registrar that a resolved config asks for."""
    found = {side: registry_of(config, side) for side in SIDES}
    external = {
        side: ExternalRegistrar(settings, side, RegistryClient(settings, state_dir))
        for side, settings in found.items()
        if settings is not None
    }
    return RoutedRegistrar(own, external, prefix) if external else own
