"""Roles per connector-name prefix: what a caller was granted, and whether that covers what is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdcworker.schemas.errors import declare
from cdcworker.worker.rest import errors as e

Role = Literal["open", "schemas", "read", "operate", "admin", "internal"]
Whose = Literal["", "connector", "named", "each", "cluster"]
"""What a role is needed on. `connector`: the one in the path. `named`: the one in the body, the handler asks for it.
`each`: any grant will do, the handler leaves out what the caller may not see. `cluster`: everything."""

UNAUTHENTICATED: Final = declare(
    "rest.unauthenticated",
    "config",
    "The request names nobody who is known here",
    "Send a token (Authorization: Bearer …), a user's name and password, or a client certificate that is listed.",
)
NOT_PERMITTED: Final = declare(
    "rest.not_permitted",
    "config",
    "The caller's roles do not cover this",
    "Have the operator grant the role that the message names, in the file of rest.auth.file.",
)

ROLES: Final = ("read", "operate", "admin")
"""Each includes those before it."""
SCHEMAS: Final = "schemas"
"""A grant of its own: reads schemas and nothing else, for consumers. Whoever may read everything has it too."""
CALLER: Final = "cdc.caller"
CONNECTOR: Final = "cdc.connector"
REQUEST_ID: Final = "cdc.request_id"
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="cdcworker", Basic realm="cdcworker", charset="UTF-8"'}


@dataclass(frozen=True, slots=True)
class Grant:
    """A role on every connector whose name begins with `prefix`; the empty one is for everything."""

    role: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.role}:{self.prefix}" if self.prefix else self.role


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `by` tells how that is known: token, basic, certificate, worker; empty when nobody was asked."""

    name: str
    grants: tuple[Grant, ...] = ()
    by: str = ""

    def may(self, role: str, connector: str | None = None) -> bool:
        """On this connector, or on everything, which only a grant without a prefix covers."""
        return any(covers(grant.role, role) and (connector or "").startswith(grant.prefix) for grant in self.grants)

    def may_somewhere(self, role: str) -> bool:
        return any(covers(grant.role, role) for grant in self.grants)


ANYBODY: Final = Caller("anonymous", (Grant("admin"),))
"""Where no authentication is set up: the listener is then on the loopback interface, or the operator said so."""


def covers(granted: str, role: str) -> bool:
    if role == SCHEMAS:
        return granted == SCHEMAS or granted in ROLES
    return granted in ROLES and role in ROLES and ROLES.index(granted) >= ROLES.index(role)


def parse_grant(text: str) -> Grant:
    """`read`, `operate:shop-`, `schemas`. Raises ValueError."""
    role, colon, prefix = text.strip().partition(":")
    if role not in (*ROLES, SCHEMAS):
        raise ValueError(f"a grant is one of {', '.join(ROLES)}, {SCHEMAS}, with :prefix if wanted")
    if colon and not prefix:
        raise ValueError("a grant that ends in a colon has no prefix; leave the colon away to mean everything")
    if role == SCHEMAS and prefix:
        raise ValueError("schemas has no prefix: subjects are not named after connectors")
    return Grant(role, prefix)


def parse_grants(texts: Iterable[str]) -> tuple[Grant, ...]:
    return tuple(parse_grant(text) for text in texts)


def caller_of(scope: Mapping[str, Any]) -> Caller:
    found = scope.get(CALLER, ANYBODY)
    assert isinstance(found, Caller)
    return found


def reach(path: str, whose: str) -> str:
    """What the role is needed on, when the endpoint leaves it to its path."""
    return whose or ("connector" if "{connector}" in path else "cluster")


def check(scope: MutableMapping[str, Any], role: str, whose: str, parameters: Mapping[str, Any]) -> None:
    """RestError 403 unless the caller may. An endpoint that declares no role is for the cluster's admins."""
    if "connector" in parameters:
        scope[CONNECTOR] = str(parameters["connector"])
    if role == "open":
        return
    caller = caller_of(scope)
    if role == "internal":
        if caller.by != "worker":
            raise unsigned()
        return
    wanted = role or "admin"
    if whose in ("each", "named"):
        fine = caller.may_somewhere(wanted)
    elif whose == "connector":
        fine = caller.may(wanted, str(parameters["connector"]))
    else:
        fine = caller.may(wanted)
    if not fine:
        raise not_permitted(caller, wanted, parameters.get("connector") if whose == "connector" else None)


def require(scope: MutableMapping[str, Any], role: str, connector: str) -> None:
    """For handlers whose connector stands in the body."""
    scope[CONNECTOR] = connector
    caller = caller_of(scope)
    if not caller.may(role, connector):
        raise not_permitted(caller, role, connector)


def visible(scope: Mapping[str, Any], connector: str) -> bool:
    return caller_of(scope).may("read", connector)


def sees_all(scope: Mapping[str, Any]) -> bool:
    return caller_of(scope).may("read")


def not_permitted(caller: Caller, role: str, connector: str | None) -> e.RestError:
    what = f"connector {connector}" if connector is not None else "the cluster"
    return e.RestError(403, f"{caller.name} has not the role {role} on {what}", NOT_PERMITTED)


def unauthenticated(message: str = "Authentication is required") -> e.RestError:
    return e.RestError(401, message, UNAUTHENTICATED, headers=CHALLENGE)


def unsigned() -> e.RestError:
    """Kafka Connect's text: workers send these requests to each other, people do not."""
    return e.RestError(400, "Internal request missing required signature", e.BAD_REQUEST)
