"""The operator's file about an identity provider: what its roles may do here, and who or what is revoked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cdcworker.worker.identity.codes import FILE_INVALID
from cdcworker.worker.linux.operator_file import OperatorFile, read_yaml
from cdcworker.worker.security.access import Grant, parse_grants

FILE_BYTES_MAX: Final = 4 << 20
MEMBERS: Final = frozenset({"roles", "revoked"})
REVOKED_MEMBERS: Final = frozenset({"subject", "token", "session", "issued_before", "note"})


@dataclass(frozen=True, slots=True)
class Identity:
    """A person or a program as the provider names them, by a token or a login. Times are seconds since 1970."""

    subject: str
    name: str
    roles: tuple[str, ...] = ()
    token: str = ""
    """The claim jti; empty: the token has none."""
    session: str = ""
    """The claim sid: the login at the provider."""
    issued_s: float | None = None
    expires_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Revocation:
    """An entry of the file. It holds for what all of its members fit."""

    subject: str = ""
    token: str = ""
    session: str = ""
    issued_before_s: float | None = None

    def covers(self, identity: Identity) -> bool:
        """Returns whether it holds. What does not say when it was issued counts as issued before."""
        pairs = ((self.subject, identity.subject), (self.token, identity.token), (self.session, identity.session))
        if any(listed and listed != found for listed, found in pairs):
            return False
        return self.issued_before_s is None or identity.issued_s is None or identity.issued_s < self.issued_before_s


@dataclass(frozen=True)
class AccessRules:
    """What the file says."""

    roles: Mapping[str, tuple[Grant, ...]] = field(default_factory=dict)
    revoked: tuple[Revocation, ...] = ()

    def grants(self, roles: Iterable[str]) -> tuple[Grant, ...]:
        """Returns what these roles may do together; a role that the file does not name may do nothing."""
        return tuple(dict.fromkeys(grant for role in roles for grant in self.roles.get(role, ())))

    def known(self, roles: Iterable[str]) -> tuple[str, ...]:
        """Returns those of the roles that the file names."""
        return tuple(role for role in dict.fromkeys(roles) if role in self.roles)

    def is_revoked(self, identity: Identity) -> bool:
        return any(entry.covers(identity) for entry in self.revoked)


def parse(content: Any) -> AccessRules:
    """Returns the rules of a file's content. ValueError names the place of a mistake."""
    if not isinstance(content, dict) or not isinstance(content.get("roles"), dict):
        raise ValueError("expects `roles:`, an object of roles with their grants")
    _check_members(content, MEMBERS, "the file")
    roles = {str(name): _grants(value, f"roles.{name}") for name, value in content["roles"].items()}
    entries = content.get("revoked") or []
    if not isinstance(entries, list):
        raise ValueError("revoked: expects a list")
    return AccessRules(roles, tuple(_revocation(item, f"revoked[{number}]") for number, item in enumerate(entries)))


def _grants(value: Any, place: str) -> tuple[Grant, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{place}: expects a list of grants, as the file of users has them")
    try:
        return parse_grants(map(str, value))
    except ValueError as exc:
        raise ValueError(f"{place}: {exc}") from None


def _revocation(item: Any, place: str) -> Revocation:
    if not isinstance(item, dict):
        raise ValueError(f"{place}: expects an object")
    _check_members(item, REVOKED_MEMBERS, place)
    texts = {name: str(item.get(name) or "") for name in ("subject", "token", "session")}
    before = _moment(item["issued_before"], place) if item.get("issued_before") is not None else None
    if before is None and not any(texts.values()):
        raise ValueError(f"{place}: names no subject, token, session or issued_before")
    return Revocation(**texts, issued_before_s=before)


def _moment(value: Any, place: str) -> float:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"{place}: issued_before must be a date and time such as 2027-01-31T00:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _check_members(item: Mapping[Any, Any], known: frozenset[str], place: str) -> None:
    unknown = sorted(map(str, set(item) - known))
    if unknown:
        raise ValueError(f"{place}: there is no {unknown[0]}; there are {', '.join(sorted(known))}")


def read(path: Path) -> AccessRules:
    """Reads the file. CdcError `oidc.file_invalid` when it cannot be used, or others may write it."""
    return read_yaml(path, parse, FILE_INVALID, FILE_BYTES_MAX, texts=True)


class AccessFile(OperatorFile[AccessRules]):
    """The file of an identity provider's roles."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(path, read, "roles of the identity provider", clock)
