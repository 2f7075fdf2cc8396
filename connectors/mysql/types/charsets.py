"""Character sets: which one a collation has, and how its bytes become text."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.errors import UndecodableError, UnknownTypeError
from cdcworker.connectors.mysql.types.charset_tables import IBM_EXTENSIONS, UNDEFINED, UPPER_HALVES

Decode = Callable[[bytes], str]

BINARY: Final = 63
"""The collation of binary strings."""
NO_PAD: Final = 1024
"""What MariaDB adds to a collation's id for the one that does not pad."""
_UCA_1400: Final = 2048
"""Where MariaDB's collations of Unicode 14 begin, 256 for each of these character sets."""
_UCA_1400_SETS: Final = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
_IDS: Final = {
    "armscii8": "32 64",
    "ascii": "11 65",
    "big5": "1 84",
    "binary": "63",
    "cp1250": "26 34 44 66 99",
    "cp1251": "14 23 50-52",
    "cp1256": "57 67",
    "cp1257": "29 58-59",
    "cp850": "4 80",
    "cp852": "40 81",
    "cp866": "36 68",
    "cp932": "95-96",
    "dec8": "3 69",
    "eucjpms": "97-98",
    "euckr": "19 85",
    "gb18030": "248-250",
    "gb2312": "24 86",
    "gbk": "28 87",
    "geostd8": "92-93",
    "greek": "25 70",
    "hebrew": "16 71",
    "hp8": "6 72",
    "keybcs2": "37 73",
    "koi8r": "7 74",
    "koi8u": "22 75",
    "latin1": "5 8 15 31 47-49 94",
    "latin2": "2 9 21 27 77",
    "latin5": "30 78",
    "latin7": "20 41-42 79",
    "macce": "38 43",
    "macroman": "39 53",
    "sjis": "13 88",
    "swe7": "10 82",
    "tis620": "18 89",
    "ucs2": "35 90 128-151 159 640-642",
    "ujis": "12 91",
    "utf16": "54-55 101-124 672-674",
    "utf16le": "56 62",
    "utf32": "60-61 160-183 736-738",
    "utf8mb3": "33 76 83 192-215 223 576-578",
    "utf8mb4": "45-46 224-247 255-323 608-610",
}
"""By character set the ids of its collations, of both servers."""
_CODECS: Final = {
    "ascii": "ascii",
    "big5": "big5",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "sjis": "shift_jis",
    "swe7": "ascii",
    "tis620": "tis_620",
    "ucs2": "utf_16_be",
    "ujis": "euc_jp",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
    "utf8mb3": "utf_8",
    "utf8mb4": "utf_8",
}
"""By character set the Python codec that it is, but for what stands below."""
_OTHER_BYTES: Final = {
    "cp866": {0xFC: "ⁿ", 0xFD: "²"},
    "greek": {0xA1: "\u02bd", 0xA2: "\u02bc"},
    "hebrew": {0xAF: "\u203e"},
    "koi8u": {0x95: "\u2022"},
    "latin1": {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "swe7": dict(zip(b"@[\\]^`{|}~", "ÉÄÖÅÜéäöåü", strict=True)),
}
"""Bytes of single-byte sets that are other characters than in Python's codec."""
_OTHER_TEXT: Final = {"sjis": {0xFF3C: "\\"}, "ujis": {0xFF3C: "\\"}}
"""Characters of multi-byte sets that the server takes for others than Python's codec."""
_BIG5_MORE: Final = dict(zip(range(0xF9D6, 0xF9DD), "碁銹裏墻恒粧嫺", strict=True))
_UNITS: Final = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}


class Charset(NamedTuple):
    """A character set. `decode` raises UndecodableError; `unit` is the number of bytes that a character has at least."""

    name: str
    decode: Decode
    unit: int = 1


def name_of(collation: int) -> str:
    """Returns the character set of a collation. Raises UnknownTypeError."""
    if collation >= _UCA_1400:
        number = (collation - _UCA_1400) >> 8
        if number < len(_UCA_1400_SETS):
            return _UCA_1400_SETS[number]
    else:
        found = _by_id().get(collation - NO_PAD if collation >= NO_PAD else collation)
        if found:
            return found
    raise UnknownTypeError(f"collation {collation}")


@lru_cache(256)
def charset_of(collation: int) -> Charset:
    """Returns the character set of a collation. Raises UnknownTypeError."""
    name = name_of(collation)
    return Charset(name, _decoder(name), _UNITS.get(name, 1))


@cache
def _by_id() -> dict[int, str]:
    found = {}
    for name, ranges in _IDS.items():
        for part in ranges.split():
            first, _, last = part.partition("-")
            found.update(dict.fromkeys(range(int(first), int(last or first) + 1), name))
    return found


