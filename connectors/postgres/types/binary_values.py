"""PostgreSQL's binary forms (typsend) as the text forms of `SESSION_OPTIONS`, byte by byte: one reader of values serves both.

The reference is the server's own output functions. A type without an entry has no form here: None, never a guess.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import inf, isfinite, nextafter
from typing import Final
from uuid import UUID

from cdcworker.connectors.postgres.types import binary_times
from cdcworker.connectors.postgres.types.mapping import PgType

Form = Callable[[bytes], bytes]
"""A value's binary form as its text form. ValueError, IndexError or struct.error for bytes that are none."""

INET6: Final = 3
DOUBLE_DIGITS: Final = 17
FLOAT_DIGITS: Final = 9
"""So many always suffice."""
_NUMERIC_HEAD: Final = struct.Struct(">HhHH")
_SPECIAL: Final = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}
_SPACE: Final = frozenset(b" \t\n\v\f\r")


def _same(value: bytes) -> bytes:
    return value


def _integer(size: int, *, signed: bool) -> Form:
    def form(value: bytes) -> bytes:
        if len(value) != size:
            raise ValueError("an integer of another size")
        return b"%d" % int.from_bytes(value, "big", signed=signed)

    return form


def _boolean(value: bytes) -> bytes:
    return b"t" if value[0] else b"f"


def _char(value: bytes) -> bytes:
    """Above ASCII its text is another one from PostgreSQL 16 on."""
    if len(value) != 1 or value[0] > 127:
        raise ValueError("not one ASCII character")
    return value if value[0] else b""


def _versioned(value: bytes) -> bytes:
    """jsonb, jsonpath, ltree: text behind a version."""
    if value[0] != 1:
        raise ValueError("an unknown version")
    return value[1:]


# -- numbers ----------------------------------------------------------------------------------------------------------


def _float_text(number: float, scientific: str, fixed_below: int) -> bytes:
    """Writes a number as the server writes its shortest digits: fixed from 1e-4 up to `fixed_below` digits."""
    mantissa, _, power = scientific.partition("e")
    sign, mantissa = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
    digits, exponent = mantissa.replace(".", "").rstrip("0") or "0", int(power)
    if number == 0:
        return f"{sign}0".encode()
    if not -4 <= exponent < fixed_below:
        point = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{point}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}".encode()
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}".encode()
    whole, rest = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{whole}{'.' if rest else ''}{rest}".encode()


def _special_float(number: float) -> bytes | None:
    if number != number:
        return b"NaN"
    return {float("inf"): b"Infinity", float("-inf"): b"-Infinity"}.get(number)


def _shortest(number: float, below: float, above: float, sizes: range) -> str:
    """The fewest digits strictly between the middles towards the neighbours: the server takes no middle itself, as
    Python's repr does."""
    exact = Fraction(number)
    # Beyond the largest number there is infinity: as far away as the neighbour on the other side.
    under, over = (
        Fraction(one) if isfinite(one) else 2 * exact - Fraction(other)
        for one, other in ((below, above), (above, below))
    )
    low, high = (under + exact) / 2, (exact + over) / 2
    for size in sizes:
        nearest = f"{number:.{size - 1}e}"
        # Around a power of two one side is wider: what is nearest may be outside, and the next one on the other side in.
        found = [nearest] if exact - low == high - exact else [nearest, *_beside(nearest)]
        inside = [text for text in found if low < Fraction(text) < high]
        if inside:
            return min(inside, key=lambda text: abs(Fraction(text) - exact))
    raise ValueError("not a number of this width")


def _beside(scientific: str) -> Iterator[str]:
    """A number one less and one more in its last digit."""
    mantissa, _, power = scientific.partition("e")
    sign, digits = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
    digits = digits.replace(".", "")
    for step in (-1, 1):
        moved = str(int(digits) + step)
        yield f"{sign}{moved[0]}.{moved[1:]}e{int(power) + len(moved) - len(digits)}"


def float8(value: bytes) -> bytes:
    (number,) = struct.unpack(">d", value)
    special = _special_float(number)
    if special:
        return special
    least = len(repr(number).partition("e")[0].replace("-", "").replace(".", "").strip("0")) or 1
    sizes = range(least, DOUBLE_DIGITS + 1)
    return _float_text(number, _shortest(number, nextafter(number, -inf), nextafter(number, inf), sizes), 15)


def float4(value: bytes) -> bytes:
    (number,) = struct.unpack(">f", value)
    special = _special_float(number)
    if special:
        return special
    if number == 0:
        return b"-0" if value[0] else b"0"
    bits = int.from_bytes(value, "big")
    below, above = (struct.unpack(">f", (bits + step).to_bytes(4, "big"))[0] for step in (-1, 1))
    text = _shortest(number, min(below, above), max(below, above), range(1, FLOAT_DIGITS + 1))
    return _float_text(number, text, 6)


