"""The child that examines a connector: a JSON question on stdin, a line of JSON for each finding as soon as it is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from cdcworker.connectors.checks import UNKNOWN
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CODES, INTERNAL, CdcError
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.children.answer import read_question
from cdcworker.worker.children.call import call_child
from cdcworker.worker.logs.redaction import clean

COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.diagnostics.doctor_child")


def main() -> int:
    with read_question() as (question, out):
        for item in (*findings(question), {"done": True}):
            out.write(json.dumps(item, separators=(",", ":")) + "\n")
            out.flush()
    return 0


def findings(question: JsonObject) -> Iterator[dict[str, Any]]:
    from cdcworker.worker.diagnostics.doctor import chosen, row, target

    try:
        examined = target(question["connector"], question["config"], question["providers"], question["offsets"])
        for item in chosen(examined.examine(deep=bool(question["deep"])), question["checks"]):
            yield row(item)
    except CdcError as error:
        yield failed(error)
    except Exception as error:  # noqa: BLE001 - the edge of the process; the text may hold secrets, the type does not
        yield failed(CdcError(INTERNAL, f"{type(error).__name__} while examining"))


def failed(error: CdcError) -> dict[str, Any]:
    """Returns what kept the doctor from looking, in the form of a finding."""
    key = error.where.get("key")
    return {
        "check": "doctor.start",
        "severity": "error",
        "measured": "",
        "message": clean(error.message),
        "why": "Without it nothing can be examined.",
        "code": error.code,
        "configPath": f"/config/{key}" if key else None,
        "suggestion": clean(error.hint) or None,
        "fix": None,
        "took_ms": 0,
    }


def run_child(question: JsonObject, timeout_s: float, command: Sequence[str] = COMMAND) -> list[dict[str, Any]]:
    """The findings; those of a child that was too slow, or died, end with one that says so."""
    answer = call_child(command, question, timeout_s)
    ending = f"the examination ended early (exit code {answer.code})"
    if answer.code is None:
        ending = f"the examination did not end within {timeout_s:g} s"
    found: list[dict[str, Any]] = []
    for line in answer.out.splitlines():
        try:
            item = parse_message(line)
        except JsonRefused:
            continue  # torn off in the middle
        if item.get("done"):
            return found
        found.append(item)
    rest = {**failed(CdcError(UNKNOWN, ending)), "check": "doctor.time", "severity": "unknown"}
    return [*found, {**rest, "why": "What comes after it was not looked at.", "suggestion": CODES[UNKNOWN].hint}]


if __name__ == "__main__":
    sys.exit(main())
