"""The database of a source while none of its tasks runs: positions are verified there, and what is left there is dropped."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.source import LeavesBehind, Leftover
from cdcworker.connectors.registry.names import lookup
from cdcworker.coordinator.model import Connector, JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.children.call import call_child
from cdcworker.worker.offsets.model import BAD_POSITION, REFUSED, UNFINISHED

log = logging.getLogger(__name__)

COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.offsets.source_child")
VERIFY_S: Final = 20.0
DROP_S: Final = 60.0
TRANSLATE_S: Final = 60.0
"""A large transaction is read for it."""
Position = tuple[int, int, Mapping[str, Any]]
"""The number of the item in the request, the task, and its position."""


class SourceDatabase:
    """Asks in a child process, which alone resolves references."""

    def __init__(self, providers: Mapping[str, str], group: str) -> None:
        self._providers = dict(providers)
        self._group = group

    def verify(self, connector: Connector, positions: Sequence[Position]) -> str:
        """Raises CdcError `offsets.bad_position` for a position from which no task could go on. Returns why that could not be
        told; empty: it could."""
        if not positions:
            return ""
        try:
            answer = self._ask(connector, VERIFY_S, do="verify", positions=positions)
        except CdcError as exc:
            return exc.message
        _require_taken(answer)
        error = answer.get("error")
        untold = f"[{error['code']}] {error['message']}" if error else str(answer.get("untold") or "")
        if untold:
            log.warning("position not verified connector=%s error=%s", connector.name, untold)
        return untold

    def drop(
        self, connector: Connector, kinds: Collection[str], spared: Collection[tuple[str, str]]
    ) -> list[dict[str, Any]]:
        """Drops what the connector has left of these kinds; returns each with the error that kept it there, or null."""
        answer = self._ask(connector, DROP_S, do="drop", kinds=sorted(kinds), spared=sorted(spared))
        _require_answered(answer)
        items: list[dict[str, Any]] = answer["items"]
        for item in items:
            code = (item["error"] or {}).get("code", "")
            log.info(
                "leftover %s connector=%s kind=%s name=%s code=%s",
                "kept" if code else "dropped",
                connector.name,
                *_named(item),
                code,
            )
        return items

    def moved(
        self, connector: Connector, positions: Sequence[Position], to: str
    ) -> tuple[dict[int, JsonObject], Sequence[str]]:
        """Returns the positions at another place, by the number of the item, and what people should know. CdcError
        `offsets.bad_position` for a place from which no task could go on."""
        answer = self._ask(connector, TRANSLATE_S, do="move", positions=positions, to=to)
        _require_taken(answer)
        _require_answered(answer)
        return dict(answer["positions"]), answer["notes"]

    def from_debezium(
        self, connector: Connector, offsets: Sequence[Position]
    ) -> tuple[dict[int, JsonObject], Sequence[str]]:
        """Returns our positions in the place of Debezium's offsets, by the number of the item, and what people should know. CdcError
        `offsets.bad_position` for an offset from which no task could go on."""
        answer = self._ask(connector, TRANSLATE_S, do="from_debezium", positions=offsets)
        _require_taken(answer)
        _require_answered(answer)
        return dict(answer["positions"]), answer["notes"]

    def to_debezium(
        self, connector: Connector, positions: Sequence[Position]
    ) -> tuple[Sequence[JsonObject], Sequence[str]]:
        """Returns Debezium's offsets in the place of our positions, in their order, and what people should know."""
        answer = self._ask(connector, TRANSLATE_S, do="to_debezium", positions=positions)
        _require_answered(answer)
        return answer["offsets"], answer["notes"]

    def _ask(self, connector: Connector, timeout_s: float, **what: Any) -> JsonObject:
        question = {
            "connector": connector.name,
            "group": self._group,
            "config": dict(connector.config),
            "providers": self._providers,
            **what,
        }
        answer = call_child(COMMAND, question, timeout_s)
        if answer.code is None:
            raise CdcError(UNFINISHED, f"the database did not answer within {timeout_s:g} s")
        try:
            found: JsonObject = parse_message(answer.out)
        except JsonRefused:
            raise CdcError(UNFINISHED, f"the process that asks the database ended with {answer.code}") from None
        return found


def _require_taken(answer: JsonObject) -> None:
    if refused := answer.get("refused"):
        text = f"[{refused['code']}] {refused['message']}{_places(refused.get('where') or {})}"
        raise CdcError(BAD_POSITION, text, where={"index": refused["index"]}, hint=refused["hint"])


def _require_answered(answer: JsonObject) -> None:
    if error := answer.get("error"):
        raise CdcError(REFUSED, f"[{error['code']}] {error['message']}", hint=error["hint"])


def _named(item: Mapping[str, Any]) -> tuple[str, str]:
    return str(item["kind"]), str(item["name"])


def _places(where: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in where.items())
    return f" ({shown})" if shown else ""


def leftovers(connector: Connector) -> Sequence[Leftover]:
    """Returns what a connector may leave outside of the cluster; nothing where its config cannot be read."""
    try:
        source = lookup(connector.config.get("connector.class", "")).load()(connector.config)
        return source.leftovers() if isinstance(source, LeavesBehind) else ()
    except Exception as error:  # noqa: BLE001 - the connector's own code; a connector that cannot be imported can be deleted too
        log.info("leftovers not known connector=%s error=%s", connector.name, type(error).__name__)
        return ()
