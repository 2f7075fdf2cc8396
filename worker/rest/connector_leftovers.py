"""What a deleted connector leaves outside of the cluster, as the answer to its deletion says it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from cdcworker.coordinator.log.connections import as_run
from cdcworker.coordinator.model import Connector, View
from cdcworker.worker.http import errors as e
from cdcworker.worker.offsets.source_database import leftovers
from starlette.requests import Request

LEFT: Final = "X-CDC-Left"
"""The header of an answer without a body: a JSON object, the names of what may be left by kind."""
DROP: Final = "drop"
KINDS: Final = ("slot", "publication")
NAMES_MAX: Final = 20
"""Of each kind the header names so many; `more` counts the others."""


def wanted_drops(request: Request) -> frozenset[str]:
    """Returns the kinds that are to be dropped. RestError 400 for one that does not exist."""
    given = ",".join(request.query_params.getlist(DROP))
    kinds = frozenset(part.strip() for part in given.split(",") if part.strip())
    if unknown := sorted(kinds - set(KINDS)):
        text = f"`drop` takes {' and '.join(KINDS)}, not {unknown[0]!r}; nothing was done"
        raise e.bad_request(text, e.parameter(DROP))
    return kinds


def left_behind(view: View, connector: Connector) -> dict[str, list[str]]:
    """Returns the names of what may be left, by kind: slots, publications, and the topics that were in use,
    also before they were reset."""
    out: dict[str, list[str]] = {}
    for item in leftovers(as_run(view.state, connector)):
        out.setdefault(item.kind, []).append(item.name)
    # A sink only reads its topics.
    used = view.topics.get(connector.name, frozenset()) | view.former_topics.get(connector.name, frozenset())
    topics = sorted(used) if connector.kind == "source" else []
    return {**out, "topics": topics} if topics else out


def header_of(left: Mapping[str, list[str]]) -> dict[str, str]:
    """Returns the header that says what is left; none where nothing is."""
    if not left:
        return {}
    shown: dict[str, Any] = {kind: names[:NAMES_MAX] for kind, names in left.items()}
    more = sum(max(0, len(names) - NAMES_MAX) for names in left.values())
    return {LEFT: json.dumps({**shown, "more": more} if more else shown)}


def used_by_others(view: View, connector: Connector) -> set[tuple[str, str]]:
    """Returns kind and name of what another connector of the cluster has in its config too, whatever its database: two texts
    may name one server (another case, an alias, a reference)."""
    own = {(item.kind, item.name) for item in leftovers(as_run(view.state, connector))}
    others = (one for name, one in view.state.connectors.items() if name != connector.name)
    return {(item.kind, item.name) for other in others for item in leftovers(as_run(view.state, other))} & own


def droppable(view: View, connector: Connector, kinds: Collection[str]) -> list[dict[str, str]]:
    """Returns kind and name of what a deletion with these kinds would drop, as far as the cluster's configs say."""
    kept = used_by_others(view, connector)
    found = [(item.kind, item.name) for item in leftovers(as_run(view.state, connector))]
    return [{"kind": kind, "name": name} for kind, name in found if kind in kinds and (kind, name) not in kept]
