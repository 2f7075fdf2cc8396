"""Notices that an index is no longer the one that was written before. The server makes an index that is dropped under its writers again
with the next document: with types that it guesses from the values, and without what the sink sets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from cdcworker.connectors.record_sink.errors import TARGET_REFUSES
from cdcworker.connectors.targets.opensearch.client import SearchClient
from cdcworker.connectors.targets.opensearch.indexes import KNOWN_MAX, IndexRules
from cdcworker.connectors.targets.opensearch.names import path_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
PAUSE_RATIO: Final = 20
"""How many times as long as a look takes nothing is looked at: a batch may go to many indexes."""
_ID: Final = "index.uuid"
_SET_BY_THE_SINK: Final = "index.gc_deletes"
_DROPPED: Final = (
    "the index was dropped while it was written, and is there again without what the sink sets: it may have other types, and lacks"
    " the rows that were written before. Delete it, reset the connector's offsets and start the task again"
)


class IndexIdentities:
    """The ids of the indexes that are behind each name."""

    def __init__(self, client: SearchClient, rules: IndexRules, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._rules = rules
        self._clock = clock
        self._known: BoundedCache[str, Mapping[str, Any]] = BoundedCache(KNOWN_MAX)
        self._next_at = 0.0

    def have_changed(self, names: Collection[str]) -> bool:
        """Returns whether other indexes are behind some name than at the last look: these are to be made ready again. Looks once a
        second at most. Raises CdcError where an index was dropped and the server has made it again."""
        begin = self._clock()
        is_due = begin >= self._next_at
        changed = [name for name in names if (is_due or name not in self._known) and self._has_changed(name)]
        if is_due:
            end = self._clock()
            self._next_at = end + max(LOOK_S, PAUSE_RATIO * (end - begin))
        return bool(changed)

    def _has_changed(self, name: str) -> bool:
        path = f"/{path_of(name)}/_settings/{_ID},{_SET_BY_THE_SINK}?flat_settings=true"
        reply = self._client.ask("GET", path, None, (403, 404))
        if reply.status == 404:
            self._known.pop(name, None)
            if self._rules.creates:
                log.warning(
                    "index is gone and is made again: rows that were written before are not in it index=%s", name
                )
            return True
        # A user may have no right to see settings.
        found = {} if reply.status == 403 else {each: one.get("settings", {}) for each, one in reply.json().items()}
        known = self._known.get(name)
        self._known[name] = {each: settings.get(_ID) for each, settings in found.items()}
        if known is None:
            return False
        for each in found.keys() & known.keys():
            if found[each].get(_ID) != known[each]:
                self._judge(name, found[each])
                return True
        return found.keys() != known.keys()

    def _judge(self, name: str, settings: Mapping[str, Any]) -> None:
        """Raises CdcError unless an index that took the place of another one was made by a task of the sink, or by the template of a
        stream."""
        if not self._rules.creates or (not self._rules.streams and _SET_BY_THE_SINK not in settings):
            self._known.pop(name, None)
            raise CdcError(TARGET_REFUSES, _DROPPED, where={"index": name})
        log.warning("index was dropped and made again: rows that were written before are not in it index=%s", name)
