"""TABLE_MAP: the table that the rows after it belong to, with the types of its columns and all that the server adds to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.binlog.byte_reader import ByteReader, text_of
from cdcworker.connectors.mysql.errors import MalformedError
from cdcworker.connectors.mysql.types.charsets import charset_of
from cdcworker.connectors.mysql.types.column import NUMBERS, STRINGS, ColumnType, TypeCode, read_type

COLUMNS_MAX: Final = 4096
"""The servers' own limit on the columns of a table."""
MEMBERS_MAX: Final = 65_535
_SIGNS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SET_MEMBERS, _ENUM_MEMBERS, _GEOMETRIES = range(1, 8)
_KEY, _KEY_PREFIXES, _MEMBERS_DEFAULT_CHARSET, _MEMBERS_CHARSETS, _VISIBILITY, _DIMENSIONS = range(8, 14)
_MEMBERS: Final = frozenset({TypeCode.ENUM, TypeCode.SET})


MYSQL: Final = STRINGS | {TypeCode.VECTOR}
MARIADB: Final = STRINGS | {TypeCode.GEOMETRY}
"""By server the types of columns that have a collation in the lists of the optional metadata."""


class Column(NamedTuple):
    """A column as a table map gives it. None, and the empty name, stand for what it does not say."""

    name: str
    type: ColumnType
    is_nullable: bool
    is_visible: bool | None = None
    geometry: int | None = None
    """The kind of geometries, by its number in well-known binary."""
    dimensions: int | None = None
    """Numbers in a vector."""


class KeyPart(NamedTuple):
    """A column of the primary key, by its place from zero; `prefix` is the length that the key has of it, 0 for all of it."""

    column: int
    prefix: int = 0


class TableMap(NamedTuple):
    """A table at one moment. `table_id` changes with each change of the table and each restart of the server. `key` is None where
    the log does not say the primary key, and empty where there is none."""

    table_id: int
    flags: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[KeyPart, ...] | None


