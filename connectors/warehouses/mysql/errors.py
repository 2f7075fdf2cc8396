"""What MySQL, MariaDB and PyMySQL say is wrong, as errors with codes; a server's message is left out, for it may quote a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.mysql_client.error_numbers import (
    LOGIN,
    RIGHTS,
    UNKNOWN_LOGIN,
    UNREACHABLE,
    is_lost,
    is_of_tls,
    is_weak_login,
    number_of,
)
from cdcworker.connectors.sink_errors import (
    SCHEMA_REFUSED,
    TARGET_AUTH,
    TARGET_FAILED,
    TARGET_GONE,
    TARGET_LOCKED,
    TARGET_RIGHTS,
    TARGET_UNREACHABLE,
    TARGET_VALUE,
)
from cdcworker.schemas.errors import CdcError, declare

WEAK_LOGIN: Final = declare(
    "spark.target_weak_login",
    "config",
    "The server asks for the password itself",
    "Set warehouse.sslmode to verify-full with warehouse.sslrootcert, or give the user a plugin that never needs the password, such"
    " as mysql_native_password: caching_sha2_password needs it for the first login after the server has started. Where the network"
    " is trusted, set the worker property connector.auth.weakest to password.",
)
CERTIFICATE: Final = declare(
    "spark.target_certificate",
    "config",
    "The server's certificate, or its TLS, is not what warehouse.sslmode asks for",
    "Set warehouse.sslrootcert to the authority that signed the server's certificate and warehouse.hostname to a name in it; or"
    " let the server speak TLS.",
)
UNFIT: Final = declare(
    "spark.target_unfit",
    "config",
    "The server's settings do not let it be a warehouse",
    "Set what the message names: binlog_format to ROW or MIXED.",
)

_CODES: Final[Mapping[str, tuple[int, ...]]] = {
    TARGET_AUTH: LOGIN,
    TARGET_RIGHTS: RIGHTS,
    TARGET_GONE: (1049, 1146),
    TARGET_LOCKED: (1205, 3572),
    TARGET_UNREACHABLE: UNREACHABLE,
    TARGET_VALUE: (
        *(
            1022,
            1048,
            1062,
            1153,
            1216,
            1217,
            1264,
            1265,
            1292,
            1301,
            1364,
            1366,
            1406,
            1411,
            1416,
            1451,
            1452,
            1586,
            1690,
        ),
        *(3140, 3141, 3144, 3156, 3157, 3819, 4025),
    ),
}
_BY_NUMBER: Final = {number: code for code, numbers in _CODES.items() for number in numbers}
DUPLICATE: Final = (1022, 1062, 1586)
STALE: Final = frozenset(
    (*_CODES[TARGET_VALUE], *(1054, 1136, 1146, 1288, 1347, 1356, 1394, 1471, 1906, 3105), 1110, 1060, 1091)
)
"""Errors that a table gives cause for which is other than it was: of values, constraints, names, and a relation's kind."""
_OF_ALTER: Final[Mapping[int, str]] = {
    1060: "two columns would have one name: MySQL does not tell upper from lower case in it",
    1059: "a name is longer than MySQL keeps",
    1067: "a column that may not be null would have no value",
    1069: "the table has as many indexes as a table can have",
    1071: "the key is longer than an index can hold",
    1117: "the table has as many columns as a table can have",
    1118: "a row would be longer than a table can hold",
    1138: "a column that may not be null would have to hold nulls",
    1170: "a column of an index would have a type that the index cannot hold",
    1215: "a foreign key needs the column as it is",
    1553: "a foreign key needs the column as it is",
    1629: "the names of the key's columns are too long together",
    1829: "a foreign key needs the column as it is",
    1832: "a foreign key needs the column as it is",
    1833: "a foreign key needs the column as it is",
    1834: "a foreign key needs the column as it is",
    1847: "the server cannot alter the table so",
    1901: "a generated column or a check needs the column",
    1904: "a generated column needs the column",
    3106: "a generated column needs the column",
    3108: "a generated column needs the column",
    3750: "the server asks for a primary key (sql_require_primary_key), which the table has not: no index holds its key, or it has none",
    3780: "a foreign key needs the column as it is",
    3837: "an index over an expression needs the column",
    3855: "a partition needs the column",
    3959: "a check needs the column",
    1054: "a check, a generated column or a partition needs the column",
    1265: "values that are there do not fit the new type",
    1264: "values that are there do not fit the new type",
    1292: "values that are there do not fit the new type",
    1366: "values that are there do not fit the new type",
    1406: "values that are there do not fit the new type",
    1064: "the server does not know the statement",
}
"""By error number of a CREATE or ALTER TABLE what it says of the table. Nobody but the table's owner can mend any of it."""


def from_pymysql(exc: Exception, where: Mapping[str, str | int] | None = None) -> CdcError:
    """The one translation of PyMySQL's errors."""
    number, name = number_of(exc), type(exc).__name__
    if is_weak_login(exc):
        return CdcError(WEAK_LOGIN, "the server asks for the password itself", where=where)
    if is_of_tls(exc):
        return CdcError(CERTIFICATE, "TLS with the server failed", where=where)
    if is_lost(exc):
        return CdcError(TARGET_UNREACHABLE, f"the connection failed ({name})", where=where)
    if number == UNKNOWN_LOGIN:
        text = "the server asks for a way to log in that the worker does not have"
        return CdcError(TARGET_AUTH, f"{text} (error {number})", where=where)
    code = _BY_NUMBER.get(number, TARGET_FAILED)
    return CdcError(code, f"error {number} ({name})", where=where)


def of_alter(exc: Exception, table: str, columns: str) -> CdcError | None:
    """Returns the error of a table whose change the server refuses; None where it is not the table's."""
    text = _OF_ALTER.get(number_of(exc))
    if text is None:
        return None
    where = {"table": table, "column": columns} if columns else {"table": table}
    return CdcError(SCHEMA_REFUSED, f"{text} (error {number_of(exc)})", where=where)
