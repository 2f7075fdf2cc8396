"""The child that asks a sink for its ledger, or alters it: a JSON question on stdin, a JSON answer on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

from cdcworker.connectors.api import SinkPlace
from cdcworker.connectors.registry import lookup
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.answering import answered, asked
from cdcworker.worker.files import file_roots
from cdcworker.worker.offsets import NOT_OFFERED
from cdcworker.worker.references import resolve
from cdcworker.worker.sink_runner import finder
from cdcworker.worker.validate import telling


def main() -> int:
    with asked() as (question, out):
        json.dump(answer(question), out)
    return 0


def answer(question: JsonObject) -> JsonObject:
    return answered(_done, question, "asking for offsets")


def _done(question: JsonObject, secrets: list[str]) -> JsonObject:
    from cdcworker.coordinator.kafka_clients import settings

    connector_class = lookup(question["config"].get("connector.class", "")).load()
    config = resolve(question["config"], question["providers"])
    secrets += telling(config, connector_class.config_def.secrets)
    sink: Any = connector_class(config)
    first, second = question["epoch"]
    kafka = settings(question["kafka"], "consumer") if question.get("kafka") else {}
    roots = file_roots(question["providers"])
    place = SinkPlace(question["connector"], (first, second), roots, finder(sink), kafka)
    if not hasattr(sink, "offsets"):
        raise CdcError(NOT_OFFERED, "this connector does not show its offsets")
    if question["do"] == "read":
        return {"offsets": [[topic, number, next_] for (topic, number), next_ in sink.offsets(place).items()]}
    rows = question["changes"]
    changes = None if rows is None else {(topic, number): next_ for topic, number, next_ in rows}
    sink.alter_offsets(place, changes)
    return {}


if __name__ == "__main__":
    sys.exit(main())
