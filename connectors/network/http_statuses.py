"""What an answer's status means: taken, not now, never this record, or never anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

RETRIED: Final = "408,425,429,500-"
"""After these a request is sent again, unless the config says otherwise."""
_RANGE: Final = re.compile(r"([1-5][0-9]{2})(?:(-)([1-5][0-9]{2})?)?")
_LOGIN: Final = frozenset({401, 403, 407})
_ADDRESS: Final = frozenset({404, 405})


def ranges_problem(value: str) -> str | None:
    try:
        parse_ranges(value)
    except ValueError:
        return "expects statuses and ranges of them, such as 429,500-"
    return None


def parse_ranges(text: str) -> Sequence[range]:
    """Returns the statuses of a list such as `408,500-599,600-`. ValueError for anything else."""
    found = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError
        first = int(match[1])
        last = int(match[3]) if match[3] else 599 if match[2] else first
        found.append(range(first, last + 1))
    return found


@dataclass(frozen=True, slots=True)
class StatusRules:
    """`fixed`: every request goes to the same address."""

    retried: Sequence[range]
    fixed: bool = True

    def is_taken(self, status: int) -> bool:
        return 200 <= status < 300

    def is_retried(self, status: int) -> bool:
        return any(status in each for each in self.retried)

    def refuses_all(self, status: int) -> bool:
        """Whether the next record would be refused as well: a redirect, a login, an address that is wrong."""
        return status < 400 or status in _LOGIN or (self.fixed and status in _ADDRESS)


def retry_after_s(text: str | None, now: datetime | None = None) -> float | None:
    """Returns the seconds of a header Retry-After, which has a number or a date; None for anything else."""
    if not text:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text.strip()):
        return float(text.strip())
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())