def numeric(value: bytes) -> bytes:
    count, weight, sign, scale = _NUMERIC_HEAD.unpack_from(value)
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    digits = struct.unpack_from(f">{count}h", value, 8)
    if len(value) != 8 + 2 * count:
        raise ValueError("numeric: bytes left over or missing")
    text = "".join(f"{digit:04d}" for digit in digits)
    # `text` begins with the digits of 10000 ** weight.
    point = 4 * (weight + 1)
    whole = text[: max(point, 0)].ljust(max(point, 0), "0").lstrip("0") or "0"
    rest = ("0" * -min(point, 0) + text[max(point, 0) :])[:scale].ljust(scale, "0")
    return f"{'-' if sign == 0x4000 else ''}{whole}{'.' if scale else ''}{rest}".encode()


def _money(value: bytes) -> bytes:
    """Writes an amount as the server does with lc_monetary=C."""
    (cents,) = struct.unpack(">q", value)
    return f"{'-' if cents < 0 else ''}${abs(cents) // 100:,}.{abs(cents) % 100:02d}".encode()


def _bits(value: bytes) -> bytes:
    (size,) = struct.unpack_from(">i", value)
    return bin(int.from_bytes(b"\1" + value[4:], "big"))[3 : 3 + size].encode()


def bytea(value: bytes) -> bytes:
    return b"\\x" + value.hex().encode()


# -- addresses and the like -------------------------------------------------------------------------------------------


def _uuid(value: bytes) -> bytes:
    return str(UUID(bytes=value)).encode()


def _inet(value: bytes) -> bytes:
    family, size, is_cidr, count = value[:4]
    if len(value) != 4 + count:
        raise ValueError("inet: bytes left over or missing")
    text = socket.inet_ntop(socket.AF_INET6 if family == INET6 else socket.AF_INET, value[4:])
    return (text if size == 8 * count and not is_cidr else f"{text}/{size}").encode()


def _mac(value: bytes) -> bytes:
    return value.hex(":").encode()


def _lsn(value: bytes) -> bytes:
    high, low = struct.unpack(">II", value)
    return f"{high:X}/{low:X}".encode()


def _tsvector(value: bytes) -> bytes:
    (count,) = struct.unpack_from(">i", value)
    p, out = 4, []
    for _ in range(count):
        end = value.index(0, p)
        lexeme = value[p:end].replace(b"\\", b"\\\\").replace(b"'", b"''")
        (places,) = struct.unpack_from(">H", value, end + 1)
        found = struct.unpack_from(f">{places}H", value, end + 3)
        shown = ",".join(f"{place & 0x3FFF}{('', 'C', 'B', 'A')[place >> 14]}" for place in found)
        out.append(b"'%s'%s" % (lexeme, f":{shown}".encode() if places else b""))
        p = end + 3 + 2 * places
    return b" ".join(out)


def _hstore(value: bytes) -> bytes:
    p, out = 4, []
    for _ in range(struct.unpack_from(">i", value)[0]):
        key, p = _piece(value, p)
        item, p = _piece(value, p)
        out.append(b'"%s"=>%s' % (_escaped(key or b""), b"NULL" if item is None else b'"%s"' % _escaped(item)))
    return b", ".join(out)


def _escaped(value: bytes) -> bytes:
    return value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


# -- shapes -----------------------------------------------------------------------------------------------------------


def _points(value: bytes, p: int, count: int) -> list[bytes]:
    if len(value) != p + 16 * count:
        raise ValueError("points: bytes left over or missing")
    return [b"(%s,%s)" % (float8(value[i : i + 8]), float8(value[i + 8 : i + 16])) for i in range(p, len(value), 16)]


def _lseg(value: bytes) -> bytes:
    return b"[%s,%s]" % tuple(_points(value, 0, 2))


def _path(value: bytes) -> bytes:
    found = b",".join(_points(value, 5, struct.unpack_from(">i", value, 1)[0]))
    return b"(%s)" % found if value[0] else b"[%s]" % found


def _polygon(value: bytes) -> bytes:
    return b"(%s)" % b",".join(_points(value, 4, struct.unpack_from(">i", value)[0]))


def _circle(value: bytes) -> bytes:
    return b"<%s,%s>" % (_points(value[:16], 0, 1)[0], float8(value[16:]))


def _line(value: bytes) -> bytes:
    return b"{%s,%s,%s}" % tuple(float8(value[i : i + 8]) for i in (0, 8, 16))


# -- what holds other values ------------------------------------------------------------------------------------------


def _piece(value: bytes, p: int) -> tuple[bytes | None, int]:
    """A value behind its length, None for -1, and where it ends."""
    (size,) = struct.unpack_from(">i", value, p)
    if size < 0:
        return None, p + 4
    if p + 4 + size > len(value):
        raise ValueError("cut short")
    return value[p + 4 : p + 4 + size], p + 4 + size


