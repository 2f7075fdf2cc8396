"""The child that asks a source's database: could its tasks go on from these positions, and what it drops when it is deleted."""

from __future__ import annotations

import json
import sys
from typing import Any

from cdcworker.connectors.api.source import DropRequest, LeavesBehind, VerifiesPositions
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.children.answer import answer_question, read_question
from cdcworker.worker.logs.redaction import clean_all
from cdcworker.worker.validation.connector_of_config import connector_of


def main() -> int:
    with read_question() as (question, out):
        json.dump(answer(question), out)
    return 0


def answer(question: JsonObject) -> JsonObject:
    return answer_question(_done, question, "asking the source's database", clean_all)


def _done(question: JsonObject, secrets: list[str]) -> JsonObject:
    source = connector_of(question["config"], question["providers"], secrets)
    if question["do"] == "drop":
        return {"items": _dropped(source, question)}
    if not isinstance(source, VerifiesPositions):
        return {}
    untold = ""
    for index, task, position in question["positions"]:
        try:
            untold = source.verify_position(task, position) or untold
        except CdcError as error:
            return {"refused": {**clean_all(error.to_dict()), "index": index}}
    return {"untold": clean_all(untold)}


def _dropped(source: Any, question: JsonObject) -> list[JsonObject]:
    if not isinstance(source, LeavesBehind):
        return []
    spared = [(kind, name) for kind, name in question["spared"]]
    asked = DropRequest(question["connector"], question["group"], question["kinds"], spared)
    return [
        {"kind": item.kind, "name": item.name, "error": None if error is None else clean_all(error.to_dict())}
        for item, error in source.drop_leftovers(asked)
    ]


if __name__ == "__main__":
    sys.exit(main())
