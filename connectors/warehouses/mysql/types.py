"""Which MySQL type a column of a change has in the target, and whether an existing column can take it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cdcworker.connectors.warehouses.source_types import TargetColumn, parse_type

TEXT: Final = "longtext"
BYTES: Final = "longblob"
BOOLEAN: Final = "tinyint(1)"
JSON: Final = "json"
UUID: Final = "char(36)"
DIGITS_MAX: Final = 65
SCALE_MAX: Final = 30
CHARS_MAX: Final = 255
"""A longer text is stored beside its row."""
ROW_BYTES_MAX: Final = 40_000
"""Of the 65,535 bytes that a row may have without its long texts; columns are added later."""
KEY_BYTES_MAX: Final = 3072
KEY_COLUMNS_MAX: Final = 16
"""What an index holds."""

_OF_KIND: Final[Mapping[str, str]] = {
    "bytes": BYTES,
    "date": "date",
    "time": "time(6)",
    "timestamp": "datetime(6)",
    "duration": "bigint",
    "json": JSON,
    "array": JSON,
}
_OF_BASE: Final[Mapping[str, str]] = {
    "boolean": BOOLEAN,
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "double",
    "double precision": "double",
    "uuid": UUID,
    "json": JSON,
    "jsonb": JSON,
}
_OF_AVRO: Final[Mapping[str, str]] = {
    "boolean": BOOLEAN,
    "int": "int",
    "long": "bigint",
    "float": "double",
    "double": "double",
}
_INTEGERS: Final = {"smallint": 5, "mediumint": 7, "int": 10, "bigint": 19}
_TEXTS: Final = ("tinytext", "text", "mediumtext", TEXT)
_BLOBS: Final = ("tinyblob", "blob", "mediumblob", BYTES)
_TYPE: Final = re.compile(r"([a-z ]+?)(?:\((\d+)(?:,(\d+))?\))?( unsigned)?( zerofill)?")
_FIXED: Final = {
    "tinyint": 1,
    "smallint": 2,
    "mediumint": 3,
    "int": 4,
    "bigint": 8,
    "double": 8,
    "float": 4,
    "date": 3,
    "time": 6,
    "datetime": 8,
    "timestamp": 7,
}


class Type(NamedTuple):
    """A type as the server's catalog prints it, taken apart."""

    base: str
    args: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.base}({','.join(map(str, self.args))})" if self.args else self.base


def parsed(text: str) -> Type | None:
    """Returns a type taken apart, without the width in which some servers show numbers; None for what has other parts, such as
    the members of an enum."""
    found = _TYPE.fullmatch(text.strip().lower())
    if found is None:
        return None
    base, first, second, unsigned, _ = found.groups()
    args = tuple(int(arg) for arg in (first, second) if arg is not None)
    whole = base.strip() + (unsigned or "")
    if base in _INTEGERS or (base == "tinyint" and args != (1,)):
        args = ()
    return Type(whole, args)


def normal(text: str) -> str:
    """Returns a type as it is compared."""
    found = parsed(text)
    return text if found is None else str(found)


def type_of(column: TargetColumn, in_key: bool = False) -> str:
    """Returns the type that a column gets. What would lose something in any other is text."""
    found = parse_type(column.type)
    if column.kind == "decimal":
        return _decimal(found.args if found else ()) or TEXT
    if column.kind == "iso":
        return "date" if column.type == "date" else "datetime(6)" if column.type.startswith("timestamp") else TEXT
    if column.kind == "plain":
        return _plain(column, in_key)
    made = _OF_KIND.get(column.kind, TEXT)
    return TEXT if in_key and made == JSON else made


def _decimal(args: Sequence[int]) -> str | None:
    precision, scale = (*args, 0, 0)[:2] if args else (0, 0)
    fits = 0 < precision <= DIGITS_MAX and 0 <= scale <= min(precision, SCALE_MAX)
    return f"decimal({precision},{scale})" if fits else None


def _plain(column: TargetColumn, in_key: bool) -> str:
    found, avro = (
        parse_type(column.type),
        str(column.avro.get("type") if isinstance(column.avro, dict) else column.avro),
    )
    other = _OF_AVRO.get(avro, TEXT)
    if found is None or found.array:
        return other
    if found.base in ("character varying", "character") and found.args and found.args[0] <= CHARS_MAX:
        return f"varchar({found.args[0]})"
    if found.base == "numeric":
        return _decimal(found.args) or other
    made = _OF_BASE.get(found.base, other)
    return TEXT if in_key and made == JSON else made


