"""Dead letters of sinks, which lie in their targets: shown and sent again by the connector, in a child with a time limit."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdcworker.coordinator.model import Connector, JsonObject
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.children.call import call_child
from cdcworker.worker.http.errors import NOT_OFFERED

COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.dead_letters.child")
NOT_KEPT: Final = declare(
    "letters.not_kept",
    "environment",
    "The connector keeps no dead letters",
    "Sinks do, with errors.tolerance=all.",
)
REFUSED: Final = declare(
    "letters.refused",
    "environment",
    "The connector could not show or re-drive its dead letters",
    "See the code in the message: `cdcworker errors CODE` explains it.",
)
UNFINISHED: Final = declare(
    "letters.unfinished",
    "transient",
    "The target did not answer in time",
    "Ask again: what was done is done, and what was not is still there.",
)
WORK_S: Final = 20.0
"""Of one request; what is left then is asked for again."""
TIMEOUT_S: Final = 75.0

Ask = Callable[[JsonObject], JsonObject]


class DeadLetters:
    def __init__(
        self, kafka: Mapping[str, str], providers: Mapping[str, str], schema_topic: str, ask: Ask | None = None
    ) -> None:
        """`providers`: what references in configs may read; they are resolved in the child alone."""
        self._base = {"kafka": dict(kafka), "providers": dict(providers), "schema_topic": schema_topic}
        self._ask = ask or run_child
        self._redriven: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def redriven(self) -> Mapping[str, int]:
        """Returns the redriven letters by connector, since this worker started."""
        with self._lock:
            return dict(self._redriven)

    def show(self, connector: Connector, asked: Mapping[str, Any]) -> JsonObject:
        return self._asked("list", connector, asked)

    def redrive(self, connector: Connector, asked: Mapping[str, Any]) -> JsonObject:
        found = self._asked("redrive", connector, {**asked, "seconds": WORK_S})
        if not asked.get("dry_run"):
            with self._lock:
                self._redriven[connector.name] += int(found["redriven"])
        return found

    def _asked(self, do: str, connector: Connector, asked: Mapping[str, Any]) -> JsonObject:
        if connector.kind != "sink":
            raise CdcError(NOT_KEPT, f"{connector.name} is a source")
        question = {"connector": connector.name, "config": dict(connector.config), "asked": dict(asked)}
        answer = self._ask({**self._base, **question, "do": do})
        error = answer.get("error")
        if error is None:
            return answer
        if error["code"] in NOT_OFFERED:
            raise CdcError(error["code"], error["message"], hint=error["hint"])
        if error["kind"] == "transient":
            raise CdcError(UNFINISHED, f"[{error['code']}] {error['message']}", hint=error["hint"])
        raise CdcError(REFUSED, f"[{error['code']}] {error['message']}", where=error.get("where"), hint=error["hint"])


def run_child(question: JsonObject) -> JsonObject:
    answer = call_child(COMMAND, question, TIMEOUT_S)
    try:
        return parse_message(answer.out)
    except JsonRefused:
        ended = f"no answer within {TIMEOUT_S:g} s" if answer.code is None else f"its process ended with {answer.code}"
        raise CdcError(UNFINISHED, ended) from None
