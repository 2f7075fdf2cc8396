"""Character sets: their collations, and bytes of each. `test_values` asks a real server for most of them."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.errors import UndecodableError, UnknownTypeError
from cdcworker.connectors.mysql.types.charsets import charset_of, name_of
from pymysql import charset


def test_every_collation_that_a_client_knows_has_its_character_set() -> None:
    for number, known in charset._charsets._by_id.items():
        assert name_of(number) == {"utf8": "utf8mb3"}.get(known.name, known.name), number


def test_collations_of_mariadb_that_do_not_pad_and_of_unicode_14() -> None:
    assert [name_of(number) for number in (1032, 1070, 1270, 2048, 2304, 2503, 2560, 2816, 3271)] == [
        *("latin1", "utf8mb4", "utf8mb4", "utf8mb3", "utf8mb4", "utf8mb4", "ucs2", "utf16", "utf32"),
    ]


@pytest.mark.parametrize("number", [0, 17, 1000, 1024, 3328, 5000])
def test_an_unknown_collation_is_refused(number: int) -> None:
    with pytest.raises(UnknownTypeError):
        name_of(number)


@pytest.mark.parametrize(
    ("collation", "data", "text"),
    [
        (8, b"\x80\x81\x9f\xe9", "€\x81Ÿé"),
        (10, b"a[\\]", "aÄÖÅ"),
        (32, b"\xb2", "Ա"),
        (72, b"\xa1\xb4", "ÀÇ"),
        (36, b"\xfc\xfd", "ⁿ²"),
        (1, b"a\xf9\xd6\xa4\x40", "a碁一"),
        (13, b"\x81\x5f\x81\x60", "\\〜"),
        (95, b"\x81\x5f\x81\x60", "＼～"),
        (12, b"a\xa1\xc0\xf5\xa1\x8f\xfe\xfe", "a\\\ue000\ue757"),
        (97, b"a\xa1\xc1\xad\xa1\xf5\xa1\x8f\xf3\xf3\x8f\xf4\xfe\x8f\xa2\xb7\x8e\xb1~", "a～①\ue000ⅰ黑～ｱ~"),
        (28, b"\x81\x40", "丂"),
        (248, "漢😀".encode("gb18030"), "漢😀"),
        (35, b"\x00a\x6f\x22", "a漢"),
        (56, b"a\x00\x22\x6f", "a漢"),
        (60, b"\x00\x01\xf6\x00", "😀"),
        (45, "漢😀".encode(), "漢😀"),
    ],
)
def test_bytes_become_text(collation: int, data: bytes, text: str) -> None:
    assert charset_of(collation).decode(data) == text


@pytest.mark.parametrize(
    ("collation", "data"),
    [
        (45, b"\xff"),
        (33, b"\xc3"),
        (1, b"\xff\xff"),
        (12, b"\xff"),
        (12, b"\xf5"),
        (97, b"\x8f"),
        (3, b"\xa4"),
        (60, b"\x00\x11\x00\x00"),
    ],
)
def test_bytes_that_are_no_text_are_refused(collation: int, data: bytes) -> None:
    charset = charset_of(collation)
    with pytest.raises(UndecodableError):
        charset.decode(data)
