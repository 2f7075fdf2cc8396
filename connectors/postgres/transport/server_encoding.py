"""Databases of no encoding (SQL_ASCII): the server hands on bytes as they were put in, and only UTF-8 is text here.

Asked for UTF-8 such a server ends the whole stream at the first value that is none. Asked for no encoding it sends all of
them, and what is no text is the trouble of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdcworker.connectors.capture.column_mapping import Parser
from cdcworker.connectors.postgres.errors import VALUE
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError, declare

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection

NO_ENCODING: Final = "SQL_ASCII"
NOT_UTF8: Final = declare(
    "postgres.text_not_utf8",
    "data",
    "A column of a database without an encoding has text that is not UTF-8",
    "Convert the text in the source, or leave the column out with column.exclude.list; a snapshot of the table, or a changed "
    "config, then takes it back and reads its rows anew.",
)
_NEVER_TEXT: Final = frozenset({"int", "long", "float", "double", "boolean", "bytes"})


class NotText(ValueError):
    """A value of this column is not UTF-8."""

    def __init__(self, column: str) -> None:
        super().__init__("not UTF-8")
        self.column = column


def is_lacking(connection: AdminConnection) -> bool:
    return connection.info.parameter_status("server_encoding") == NO_ENCODING


def checked(parse: Parser, avro: Avro, column: str) -> Parser:
    """The parser of a column whose values may be of any encoding. Another one than the native core's, which takes text
    as it is."""
    if (avro["type"] if isinstance(avro, dict) else avro) in _NEVER_TEXT:
        return parse

    def parse_checked(value: bytes) -> object:
        try:
            return parse(value)
        except UnicodeDecodeError:
            # Its text has the bytes.
            raise NotText(column) from None

    return parse_checked


def unreadable(exc: Exception, where: dict[str, str | int]) -> CdcError:
    """The error for a value that its column's parser refuses: the parser's own text may repeat it."""
    if isinstance(exc, NotText):
        return CdcError(NOT_UTF8, "text that is not UTF-8", where={**where, "column": exc.column})
    return CdcError(VALUE, "a column's text form could not be read", where=where)
