"""The child that measures standing tasks: all of them as JSON on stdin, a JSON line for each on stdout as soon as it is known."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import wait
from typing import Any, Final, TextIO

from cdcworker.connectors.api.abilities import ChecksFiles, MeasuresLag, StandingTask
from cdcworker.coordinator.kafka.clients import settings
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import thread_pool
from cdcworker.worker.children.answer import read_question
from cdcworker.worker.config.file_roots import file_roots
from cdcworker.worker.security.topic_rules import access_of
from cdcworker.worker.validation.connector_of_config import connector_of

AT_ONCE: Final = 4
NICENESS: Final = 10


def main() -> int:
    with read_question(NICENESS) as (question, out):
        lock = threading.Lock()
        pool = thread_pool(AT_ONCE, "measure")
        wait([pool.submit(_tell, item, question, out, lock) for item in question["tasks"]])
        out.flush()
        # What hangs in a library must not keep the answers from whoever waits for the end.
        os._exit(0)


def _tell(item: JsonObject, question: JsonObject, out: TextIO, lock: threading.Lock) -> None:
    line = json.dumps({"key": item["key"], **answer(item, question)}, separators=(",", ":"))
    with lock:
        out.write(line + "\n")
        out.flush()


def answer(item: JsonObject, question: JsonObject) -> dict[str, Any]:
    """Returns `numbers` and `memory` of a task, or `code` where nobody can tell."""
    try:
        numbers, memory = _measured(item, question["providers"], question["kafka"])
    except CdcError as error:
        return {"code": error.code}
    except Exception as error:  # noqa: BLE001 - the edge of the process; the text may hold secrets, the type does not
        return {"code": f"internal.{type(error).__name__}"}
    return {"numbers": numbers, "memory": memory}


def _measured(
    item: JsonObject, providers: Mapping[str, str], kafka: Mapping[str, str]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    connector, roots = connector_of(item["config"], providers, []), tuple(file_roots(providers))
    if isinstance(connector, ChecksFiles):
        connector.check_files(roots)
    if not isinstance(connector, MeasuresLag):
        return {}, {}
    access, kafka = access_of(providers, item["prefixes"]), settings(kafka, "consumer")
    told = (item["connector"], item["task"], item["numbers"], item["memory"])
    task = StandingTask(*told, kafka, time.time(), access, roots)
    return connector.measure_lag(task)


if __name__ == "__main__":
    sys.exit(main())