def fitting(types: Mapping[str, str], key: Sequence[str], room: int = ROW_BYTES_MAX) -> dict[str, str]:
    """Returns the types of a table with the longest of its texts beside their rows, where all of them would not fit into one;
    those of a key that an index holds stay."""
    out = dict(types)
    longest = sorted((name for name in types if name not in key), key=lambda name: -row_bytes(types[name]))
    for name in longest:
        if sum(map(row_bytes, out.values())) <= room:
            break
        if out[name].startswith("varchar("):
            out[name] = TEXT
    return out


def row_bytes(text: str) -> int:
    """Returns how many bytes of a row a column takes at most."""
    found = parsed(text)
    if found is None or found.base in (*_TEXTS, *_BLOBS, JSON):
        return 12
    if found.base in ("varchar", "char"):
        return 4 * found.args[0] + 2
    if found.base in ("varbinary", "binary"):
        return found.args[0] + 2
    return (
        found.args[0] // 2 + 2
        if found.base.startswith("decimal")
        else _FIXED.get(found.base.removesuffix(" unsigned"), 12)
    )


def fits_index(types: Sequence[str]) -> bool:
    """Returns whether an index holds columns of these types whole."""
    found = [parsed(text) for text in types]
    if len(types) > KEY_COLUMNS_MAX or any(part is None or part.base in (*_TEXTS, *_BLOBS, JSON) for part in found):
        return False
    return sum(map(row_bytes, types)) <= KEY_BYTES_MAX


def is_text(text: str) -> bool:
    """Returns whether a column of the type has a character set."""
    found = parsed(text)
    return found is None or found.base in (*_TEXTS, "varchar", "char", JSON)


def is_bytes(text: str) -> bool:
    found = parsed(text)
    return found is not None and found.base in (*_BLOBS, "varbinary", "binary")


# -- changing an existing column ----------------------------------------------------------------------------------------


def widened(existing: str, wanted: str) -> str | None:
    """The type an existing column needs to hold values of type `wanted` besides its own: `existing` if it does already. None:
    no type holds both without losing something."""
    have, want = parsed(existing), parsed(wanted)
    if normal(existing) == normal(wanted) or (have is not None and have.base == TEXT and wanted != BYTES):
        return existing
    if have is None or want is None:
        return TEXT if wanted == TEXT else None
    if wanted == TEXT:
        return TEXT if not is_bytes(existing) and have.base != "bit" else None
    if have.base in (*_INTEGERS, "decimal") and want.base in (*_INTEGERS, "decimal"):
        return _number(have, want, existing)
    return _other(have, want, existing, wanted)


def _other(have: Type, want: Type, existing: str, wanted: str) -> str | None:
    pair = (have.base, want.base)
    if pair in (("double", "int"), ("double", "smallint"), ("datetime", "date"), (JSON, JSON)):
        return existing
    if pair in (("int", "double"), ("smallint", "double"), ("float", "double"), ("date", "datetime")):
        return wanted
    if have.base == "char" and want.base == "varchar":
        # It keeps no blanks at the end, and where the sink made it no letters beyond ASCII.
        return f"varchar({max(have.args[0], want.args[0])})"
    if have.base in ("varchar", "char") and want.base in ("varchar", "char"):
        return existing if have.args >= want.args else f"varchar({want.args[0]})"
    if have.base in _TEXTS and want.base in ("varchar", "char", JSON):
        return existing if have.base == "mediumtext" else TEXT
    if have.base in (*_BLOBS, "varbinary", "binary") and wanted == BYTES:
        return wanted
    if have.base == want.base and have.base in ("time", "datetime"):
        return existing if have.args >= want.args else wanted
    return None


def _number(have: Type, want: Type, existing: str) -> str | None:
    if have.base in _INTEGERS and want.base in _INTEGERS:
        return existing if _INTEGERS[have.base] >= _INTEGERS[want.base] else want.base
    digits = []
    for part in (have, want):
        precision, scale = (*part.args, 0)[:2] if part.args else (_INTEGERS.get(part.base, 10), 0)
        digits.append((precision - scale, scale))
    whole, scale = max(d[0] for d in digits), max(d[1] for d in digits)
    if have.base == "decimal" and digits[0] == (whole, scale):
        return existing
    return _decimal((whole + scale, scale)) or TEXT
