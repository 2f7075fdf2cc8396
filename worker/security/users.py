"""The file of users: their names, hashed passwords and tokens, and grants. Read again when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cdcworker.schemas.errors import declare
from cdcworker.worker.linux.operator_file import OperatorFile, read_yaml
from cdcworker.worker.security.access import Grant, parse_grants
from cdcworker.worker.security.credentials import is_hash

BAD_FILE: Final = declare(
    "auth.file_invalid",
    "config",
    "The file of users cannot be used",
    "Correct it; `cdcworker auth` writes it. It belongs to root or to the worker's user, and nobody else has the right to write it.",
)
FILE_BYTES_MAX: Final = 4 << 20
USER_MEMBERS: Final = frozenset({"name", "password", "tokens", "certificates", "grants"})
TOKEN_MEMBERS: Final = frozenset({"id", "hash", "expires", "note"})


@dataclass(frozen=True, slots=True)
class UserToken:
    """One token of a user."""

    id: str
    hash: str = field(repr=False)
    expires_s: float | None = None
    """Seconds since 1970; None: never."""

    def is_valid(self, now_s: float) -> bool:
        return self.expires_s is None or now_s < self.expires_s


@dataclass(frozen=True, slots=True)
class User:
    """One user with its grants."""

    name: str
    grants: tuple[Grant, ...]
    password: str = field(default="", repr=False)
    tokens: tuple[UserToken, ...] = ()
    certificates: tuple[str, ...] = ()
    """The common names of the user's client certificates."""


@dataclass(frozen=True)
class Users:
    """All users, by name, by the id of a token and by the name in a certificate."""

    by_name: Mapping[str, User] = field(default_factory=dict)
    by_token: Mapping[str, tuple[User, UserToken]] = field(default_factory=dict)
    by_certificate: Mapping[str, User] = field(default_factory=dict)


def parse(content: Any) -> Users:
    """Returns the users of a file's content. ValueError names the place of a mistake."""
    if not isinstance(content, dict) or not isinstance(content.get("users"), list):
        raise ValueError("expects `users:`, a list")
    by_name: dict[str, User] = {}
    by_token: dict[str, tuple[User, UserToken]] = {}
    by_certificate: dict[str, User] = {}
    for number, item in enumerate(content["users"]):
        user = _user(item, f"users[{number}]")
        if user.name in by_name:
            raise ValueError(f"users[{number}]: there are two users {user.name}")
        by_name[user.name] = user
        for token in user.tokens:
            if token.id in by_token:
                raise ValueError(f"users[{number}]: the token {token.id} is there twice")
            by_token[token.id] = (user, token)
        for certificate in user.certificates:
            if by_certificate.setdefault(certificate, user) is not user:
                raise ValueError(f"users[{number}]: the certificate {certificate} belongs to two users")
    return Users(by_name, by_token, by_certificate)


def _user(item: Any, place: str) -> User:
    _check_members(item, USER_MEMBERS, place)
    name = item.get("name")
    if not isinstance(name, str) or not name or not name.isprintable() or ":" in name:
        raise ValueError(f"{place}: name must be text without colons and control characters")
    password = item.get("password") or ""
    if password and not is_hash(str(password)):
        raise ValueError(f"{place}: password must be a hash as `cdcworker auth` writes it, never the password")
    try:
        grants = parse_grants(map(str, item.get("grants") or ()))
    except ValueError as exc:
        raise ValueError(f"{place}: {exc}") from None
    tokens = tuple(_token(token, f"{place}.tokens[{n}]") for n, token in enumerate(item.get("tokens") or ()))
    return User(name, grants, str(password), tokens, tuple(map(str, item.get("certificates") or ())))


def _token(item: Any, place: str) -> UserToken:
    _check_members(item, TOKEN_MEMBERS, place)
    id, hash = str(item.get("id", "")), str(item.get("hash", ""))
    if len(id) != 12 or not is_hash(hash):
        raise ValueError(f"{place}: id and hash must be as `cdcworker auth` writes them")
    return UserToken(id, hash, _expiry(item.get("expires"), place))


def _expiry(value: Any, place: str) -> float | None:
    if value is None:
        return None
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"{place}: expires must be a date and time such as 2027-01-31T00:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _check_members(item: Any, known: frozenset[str], place: str) -> None:
    if not isinstance(item, dict):
        raise ValueError(f"{place}: expects an object")
    unknown = sorted(map(str, set(item) - known))
    if unknown:
        raise ValueError(f"{place}: there is no {unknown[0]}; there are {', '.join(sorted(known))}")


def read(path: Path) -> Users:
    """Reads the file. CdcError `auth.file_invalid` when it cannot be used, or others may write it."""
    return read_yaml(path, parse, BAD_FILE, FILE_BYTES_MAX)


class UserFile(OperatorFile[Users]):
    """The file of users."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(path, read, "users", clock)
