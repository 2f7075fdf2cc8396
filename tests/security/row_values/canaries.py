"""Values of rows that are made for one place each, and found again in every form in which a text may hold them."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

COLUMNS = "v text, n numeric, b bytea, j jsonb, d date, at timestamp"
"""Of every table with canaries, besides its key."""
ESCAPED = re.compile(r'\\(["\\])')
"""What JSON writes into a text for a backslash and a quotation mark."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    """A value of each kind, in the order of `COLUMNS`."""

    text: str
    number: int
    raw: bytes
    document: str
    day: date
    moment: datetime

    def values(self, **others: object) -> tuple[object, ...]:
        """Returns the values in their order, with others in the place of some."""
        return tuple(others.get(name, value) for name, value in vars(self).items())


class Canaries:
    """What was made, and how it is found."""

    def __init__(self) -> None:
        self._forms: dict[str, dict[str, str]] = {}

    def row(self, place: str, raw: bytes | None = None) -> Row:
        """Returns values that are nowhere else. `place` says in which failure they are, `raw` which bytes are to be among
        them."""
        day = date(3000 + secrets.randbelow(6000), 1 + secrets.randbelow(12), 1 + secrets.randbelow(28))
        moment = datetime(2300, 1, 1) + timedelta(microseconds=secrets.randbelow(10**16))
        document = json.dumps({"k": self.text(f"{place}, json")})
        row = Row(
            self.text(f"{place}, text"),
            10**15 + secrets.randbelow(10**15),
            raw or secrets.token_bytes(12),
            document,
            day,
            moment,
        )
        self._add(f"{place}, number", dict(number_forms(row.number)))
        self._add(f"{place}, bytes", dict(bytes_forms(row.raw)))
        self._add(f"{place}, date", {"ISO 8601": day.isoformat()})
        self._add(f"{place}, timestamp", dict(moment_forms(moment)))
        return row

    def text(self, place: str) -> str:
        """Returns a text that is nowhere else."""
        made = f"canary{secrets.token_hex(8)}"
        self._add(place, {"text": made, **dict(bytes_forms(made.encode()))})
        return made

    def _add(self, place: str, forms: dict[str, str]) -> None:
        assert place not in self._forms
        self._forms[place] = forms

    def found(self, told: str) -> list[str]:
        """Returns the values, each with its form, that are in a text, also in a text of JSON in it."""
        texts = (told, unescaped) if (unescaped := ESCAPED.sub(r"\1", told)) != told else (told,)
        return [
            f"{place} as {form}"
            for place, forms in self._forms.items()
            for form, text in forms.items()
            if any(text in one and is_whole(text, one) for one in texts)
        ]


def is_whole(text: str, told: str) -> bool:
    """Returns whether a number stands alone, and is not a part of a longer one."""
    return not text.isdecimal() or re.search(rf"(?<!\d){text}(?!\d)", told) is not None


def number_forms(number: int) -> Iterator[tuple[str, str]]:
    yield "digits", str(number)
    yield "scientific", f"{number:E}".rstrip("0")
    yield from base64_forms(number.to_bytes(number.bit_length() // 8 + 1, "big"))


def moment_forms(moment: datetime) -> Iterator[tuple[str, str]]:
    micros = (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    yield "time", moment.time().isoformat()
    yield "day", moment.date().isoformat()
    yield "microseconds", str(micros)
    yield "milliseconds", str(micros // 1000)


def bytes_forms(raw: bytes) -> Iterator[tuple[str, str]]:
    yield "hexadecimal", raw.hex()
    yield "upper hexadecimal", raw.hex().upper()
    yield "Python's bytes", repr(raw)[2:-1]
    yield "escapes", raw.decode("utf-8", "backslashreplace")
    yield "Latin-1 in JSON", json.dumps(raw.decode("latin-1"))[1:-1]
    yield "numbers", ", ".join(map(str, raw))
    yield from base64_forms(raw)


def base64_forms(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yields what stays the same of the bytes' base64 wherever among others they stand."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw + bytes(2)).decode()
        kept = encoded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        yield f"base64 behind {before}", kept
        yield f"base64 behind {before} for URLs", kept.replace("+", "-").replace("/", "_")
