"""What a slot of test_decoding says was committed, in the words of `source_crashes`: PostgreSQL's own plugin and a reader of its text
that shares nothing with the source."""

from __future__ import annotations

import re

from tests.contract.source_crashes import MESSAGES, UNSENT, Told

_LINE = re.compile(r"table ([^:]+): (INSERT|UPDATE|DELETE|TRUNCATE): (.*)", re.DOTALL)
_FIELD = re.compile(r"(\w+)\[[^\]]+\]:('(?:[^']|'')*'|[^ ]+)")
_MESSAGE = re.compile(r"message: transactional: ([01]) prefix: (.*?), sz: \d+ content:(.*)", re.DOTALL)
_OWN_PREFIX = "cdcworker"


def read_test_decoding(xid: int, line: str) -> list[tuple[str, Told]]:
    """(table, change) of one line of the plugin's text; several for a changed key and for a truncate of several."""
    if message := _MESSAGE.fullmatch(line):
        told = (xid if message[1] == "1" else None, "m", message[2], message[3], None)
        return [] if message[2] == _OWN_PREFIX else [(MESSAGES, told)]
    found = _LINE.fullmatch(line)
    if found is None:
        assert line.startswith(("BEGIN", "COMMIT")), line
        return []
    tables, kind, rest = [name.rpartition(".")[2] for name in found[1].split(", ")], found[2], found[3]
    if kind == "TRUNCATE":
        return [(table, (xid, "t", None, None, None)) for table in tables]
    return [(tables[0], told) for told in _rows(xid, kind, rest)]


def _rows(xid: int, kind: str, text: str) -> list[Told]:
    old, _, new = text.rpartition("new-tuple: ")
    row = _fields(new)
    if kind == "DELETE":
        return [(xid, "d", int(row["id"]), None, None)]
    whole: Told = (xid, "c" if kind == "INSERT" else "u", int(row["id"]), row.get("v"), row.get("big"))
    was = int(_fields(old)["id"]) if old else whole[2]
    # The old key is there when it is another, or as a part of a whole old row.
    return [whole] if was == whole[2] else [(xid, "d", was, None, None), (xid, "c", *whole[2:])]


def _fields(text: str) -> dict[str, str | None]:
    return {name: _value(value) for name, value in _FIELD.findall(text)}


def _value(text: str) -> str | None:
    if text == "unchanged-toast-datum":
        return UNSENT
    return None if text == "null" else text.removeprefix("'").removesuffix("'").replace("''", "'")