@cache
def _decoder(name: str) -> Decode:
    if name == "eucjpms":
        return _eucjpms
    if name in UPPER_HALVES or name in _OTHER_BYTES:
        return _by_table(_table(name))
    codec, other = _CODECS[name], _OTHER_TEXT.get(name)
    more = {"big5": _big5_more, "ujis": _ujis_more}.get(name)

    def decode(data: bytes) -> str:
        try:
            text = data.decode(codec)
        except UnicodeDecodeError:
            if more is None:
                raise UndecodableError(f"text is not in the character set {name}") from None
            text = _piecewise(data, codec, more)
        return text.translate(other) if other else text

    return decode


def _by_table(table: str) -> Decode:
    def decode(data: bytes) -> str:
        try:
            return codecs.charmap_decode(data, "strict", table)[0]
        except UnicodeDecodeError:
            raise UndecodableError("text has a byte that is no character of its set") from None

    return decode


def _table(name: str) -> str:
    """Returns the 256 characters of a single-byte set."""
    if name in UPPER_HALVES:
        return "".join(map(chr, range(128))) + UPPER_HALVES[name]
    characters = [bytes([byte]).decode(_CODECS[name], "replace").replace("\ufffd", UNDEFINED) for byte in range(256)]
    for byte, character in _OTHER_BYTES[name].items():
        characters[byte] = character
    return "".join(characters)


def _piecewise(data: bytes, codec: str, more: Callable[[bytes], tuple[str, int] | None]) -> str:
    """Decodes what a codec knows, and between it the characters that `more` knows."""
    out = []
    while data:
        try:
            out.append(data.decode(codec))
            break
        except UnicodeDecodeError as exc:
            found = more(data[exc.start : exc.start + 3])
            if found is None:
                raise UndecodableError(f"text is not in the character set like {codec}") from None
            character, size = found
            out += (data[: exc.start].decode(codec), character)
            data = data[exc.start + size :]
    return "".join(out)


def _big5_more(data: bytes) -> tuple[str, int] | None:
    character = _BIG5_MORE.get(int.from_bytes(data[:2], "big"))
    return (character, 2) if character else None


def _ujis_more(data: bytes) -> tuple[str, int] | None:
    """Returns the characters that users define: ten rows of two bytes, and ten of three."""
    size, first = (3, 0xE3AC) if data[:1] == b"\x8f" else (2, 0xE000)
    if len(data) < size:
        return None
    row, cell = data[size - 2] - 0xF5, data[size - 1] - 0xA1
    return (chr(first + row * 94 + cell), size) if 0 <= row < 10 and 0 <= cell < 94 else None


def _eucjpms(data: bytes) -> str:
    """Decodes Microsoft's form of EUC-JP, character by character: ASCII, 8E and a byte, 8F and two bytes, or two bytes."""
    if data.isascii():
        return data.decode()
    out, at, table = [], 0, _eucjpms_table()
    while at < len(data):
        first = data[at]
        size = 1 if first < 0x80 else 3 if first == 0x8F else 2
        character = table.get(data[at : at + size])
        if character is None:
            raise UndecodableError("text is not in the character set eucjpms")
        out.append(character)
        at += size
    return "".join(out)


@cache
def _eucjpms_table() -> dict[bytes, str]:
    """Rows of two bytes are those of cp932 in other places, rows of three bytes those of EUC-JP and IBM's extensions."""
    table = {bytes([byte]): chr(byte) for byte in range(0x80)}
    table.update({bytes([0x8E, byte]): chr(0xFF61 + byte - 0xA1) for byte in range(0xA1, 0xE0)})
    cells = [(row, cell) for row in range(0xA1, 0xFF) for cell in range(0xA1, 0xFF)]
    for row, cell in cells:
        two, three = bytes([row, cell]), bytes([0x8F, row, cell])
        if row >= 0xF5:
            for code in (two, three):
                table[code] = (_ujis_more(code) or ("", 0))[0]
            continue
        for code, text, codec in ((two, _shifted(row - 0xA1, cell - 0xA1), "cp932"), (three, three, "euc_jp")):
            character = text.decode(codec, "ignore")
            if len(character) == 1:
                table[code] = character
    table.update({b"\x8f\xa2\xb7": "\uff5e", b"\x8f\xa2\xc3": "\uffe4"})
    places = [(0xF3, cell) for cell in range(0xF3, 0xFF)] + [(0xF4, cell) for cell in range(0xA1, 0xFF)]
    table.update({bytes([0x8F, *place]): character for place, character in zip(places, IBM_EXTENSIONS, strict=True)})
    return table


def _shifted(row: int, cell: int) -> bytes:
    """Returns the two bytes of Shift JIS for a row and a cell from zero."""
    high = (row >> 1) + (0x81 if row < 62 else 0xC1)
    low = cell + 0x9F if row & 1 else cell + (0x40 if cell < 63 else 0x41)
    return bytes([high, low])
