"""The child that asks a sink for its ledger, or alters it: a JSON question on stdin, a JSON answer on stdout."""

from __future__ import annotations

import json
import sys

from cdcworker.connectors.api.sink import KeepsOffsets, LedgerAccess
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.children.answer import answer_question, read_question
from cdcworker.worker.config.file_roots import file_roots
from cdcworker.worker.logs.redaction import clean_all
from cdcworker.worker.offsets.model import NOT_OFFERED
from cdcworker.worker.task.sink_runner import finder
from cdcworker.worker.validation.connector_of_config import connector_of


def main() -> int:
    with read_question() as (question, out):
        json.dump(answer(question), out)
    return 0


def answer(question: JsonObject) -> JsonObject:
    return answer_question(_done, question, "asking for offsets", clean_all)


def _done(question: JsonObject, secrets: list[str]) -> JsonObject:
    from cdcworker.coordinator.kafka.clients import settings

    sink = connector_of(question["config"], question["providers"], secrets)
    first, second = question["epoch"]
    kafka = settings(question["kafka"], "consumer") if question.get("kafka") else {}
    roots = file_roots(question["providers"])
    place = LedgerAccess(question["connector"], (first, second), roots, finder(sink), kafka)
    if not isinstance(sink, KeepsOffsets):
        raise CdcError(NOT_OFFERED, "this connector does not show its offsets")
    if question["do"] == "read":
        return {"offsets": [[topic, number, next_] for (topic, number), next_ in sink.offsets(place).items()]}
    rows = question["changes"]
    changes = None if rows is None else {(topic, number): next_ for topic, number, next_ in rows}
    sink.alter_offsets(place, changes)
    return {}


if __name__ == "__main__":
    sys.exit(main())
