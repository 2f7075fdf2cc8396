"""The child that asks a sink for its ledger, or alters it: a JSON question on stdin, a JSON answer on stdout."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from cdcworker.connectors.api import SinkPlace
from cdcworker.connectors.config import MASK
from cdcworker.connectors.registry import lookup
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.files import file_roots
from cdcworker.worker.offsets import NOT_OFFERED
from cdcworker.worker.process import PR_SET_PDEATHSIG, prctl
from cdcworker.worker.references import resolve
from cdcworker.worker.sink_runner import finder
from cdcworker.worker.validate import telling


def main() -> int:
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        # Whatever a library prints must not end up in the answer.
        os.dup2(2, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        json.dump(answer(json.load(sys.stdin)), out)
    return 0


def answer(question: JsonObject) -> JsonObject:
    secrets: list[str] = []
    try:
        return _done(question, secrets)
    except CdcError as error:
        found = error.to_dict()
    except Exception as error:  # noqa: BLE001 - the edge of the process; the text may hold secrets, the type does not
        found = CdcError(INTERNAL, f"{type(error).__name__} while asking for offsets").to_dict()
    for secret in secrets:
        found["message"] = found["message"].replace(secret, MASK)
    return {"error": found}


def _done(question: JsonObject, secrets: list[str]) -> JsonObject:
    connector_class = lookup(question["config"].get("connector.class", "")).load()
    config = resolve(question["config"], question["providers"])
    secrets += telling(config, connector_class.config_def.secrets)
    sink: Any = connector_class(config)
    first, second = question["epoch"]
    place = SinkPlace(question["connector"], (first, second), file_roots(question["providers"]), finder(sink))
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
