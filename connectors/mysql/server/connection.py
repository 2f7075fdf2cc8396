"""Connections for statements to a source's server, and PyMySQL's errors as errors with codes; a server's message may quote a value
and is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql_client import error_numbers as numbers
from cdcworker.connectors.mysql_client.login import LoginRefusals, connected
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

REFUSALS: Final = LoginRefusals(e.UNREACHABLE, e.TLS, "database.hostname", "database.sslrootcert")
_SESSION: Final = (
    "set session transaction isolation level repeatable read",
    # Texts of values do not depend on the server's settings, and no read leaves rows out.
    "set session time_zone = '+00:00', sql_select_limit = 18446744073709551615, completion_type = 'NO_CHAIN'",
    "set session wait_timeout = 600",
)
_MODE: Final = "NO_ENGINE_SUBSTITUTION"


def opened(settings: MySqlSettings, program: str = "cdcworker-source") -> MySqlConnection:
    """Returns a connection whose session is set up for reading. Raises CdcError."""
    import pymysql

    try:
        connection = connected(settings.login, program, REFUSALS, sql_mode=_MODE, timeout_s=settings.connect_timeout_s)
        try:
            for statement in _SESSION:
                connection.do(statement)
        except BaseException:
            connection.close()
            raise
    except pymysql.Error as exc:
        raise translate(exc) from exc
    return connection


def translate(exc: Exception, where: Mapping[str, str | int] | None = None) -> CdcError:
    """The one translation of PyMySQL's errors from statements; those of the stream are told in `transport`."""
    if isinstance(exc, CdcError):
        return exc
    number, name = numbers.number_of(exc), type(exc).__name__
    if numbers.is_weak_login(exc):
        return CdcError(e.WEAK_LOGIN, "the server asks for the password itself", where=where)
    if numbers.is_of_tls(exc):
        return CdcError(e.TLS, "TLS with the server failed", where=where)
    if numbers.is_lost(exc):
        return CdcError(e.CONNECTION_LOST, f"the connection failed ({name})", where=where)
    if number == numbers.UNKNOWN_LOGIN:
        text = "the server asks for a way to log in that the worker does not have"
        return CdcError(e.AUTHENTICATION, f"{text} (error {number})", where=where)
    for code, known in (
        (e.AUTHENTICATION, numbers.LOGIN),
        (e.PERMISSION, numbers.RIGHTS),
        (e.UNREACHABLE, numbers.UNREACHABLE),
    ):
        if number in known:
            return CdcError(code, f"error {number} ({name})", where=where)
    return CdcError(e.SERVER, f"error {number} ({name})", where=where)
