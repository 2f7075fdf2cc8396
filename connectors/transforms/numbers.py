"""Java's numbers: how they are narrowed, read from text and written as text."""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal
from typing import Any, Final

from cdcworker.connectors.transforms.data import ConnectSchema

BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_FLOAT: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?", re.ASCII)
_HEX: Final = re.compile(r"[+-]?0[xX][0-9a-fA-F]*(\.[0-9a-fA-F]*)?[pP][+-]?[0-9]{1,9}", re.ASCII)
EXPONENT_MAX: Final = 10_000
"""Numbers with more digits than these are no numbers of a record: each digit would be written out."""


def wrapped(number: int, bits: int) -> int:
    """Returns the low bits of a number as Java's narrowing keeps them."""
    half = 1 << (bits - 1)
    return (number + half) % (1 << bits) - half


def narrowed(number: float | Decimal | int, bits: int) -> int:
    """Returns a number as an integer of some bits. A float saturates at 32 bits, or at 64 of a long, and is cut from there;
    other numbers keep their low bits."""
    if not isinstance(number, float):
        return wrapped(int(number), bits)
    if math.isnan(number):
        return 0
    limit = 1 << (max(bits, 32) - 1)
    whole = (-limit if number < 0 else limit - 1) if math.isinf(number) else int(number)
    return wrapped(max(-limit, min(limit - 1, whole)), bits)


def parsed_integer(text: str, bits: int) -> int:
    """Returns the number that a text is. Raises ValueError for another text, or a number that does not fit."""
    if _INTEGER.fullmatch(text) is None:
        raise ValueError("no integer")
    number = int(text)
    if number != wrapped(number, bits):
        raise ValueError("out of range")
    return number


def parsed_float(text: str) -> float:
    """Returns the number that a text is by Java's `Double.parseDouble`. Raises ValueError."""
    text = text.strip()
    if text[text[:1] in ("+", "-") :] in ("NaN", "Infinity"):
        return float(text.replace("Infinity", "inf"))
    bare = text[:-1] if text[-1:] in tuple("fFdD") and not _HEX.fullmatch(text) else text
    if _HEX.fullmatch(bare):
        try:
            return float.fromhex(bare)
        except OverflowError:
            return -math.inf if bare.startswith("-") else math.inf
    if _FLOAT.fullmatch(bare) is None:
        raise ValueError("no number")
    return float(bare)


def parsed_decimal(text: str) -> Decimal:
    """Returns the number that a text is by Java's `BigDecimal`. Raises ValueError."""
    if _FLOAT.fullmatch(text) is None:
        raise ValueError("no number")
    found = Decimal(text)
    if abs(found.adjusted()) > EXPONENT_MAX or abs(scale_of(found)) > EXPONENT_MAX:
        raise ValueError("the number is too long")
    return found


def single(number: float) -> float:
    """Returns a number as a float of 32 bits holds it."""
    try:
        found: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return found


def scale_of(number: Decimal) -> int:
    """Returns the number of digits behind the point, as Java's `BigDecimal.scale`."""
    exponent = number.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


def unscaled(number: Decimal) -> int:
    """Returns the digits of a number without its point."""
    sign, digits, _ = number.as_tuple()
    whole = int("".join(map(str, digits)) or "0")
    return -whole if sign else whole


def decimal_bytes(number: Decimal, scale: int) -> bytes:
    """Returns the bytes of a Decimal of a scale. Raises ValueError where the number has more digits behind the point."""
    shift = scale - scale_of(number)
    if shift < 0:
        raise ValueError("the number has another scale")
    whole: int = unscaled(number) * 10**shift
    return whole.to_bytes(whole.bit_length() // 8 + 1, "big", signed=True)


def decimal_of(data: bytes | bytearray, schema: ConnectSchema) -> Decimal:
    """Returns the number that the bytes of a Decimal are."""
    scale = int((schema.parameters or {}).get("scale", "0"))
    whole = int.from_bytes(data, "big", signed=True)
    return Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -scale))


def float_text(number: float, *, is_single: bool = False) -> str:
    """Returns a number as Java's `Double.toString` writes it, or `Float.toString`: with an exponent below 0.001 and from ten
    millions on."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "-0.0" if math.copysign(1, number) < 0 else "0.0"
    if not is_single and 1e-3 <= abs(number) < 1e7:
        return repr(number)  # without an exponent in this range, as Java's is
    shown = _shortest_single(number) if is_single else repr(number)
    sign, digits, exponent = Decimal(shown).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)
    prefix = "-" if sign else ""
    if 1e-3 <= abs(number) < 1e7:
        whole = text[: max(point, 0)].ljust(max(point, 0), "0") or "0"
        rest = "0" * -min(point, 0) + text[max(point, 0) :]
        return f"{prefix}{whole}.{rest or '0'}"
    return f"{prefix}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _shortest_single(number: float) -> str:
    for digits in range(1, 10):
        shown = f"{number:.{digits}g}"
        if single(float(shown)) == number:
            return shown
    return repr(number)


def number_text(number: Any, *, is_single: bool = False) -> str:
    """Returns a number as Java's `toString` writes it."""
    return float_text(number, is_single=is_single) if isinstance(number, float) else str(number)
