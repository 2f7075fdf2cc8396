"""The child that shows a sink's dead letters, or has them applied again: a JSON question on stdin, an answer on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from cdcworker.connectors.api import LettersAsked, SinkPlace
from cdcworker.connectors.registry import lookup
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.answering import answered, asked
from cdcworker.worker.files import file_roots
from cdcworker.worker.references import resolve
from cdcworker.worker.sink_runner import finder
from cdcworker.worker.validate import telling

COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.letters_main")
NOT_OFFERED: Final = declare(
    "letters.not_offered",
    "environment",
    "The connector keeps its dead letters by itself",
    "Look at them where the connector keeps them.",
)


def main() -> int:
    with asked() as (question, out):
        json.dump(answer(question), out)
    return 0


def answer(question: JsonObject) -> JsonObject:
    return answered(_done, question, "handling dead letters")


def _done(question: JsonObject, secrets: list[str]) -> JsonObject:
    from cdcworker.coordinator.kafka_clients import settings

    connector_class = lookup(question["config"].get("connector.class", "")).load()
    config = resolve(question["config"], question["providers"])
    secrets += telling(config, connector_class.config_def.secrets)
    sink: Any = connector_class(config)
    if not hasattr(sink, "redrive"):
        raise CdcError(NOT_OFFERED, "this connector shows no dead letters")
    roots = file_roots(question["providers"])
    place = SinkPlace(question["connector"], file_roots=roots, machine=finder(sink))
    given = dict(question["asked"])
    topic, partition, offset = given.pop("after", None) or ("", -1, -1)
    asked = LettersAsked(
        after=(topic, partition, offset),
        kafka=settings(question["kafka"], "consumer"),
        schema_topic=question["schema_topic"],
        **given,
    )
    return dict(sink.dead_letters(place, asked) if question["do"] == "list" else sink.redrive(place, asked))


if __name__ == "__main__":
    sys.exit(main())
