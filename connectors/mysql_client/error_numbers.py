"""What the numbers of a server's and of PyMySQL's errors say, as far as all connectors ask the same of them."""

from __future__ import annotations

from typing import Final

LOGIN: Final = (1045, 1698, 1862, 2059, 3118, 3955, 4151)
"""The user is not known, its password is wrong or has expired, or the way to log in is not one that the worker has."""
RIGHTS: Final = (1044, 1142, 1143, 1227, 1370)
UNREACHABLE: Final = (
    *(1021, 1037, 1038, 1040, 1053, 1080, 1114, 1129, 1152, 1158, 1159, 1160, 1161, 1180, 1203, 1206, 1213, 1226),
    *(1290, 1317, 1836, 1927, 1969, 2002, 2003, 2006, 2013, 2014, 2027, 2055, 3024, 3101, 4031),
)
"""The server is away, is full, or has ended the connection or the statement."""
UNKNOWN_LOGIN: Final = 2059
TLS: Final = 2026


def number_of(exc: BaseException) -> int:
    """Returns the server's, or the client's, number of an error; 0 where it has none."""
    first = exc.args[0] if exc.args else 0
    return first if isinstance(first, int) else 0


def is_of_tls(exc: BaseException) -> bool:
    """Returns whether TLS failed, or the server did not prove who it is."""
    return number_of(exc) == TLS or "CERTIFICATE_VERIFY_FAILED" in str(exc)


def is_weak_login(exc: BaseException) -> bool:
    """Returns whether the server asked for the password itself, which it does not get."""
    return type(exc).__name__ == "WeakLoginError"


def is_lost(exc: BaseException) -> bool:
    """Returns whether PyMySQL has lost the connection and has no number for it."""
    return number_of(exc) == 0 and type(exc).__name__ in ("OperationalError", "InterfaceError", "InternalError")