def array(item: Form, delimiter: bytes) -> Form:
    special = frozenset(b'"\\{}') | _SPACE | frozenset(delimiter)

    def element(value: bytes | None) -> bytes:
        if value is None:
            return b"NULL"
        text = item(value)
        if not text or text.upper() == b"NULL" or not special.isdisjoint(text):
            return b'"%s"' % _escaped(text)
        return text

    def form(value: bytes) -> bytes:
        (dims,) = struct.unpack_from(">i", value)
        bounds = [struct.unpack_from(">ii", value, 12 + 8 * i) for i in range(dims)]
        p, parts = 12 + 8 * dims, []
        while p < len(value):
            piece, p = _piece(value, p)
            parts.append(element(piece))
        for size, _ in reversed(bounds):
            parts = [b"{%s}" % delimiter.join(parts[i : i + size]) for i in range(0, len(parts), size)]
        if len(parts) > 1:
            raise ValueError("array: elements left over")
        shape = "".join(f"[{low}:{low + size - 1}]" for size, low in bounds) + "="
        return (shape.encode() if any(low != 1 for _, low in bounds) else b"") + (parts[0] if parts else b"{}")

    return form


def _doubled(text: bytes, special: frozenset[int]) -> bytes:
    if text and special.isdisjoint(text):
        return text
    return b'"%s"' % text.replace(b"\\", b"\\\\").replace(b'"', b'""')


def composite(forms: Mapping[int, Form]) -> Form:
    special = frozenset(b'"\\(),') | _SPACE

    def form(value: bytes) -> bytes:
        p, parts = 4, []
        for _ in range(struct.unpack_from(">i", value)[0]):
            (oid,) = struct.unpack_from(">I", value, p)
            piece, p = _piece(value, p + 4)
            parts.append(b"" if piece is None else _doubled(forms[oid](piece), special))
        return b"(%s)" % b",".join(parts)

    return form


_EMPTY, _LOWER_IN, _UPPER_IN, _LOWER_FREE, _UPPER_FREE = 1, 2, 4, 8, 16


def range_of(item: Form) -> Form:
    special = frozenset(b'"\\()[],') | _SPACE

    def form(value: bytes) -> bytes:
        flags, p, bounds = value[0], 1, [b"", b""]
        if flags & _EMPTY:
            return b"empty"
        for i, free in enumerate((_LOWER_FREE, _UPPER_FREE)):
            if not flags & free:
                piece, p = _piece(value, p)
                bounds[i] = _doubled(item(piece or b""), special)
        return b"%s%s,%s%s" % (b"[" if flags & _LOWER_IN else b"(", *bounds, b"]" if flags & _UPPER_IN else b")")

    return form


def _multirange(item: Form) -> Form:
    one = range_of(item)

    def form(value: bytes) -> bytes:
        p, parts = 4, []
        for _ in range(struct.unpack_from(">i", value)[0]):
            piece, p = _piece(value, p)
            parts.append(one(piece or b""))
        return b"{%s}" % b",".join(parts)

    return form


# -- which ------------------------------------------------------------------------------------------------------------

_FORMS: Final[dict[str, Form]] = {
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "json", "xml", "citext", "refcursor"), _same),
    **dict.fromkeys(("jsonb", "jsonpath", "ltree"), _versioned),
    "bool": _boolean, "char": _char, "bytea": bytea, "uuid": _uuid, "hstore": _hstore, "tsvector": _tsvector,
    "int2": _integer(2, signed=True), "int4": _integer(4, signed=True), "int8": _integer(8, signed=True),
    **dict.fromkeys(("oid", "xid", "cid"), _integer(4, signed=False)), "xid8": _integer(8, signed=False),
    "float4": float4, "float8": float8, "numeric": numeric, "money": _money, "bit": _bits, "varbit": _bits,
    "date": binary_times.date, "time": binary_times.time, "timetz": binary_times.timetz, "timestamp": binary_times.timestamp, "timestamptz": binary_times.timestamptz,
    "interval": binary_times.interval, "inet": _inet, "cidr": _inet, "macaddr": _mac, "macaddr8": _mac, "pg_lsn": _lsn,
    "point": lambda value: _points(value, 0, 1)[0], "box": lambda value: b",".join(_points(value, 0, 2)),
    "lseg": _lseg, "path": _path, "polygon": _polygon, "circle": _circle, "line": _line,
}  # fmt: skip
_RANGES: Final = {
    "int4range": "int4", "int8range": "int8", "numrange": "numeric", "tsrange": "timestamp", "tstzrange": "timestamptz",
    "daterange": "date",
}  # fmt: skip


def form_of(oid: int, known: Mapping[int, PgType]) -> Form | None:
    """None for a type that has none here."""
    pg = known.get(oid)
    if pg is None:
        return None
    if pg.kind == "e":
        return _same
    if pg.kind == "d":
        return form_of(pg.base, known)
    if pg.kind == "c":
        forms = {inner: form_of(inner, known) for _, inner, _ in pg.attributes}
        found = {inner: form for inner, form in forms.items() if form}
        return composite(found) if len(found) == len(forms) else None
    if pg.element:
        item = form_of(pg.element, known)
        return array(item, known[pg.element].delimiter.encode()) if item else None
    if pg.kind in ("r", "m"):
        item = _FORMS.get(_RANGES.get(pg.name.replace("multirange", "range"), ""))
        if item is None or pg.schema != "pg_catalog":
            return None
        return range_of(item) if pg.kind == "r" else _multirange(item)
    return _FORMS.get(pg.name)
