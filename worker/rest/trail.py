"""What the trail of changes tells of a connector: its state, version and keys before a request and after it."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.coordinator.model import Connector, View
from cdcworker.worker.rest import dry
from cdcworker.worker.rest.context import Api

KEYS_MAX: Final = 100
VALUE_CHARS_MAX: Final = 300
Json = dict[str, Any]


class Pictures:
    """As this worker sees it once the request is answered: by then it has read the change, unless it lags behind."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def now(self) -> View:
        return self._api.view()

    def change(self, before: View, connector: str) -> Json | None:
        """None when nothing is different."""
        old, new = before.state.connectors.get(connector), self._api.view().state.connectors.get(connector)
        if old == new:
            return None
        keys = dry.changes(self._api.catalog.mask, old, new)
        out: Json = {name: _sides(old, new, name) for name in ("version", "target_state", "labels")}
        out["keys"] = [{name: _short(value) for name, value in item.items()} for item in keys[:KEYS_MAX]]
        return {**out, "keys_left_out": max(0, len(keys) - KEYS_MAX)}


def _sides(old: Connector | None, new: Connector | None, name: str) -> Json | None:
    """None for what stayed."""
    before, after = (None if one is None else getattr(one, name) for one in (old, new))
    if name == "labels":
        before, after = (dict(side) if side else None for side in (before, after))
    return None if before == after else {"from": before, "to": after}


def _short(value: str | None) -> str | None:
    return value if value is None or len(value) <= VALUE_CHARS_MAX else f"{value[:VALUE_CHARS_MAX]}…"
