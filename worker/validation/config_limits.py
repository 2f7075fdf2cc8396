"""How large a connector's config may be: whatever a request brings is judged in a short time, and so is what was stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdcworker.schemas.errors import CdcError, declare

KEYS_MAX: Final = 1_000
NAME_CHARS_MAX: Final = 256
VALUE_CHARS_MAX: Final = 131_072
"""A list of 2,000 tables with long names takes half of it."""
CHARS_MAX: Final = 524_288
"""Characters of all names and values."""
SHOWN_CHARS: Final = 60

TOO_LARGE: Final = declare(
    "config.too_large",
    "config",
    "The connector's configuration is larger than a worker takes",
    f"A config has at most {KEYS_MAX} keys of {NAME_CHARS_MAX} characters, values of {VALUE_CHARS_MAX} characters, and"
    f" {CHARS_MAX} characters in all. Name many tables by a pattern, and long secrets by a reference to a file.",
)


def check_count(config: Mapping[str, object]) -> None:
    """CdcError `config.too_large` for a config of too many keys."""
    if len(config) > KEYS_MAX:
        raise _too_large(f"{len(config)} keys are more than {KEYS_MAX}", "")


def check_size(config: Mapping[str, str | None]) -> None:
    """CdcError `config.too_large` for a config that is larger than allowed. It costs a step for each key only."""
    check_count(config)
    total = 0
    for name, value in config.items():
        size = len(value or "")
        if len(name) > NAME_CHARS_MAX:
            raise _too_large(f"a key of {len(name)} characters is longer than {NAME_CHARS_MAX}", name)
        if size > VALUE_CHARS_MAX:
            raise _too_large(f"a value of {size} characters is longer than {VALUE_CHARS_MAX}", name)
        total += len(name) + size
    if total > CHARS_MAX:
        raise _too_large(f"{total} characters in all are more than {CHARS_MAX}", "")


def _too_large(message: str, name: str) -> CdcError:
    return CdcError(TOO_LARGE, message, where={"key": name[:SHOWN_CHARS]} if name else {})
