"""Redacts what this process has resolved from its logs and reports: error texts of libraries may quote it. A secret is
masked; instead of what a reference leads to, the reference is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.config.definition import MASK

CHARS_MIN: Final = 4
"""Shorter secrets are not redacted: they would cut up ordinary words."""
ALONE_CHARS_MIN: Final = 2
"""What references lead to is redacted from this length on, below `CHARS_MIN` only where it stands alone."""
KNOWN_MAX: Final = 1_000

_known: dict[str, str] = {}
"""Each secret with what is shown instead."""
_pattern: re.Pattern[str] | None = None


def remember(values: Iterable[str]) -> None:
    """Adds secrets, which are masked."""
    for value in values:
        if len(value) >= CHARS_MIN:
            _known.setdefault(value, MASK)
    _compile()


def remember_references(references: Mapping[str, str]) -> None:
    """Adds what references lead to, with the reference that is shown instead."""
    _known.update({value: text for value, text in references.items() if len(value) >= ALONE_CHARS_MIN})
    _compile()


def _compile() -> None:
    """All are looked for at once, longer ones first, since one may be part of another or of what is shown."""
    global _pattern
    ordered = sorted(_known, key=lambda value: (-len(value), value))
    for value in ordered[KNOWN_MAX:]:
        del _known[value]
    _pattern = re.compile("|".join(map(_form, ordered[:KNOWN_MAX]))) if _known else None


def _form(value: str) -> str:
    form = re.escape(value)
    return form if len(value) >= CHARS_MIN else rf"(?<!\w){form}(?!\w)"


def forget() -> None:
    """Forgets all; for tests, since a process that resolves secrets ends with its connector."""
    _known.clear()
    _compile()


def clean(text: str) -> str:
    """Returns the text without anything that this process has resolved."""
    return text if _pattern is None else _pattern.sub(lambda found: _known.get(found[0], MASK), text)


def clean_all(content: Any) -> Any:
    """Returns a JSON value with its texts cleaned."""
    if _pattern is None:
        return content
    if isinstance(content, str):
        return clean(content)
    if isinstance(content, dict):
        return {name: clean_all(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [clean_all(value) for value in content]
    return content
