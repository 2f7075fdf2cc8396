"""The child that asks a source's database: could its tasks go on from these positions, and what it drops when it is deleted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdcworker.connectors.api.source import (
    DropRequest,
    LeavesBehind,
    MovesPositions,
    TranslatesDebezium,
    VerifiesPositions,
)
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.children.answer import answer_question, read_question, without
from cdcworker.worker.logs.redaction import clean_all
from cdcworker.worker.offsets.model import NOT_BY_MEANING
from cdcworker.worker.validation.connector_of_config import connector_of


def main() -> int:
    with read_question() as (question, out):
        json.dump(answer(question), out)
    return 0


def answer(question: JsonObject) -> JsonObject:
    return answer_question(_done, question, "asking the source's database", clean_all)


def _done(question: JsonObject, secrets: list[str]) -> JsonObject:
    source = connector_of(question["config"], question["providers"], secrets)
    told = _ACTIONS[question["do"]](source, question)
    return dict(without(secrets, clean_all(told)))


def _verified(source: Any, question: JsonObject) -> JsonObject:
    if not isinstance(source, VerifiesPositions):
        return {}
    untold = ""
    for index, task, position in question["positions"]:
        try:
            untold = source.verify_position(task, position) or untold
        except CdcError as error:
            return {"refused": {**error.to_dict(), "index": index}}
    return {"untold": untold}


def _dropped(source: Any, question: JsonObject) -> JsonObject:
    if not isinstance(source, LeavesBehind):
        return {"items": []}
    spared = [(kind, name) for kind, name in question["spared"]]
    asked = DropRequest(question["connector"], question["group"], question["kinds"], spared)
    items = (
        {"kind": item.kind, "name": item.name, "error": None if error is None else error.to_dict()}
        for item, error in source.drop_leftovers(asked)
    )
    return {"items": list(items)}


def _moved(source: Any, question: JsonObject) -> JsonObject:
    if not isinstance(source, MovesPositions):
        raise CdcError(NOT_BY_MEANING, "this connector's positions cannot be altered by what they mean")
    positions: list[Any] = []
    notes: list[str] = []
    for index, task, position in question["positions"]:
        try:
            found = source.moved_position(task, position, question["to"])
        except CdcError as error:
            return {"refused": {**error.to_dict(), "index": index}}
        positions.append([index, found.content])
        notes += [f"task {task}: {note}" for note in found.notes]
    return {"positions": positions, "notes": notes}


def _from_debezium(source: Any, question: JsonObject) -> JsonObject:
    assert isinstance(source, TranslatesDebezium)
    positions: list[Any] = []
    notes: list[str] = []
    for index, task, offset in question["positions"]:
        try:
            found = source.from_debezium(task, offset)
        except CdcError as error:
            return {"refused": {**error.to_dict(), "index": index}}
        positions.append([index, found.content])
        notes += found.notes
    return {"positions": positions, "notes": notes}


def _to_debezium(source: Any, question: JsonObject) -> JsonObject:
    assert isinstance(source, TranslatesDebezium)
    found = [source.to_debezium(task, position) for _, task, position in question["positions"]]
    return {"offsets": [one.content for one in found], "notes": [note for one in found for note in one.notes]}


_ACTIONS: Final[Mapping[str, Callable[[Any, JsonObject], JsonObject]]] = {
    "drop": _dropped,
    "verify": _verified,
    "move": _moved,
    "from_debezium": _from_debezium,
    "to_debezium": _to_debezium,
}


if __name__ == "__main__":
    sys.exit(main())