def read_table_map(body: ByteReader, table_id_bytes: int, collated: frozenset[TypeCode]) -> TableMap:
    """`collated` is the one of the server that wrote it. Raises MalformedError and UnknownTypeError."""
    table_id, flags = body.number(table_id_bytes), body.number(2)
    schema = body.short_text()
    body.zero()
    table = body.short_text()
    body.zero()
    count = body.packed()
    if not 0 < count <= COLUMNS_MAX:
        raise MalformedError("a table with an impossible number of columns")
    codes, metadata = body.take(count), body.packed_bytes()
    nullable = _bits(body.take((count + 7) // 8), count)
    types = _types(codes, metadata)
    parts = _Parts(types, collated)
    while body.left:
        parts.add(body.number(1), body.packed_bytes())
    columns = tuple(parts.column(i, bool(nullable[i])) for i in range(count))
    return TableMap(table_id, flags, schema, table, columns, parts.key)


def _types(codes: bytes, metadata: bytes) -> list[ColumnType]:
    types, at = [], 0
    for code in codes:
        try:
            found, at = read_type(code, metadata, at)
        except IndexError:
            raise MalformedError("the metadata of columns are cut short") from None
        types.append(found)
    if at != len(metadata):
        raise MalformedError("the metadata of columns have bytes left over")
    return types


class _Parts:
    """What the optional metadata say, gathered by column."""

    def __init__(self, types: list[ColumnType], collated: frozenset[TypeCode]) -> None:
        self._types = types
        self._signs: dict[int, bool] = {}
        self._collations: dict[int, int] = {}
        self._names: list[str] = []
        self._members: dict[int, list[bytes]] = {}
        self._visible: list[int] | None = None
        self._geometries: dict[int, int] = {}
        self._dimensions: dict[int, int] = {}
        self._given: set[int] = set()
        self._key: tuple[KeyPart, ...] | None = None
        self._readers: Mapping[int, Callable[[bytes], None]] = {
            _SIGNS: self._take_signs,
            _DEFAULT_CHARSET: lambda value: self._take_default(value, collated),
            _CHARSETS: lambda value: self._take_each(value, collated, self._collations),
            _NAMES: self._take_names,
            _SET_MEMBERS: lambda value: self._take_members(value, TypeCode.SET),
            _ENUM_MEMBERS: lambda value: self._take_members(value, TypeCode.ENUM),
            _GEOMETRIES: lambda value: self._take_each(value, {TypeCode.GEOMETRY}, self._geometries),
            _KEY: self._take_key,
            _KEY_PREFIXES: self._take_key_prefixes,
            _MEMBERS_DEFAULT_CHARSET: lambda value: self._take_default(value, _MEMBERS),
            _MEMBERS_CHARSETS: lambda value: self._take_each(value, _MEMBERS, self._collations),
            _VISIBILITY: self._take_visibility,
            _DIMENSIONS: lambda value: self._take_each(value, {TypeCode.VECTOR}, self._dimensions),
        }

    @property
    def key(self) -> tuple[KeyPart, ...] | None:
        """Names are sent with the key, so a table whose names are there and whose key is not has none."""
        return () if self._key is None and self._names else self._key

    def add(self, field: int, value: bytes) -> None:
        """Takes a field; one that is not known is passed over, as newer servers mean it to be."""
        if field in self._given:
            raise MalformedError("a field of the optional metadata stands twice")
        self._given.add(field)
        read = self._readers.get(field)
        if read is not None:
            read(value)

    def column(self, i: int, is_nullable: bool) -> Column:
        kind = self._types[i]
        collation = self._collations.get(i)
        members = self._members.get(i)
        kind = kind._replace(
            is_unsigned=self._signs.get(i),
            collation=collation,
            members=None if members is None else _member_texts(members, collation),
        )
        name = self._names[i] if self._names else ""
        visible = None if self._visible is None else bool(self._visible[i])
        return Column(name, kind, is_nullable, visible, self._geometries.get(i), self._dimensions.get(i))

    def _of(self, codes: frozenset[TypeCode] | set[TypeCode]) -> Iterator[int]:
        return (i for i, kind in enumerate(self._types) if kind.code in codes)

    def _take_signs(self, value: bytes) -> None:
        numeric = list(self._of(NUMBERS))
        if len(value) != (len(numeric) + 7) // 8:
            raise MalformedError("the signs of columns are not as many as numbers")
        signs = _high_bits(value, len(numeric))
        self._signs = {column: bool(signs[n]) for n, column in enumerate(numeric)}

    def _take_default(self, value: bytes, codes: frozenset[TypeCode]) -> None:
        body = ByteReader(value)
        columns = list(self._of(codes))
        default = body.packed()
        found = dict.fromkeys(columns, default)
        while body.left:
            place, collation = body.packed(), body.packed()
            if place >= len(columns):
                raise MalformedError("a character set of a column that is not there")
            found[columns[place]] = collation
        self._collations.update(found)

    def _take_each(self, value: bytes, codes: frozenset[TypeCode] | set[TypeCode], into: dict[int, int]) -> None:
        body = ByteReader(value)
        into.update((column, body.packed()) for column in self._of(codes))
        body.end()

    def _take_names(self, value: bytes) -> None:
        body = ByteReader(value)
        self._names = [text_of(body.packed_bytes()) for _ in self._types]
        body.end()

    def _take_members(self, value: bytes, code: TypeCode) -> None:
        body = ByteReader(value)
        for column in self._of({code}):
            count = body.packed()
            if count > min(MEMBERS_MAX, body.left):
                raise MalformedError("an ENUM or a SET with more members than bytes")
            self._members[column] = [body.packed_bytes() for _ in range(count)]
        body.end()

    def _take_key(self, value: bytes) -> None:
        body = ByteReader(value)
        places = []
        while body.left:
            places.append(KeyPart(body.packed()))
        self._key = self._checked(places)

    def _take_key_prefixes(self, value: bytes) -> None:
        body = ByteReader(value)
        places = []
        while body.left:
            places.append(KeyPart(body.packed(), body.packed()))
        self._key = self._checked(places)

    def _checked(self, parts: Sequence[KeyPart]) -> tuple[KeyPart, ...]:
        if any(part.column >= len(self._types) for part in parts):
            raise MalformedError("a key with a column that is not there")
        return tuple(parts)

    def _take_visibility(self, value: bytes) -> None:
        if len(value) != (len(self._types) + 7) // 8:
            raise MalformedError("the visibility of columns is not as long as the columns")
        self._visible = _high_bits(value, len(self._types))


def _member_texts(members: Sequence[bytes], collation: int | None) -> tuple[str, ...] | None:
    """Returns members as text; None where their character set is not said."""
    if collation is None:
        return None
    decode = charset_of(collation).decode if collation != 63 else text_of
    return tuple(map(decode, members))


def _bits(data: bytes, count: int) -> list[int]:
    """Returns bits from the lowest of each byte on."""
    return [data[i >> 3] >> (i & 7) & 1 for i in range(count)]


def _high_bits(data: bytes, count: int) -> list[int]:
    """Returns bits from the highest of each byte on."""
    return [data[i >> 3] >> (7 - (i & 7)) & 1 for i in range(count)]
