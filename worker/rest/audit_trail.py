"""The part of the audit log that describes a connector: its state, version and keys before and after a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cdcworker.coordinator.model import Connection, Connector, View
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.dry_run import config_changes

KEYS_MAX: Final = 100
VALUE_CHARS_MAX: Final = 300
Json = dict[str, Any]
Audited = Connector | Connection | None


class AuditedState:
    """The state of connectors as this worker sees it after the answer: by then it has read the change, unless it lags
    behind."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def now(self) -> View:
        return self._api.view()

    def change(self, before: View, connector: str) -> Json | None:
        """Returns what changed in a connector since `before`, None when nothing did."""
        old, new = before.state.connectors.get(connector), self._api.view().state.connectors.get(connector)
        if old == new:
            return None
        return self._told(old, new, ("version", "target_state", "labels"))

    def change_of_connection(self, before: View, connection: str) -> Json | None:
        """Returns what changed in a connection since `before`, None when nothing did."""
        old, new = before.state.connections.get(connection), self._api.view().state.connections.get(connection)
        return None if old == new else self._told(old, new, ("version",))

    def _told(self, old: Audited, new: Audited, members: Sequence[str]) -> Json:
        keys = config_changes(self._api.catalog.mask, old, new)
        out: Json = {name: _sides(old, new, name) for name in members}
        out["keys"] = [{name: _short(value) for name, value in item.items()} for item in keys[:KEYS_MAX]]
        return {**out, "keys_left_out": max(0, len(keys) - KEYS_MAX)}


def _sides(old: Audited, new: Audited, name: str) -> Json | None:
    """Returns the value before and after, None for one that has not changed."""
    before, after = (None if one is None else getattr(one, name) for one in (old, new))
    if name == "labels":
        before, after = (dict(side) if side else None for side in (before, after))
    return None if before == after else {"from": before, "to": after}


def _short(value: str | None) -> str | None:
    return value if value is None or len(value) <= VALUE_CHARS_MAX else f"{value[:VALUE_CHARS_MAX]}…"
