"""JSON pointers (RFC 6901): where in an answer a value stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

_FORM: Final = re.compile(r"(?:/(?:[^~/]|~[01])*)*")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
Pointer = Sequence[str]


def pointer_problem(text: str) -> str | None:
    """Returns what is wrong with the text of a pointer."""
    return None if _FORM.fullmatch(text) else "expects a JSON pointer, such as /data/items"


def parse_pointer(text: str) -> Pointer:
    """Returns the steps of a pointer; a text that does not begin with a slash is the name of one member. ValueError."""
    if text and not text.startswith("/"):
        return (text,)
    if pointer_problem(text):
        raise ValueError(text)
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])


def value_at(document: Any, pointer: Pointer) -> Any:
    """Returns the value at a pointer, None where there is none."""
    for step in pointer:
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and _INDEX.fullmatch(step) and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document
