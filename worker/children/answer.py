"""The child's side of a question: it reads JSON on stdin and answers on the descriptor that was stdout."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from cdcworker.connectors.config.definition import MASK
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.schemas.untrusted.json_text import parse_message
from cdcworker.worker.linux.process_group import PR_SET_PDEATHSIG, prctl

Clean = Callable[[Any], Any]
Do = Callable[[JsonObject, list[str]], JsonObject]
"""Answers a question. It puts secrets that it resolves into the list before anything can fail because of them."""


@contextlib.contextmanager
def read_question(niceness: int = 0) -> Iterator[tuple[JsonObject, TextIO]]:
    """Yields the question and the stream for the answer. Prints of libraries go to stderr; the child ends with its
    parent."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.nice(niceness)
        yield parse_message(sys.stdin.read()), out


def answer_question(do: Do, question: JsonObject, doing: str, clean: Clean) -> JsonObject:
    """Returns the answer, or `error` without the secrets. `doing` completes the sentence of an unexpected error, `clean`
    returns a JSON value without what references lead to."""
    secrets: list[str] = []
    try:
        return do(question, secrets)
    except CdcError as error:
        reply = error.to_dict()
    except Exception as error:  # noqa: BLE001 - the edge of the process; the text may hold values, the type does not
        reply = CdcError(INTERNAL, f"{type(error).__name__} while {doing}").to_dict()
    return {"error": without(secrets, clean(reply))}


def without(secrets: Sequence[str], content: Any) -> Any:
    """Returns a JSON value whose texts hold none of the secrets, longer ones cut first."""
    if isinstance(content, str):
        for secret in sorted(secrets, key=len, reverse=True):
            content = content.replace(secret, MASK)
        return content
    if isinstance(content, dict):
        return {name: without(secrets, value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [without(secrets, value) for value in content]
    return content
