"""What children have in common that are asked by a JSON question on stdin and answer on stdout."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from cdcworker.connectors.config import MASK
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.process import PR_SET_PDEATHSIG, prctl

Do = Callable[[JsonObject, list[str]], JsonObject]
"""The answer to a question. Secrets that it comes upon go into the list before anything can fail on them."""


@contextlib.contextmanager
def asked(niceness: int = 0) -> Iterator[tuple[JsonObject, TextIO]]:
    """The question, and where the answer goes: whatever a library prints ends up on stderr. The process dies with the
    one that asks."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.nice(niceness)
        yield json.load(sys.stdin), out


def answered(do: Do, question: JsonObject, doing: str) -> JsonObject:
    """The answer, or `error` without the secrets that were met."""
    secrets: list[str] = []
    try:
        return do(question, secrets)
    except CdcError as error:
        found = error.to_dict()
    except Exception as error:  # noqa: BLE001 - the edge of the process; the text may hold values, the type does not
        found = CdcError(INTERNAL, f"{type(error).__name__} while {doing}").to_dict()
    for secret in secrets:
        found["message"] = found["message"].replace(secret, MASK)
    return {"error": found}
