"""The child that shows a sink's dead letters, or has them applied again: a JSON question on stdin, an answer on stdout."""

from __future__ import annotations

import json
import sys
from typing import Final

from cdcworker.connectors.api.sink import DeadLetterFilter, KeepsDeadLetters, LedgerAccess
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.children.answer import answer_question, read_question
from cdcworker.worker.config.file_roots import file_roots
from cdcworker.worker.logs.redaction import clean_all
from cdcworker.worker.task.sink_runner import finder
from cdcworker.worker.validation.connector_of_config import connector_of

NOT_OFFERED: Final = declare(
    "letters.not_offered",
    "environment",
    "The connector keeps its dead letters by itself",
    "Look at them where the connector keeps them.",
)


def main() -> int:
    with read_question() as (question, out):
        json.dump(answer(question), out)
    return 0


def answer(question: JsonObject) -> JsonObject:
    return answer_question(_done, question, "handling dead letters", clean_all)


def _done(question: JsonObject, secrets: list[str]) -> JsonObject:
    from cdcworker.coordinator.kafka.clients import settings

    sink = connector_of(question["config"], question["providers"], secrets)
    if not isinstance(sink, KeepsDeadLetters):
        raise CdcError(NOT_OFFERED, "this connector shows no dead letters")
    roots = file_roots(question["providers"])
    place = LedgerAccess(question["connector"], file_roots=roots, machine=finder(sink))
    given = dict(question["asked"])
    topic, partition, offset = given.pop("after", None) or ("", -1, -1)
    asked = DeadLetterFilter(
        after=(topic, partition, offset),
        kafka=settings(question["kafka"], "consumer"),
        schema_topic=question["schema_topic"],
        **given,
    )
    return dict(sink.dead_letters(place, asked) if question["do"] == "list" else sink.redrive(place, asked))


if __name__ == "__main__":
    sys.exit(main())
