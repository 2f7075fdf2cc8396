"""Which registry gives the ids of a source's schemas: an existing one that its config names, or the cluster's own."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, Protocol

from cdcworker.connectors.external_registry.client import Beat, RegistryClient
from cdcworker.connectors.external_registry.registrar import ExternalRegistrar
from cdcworker.connectors.formats.registry_keys import KEPT, registry_of
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import Registration
from cdcworker.schemas.topics import subject, topic_name

log = logging.getLogger(__name__)

Side = Literal["key", "value"]
SIDES: Final[tuple[Side, ...]] = ("key", "value")


class OwnRegistrar(Protocol):
    """The registrar of the cluster's own registry."""

    def __call__(self, registrations: Sequence[Registration]) -> Sequence[int]: ...

    def subjects(self) -> Mapping[str, Collection[tuple[str, ...]]]:
        """Returns the names of all subjects that the cluster's own registry has, with the paths of their tables."""

    def close_idle(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class RoutedRegistrar:
    """Asks an existing registry for the ids of those sides for which the config names one, and the cluster's own for the rest.

    A connector whose topics have ids of the cluster's own registry keeps them: the ids of a topic are of one registry, and a
    config that named a url when that had no effect means what it meant. `schema.registry.ids=url` says otherwise.
    """

    def __init__(self, own: OwnRegistrar, external: Mapping[Side, ExternalRegistrar], prefix: str) -> None:
        self._own = own
        self._external = external
        self._prefix = prefix
        self._kept: dict[Side, frozenset[str] | None] = {}
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
        topic, _, name = registration.subject.rpartition("-")
        side: Side = "key" if name == "key" else "value"
        external = self._external.get(side)
        if external is None:
            return None
        if external.settings.ids == KEPT:
            kept = self._kept_subjects(side)
            if kept is None or registration.subject in kept:
                return None
        return external, topic

    def _kept_subjects(self, side: Side) -> frozenset[str] | None:
        if side not in self._kept:
            known = {name: paths for name, paths in self._own.subjects().items() if name.endswith(f"-{side}")}
            is_kept = any(self._is_ours(name, side, path) for name, paths in known.items() for path in paths)
            self._kept[side] = None if is_kept else frozenset(known)
            if is_kept:
                log.warning(
                    "the %ss of this connector keep the schema ids of the cluster's own registry, which its topics have:"
                    " %s is not used; schema.registry.ids=url of the converter changes that",
                    side,
                    self._external[side].settings.key,
                )
        return self._kept[side]

    def _is_ours(self, name: str, side: Side, path: tuple[str, ...]) -> bool:
        """Returns whether a subject is that of a table under this connector's prefix. The prefix of another connector may begin
        with it: the table's own path tells where a prefix ends."""
        try:
            return bool(path) and name == subject(topic_name(self._prefix, path), side)
        except CdcError:
            return False


def external_of(config: Mapping[str, str], beat: Beat, state_dir: str = "") -> Mapping[Side, ExternalRegistrar]:
    """Returns the registrars of those sides for which a resolved config names an existing registry."""
    found = {side: registry_of(config, side) for side in SIDES}
    return {
        side: ExternalRegistrar(settings, side, RegistryClient(settings, beat, state_dir=state_dir))
        for side, settings in found.items()
        if settings is not None
    }


def routed(
    own: OwnRegistrar, external: Mapping[Side, ExternalRegistrar], prefix: str
) -> OwnRegistrar | RoutedRegistrar:
    """Returns the registrar of one session."""
    return RoutedRegistrar(own, external, prefix) if external else own
