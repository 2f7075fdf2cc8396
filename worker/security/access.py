"""Roles on connectors, by the prefix of their names: what a caller was granted, and whether that covers a request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdcworker.schemas.errors import declare
from cdcworker.worker.http import errors as e

Role = Literal["open", "schemas", "read", "operate", "admin", "internal"]
Whose = Literal["", "connector", "connection", "named", "each", "cluster"]
"""The target on which a role is needed. `connector`, `connection`: the one in the path. `named`: the one in the body; the handler
checks it. `each`: any grant is enough; the handler leaves out what the caller may not see. `cluster`: everything."""

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
    "Have the operator grant the role that the message names, in the file of rest.auth.file, or of rest.oidc.access.file for users of an "
    "identity provider.",
)

ROLES: Final = ("read", "operate", "admin")
"""Each role includes those before it."""
SCHEMAS: Final = "schemas"
"""A grant that allows to read schemas and nothing else, for consumers. A grant of any other role includes it."""
CALLER: Final = "cdc.caller"
CONNECTOR: Final = "cdc.connector"
CONNECTION: Final = "cdc.named_connection"
CONNECTOR_KIND: Final = "connector"
CONNECTION_KIND: Final = "connection"
"""The names of what a path may name, and what grants with a prefix are about."""
REQUEST_ID: Final = "cdc.request_id"
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="cdcworker", Basic realm="cdcworker", charset="UTF-8"'}


TOPICS: Final = "@topics="
"""The text in a grant that the prefixes of topic names follow."""
ANY_TOPIC: Final = "*"
BEGINNING: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Grant:
    """A role on every connector whose name begins with `prefix`; an empty prefix means everything. `topics`: what the
    names of those connectors' topics begin with, unless it is the prefix; `*` means any topic."""

    role: str
    prefix: str = ""
    topics: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.role}:{self.prefix}" if self.prefix else self.role
        return f"{text}{TOPICS}{'+'.join(self.topics)}" if self.topics else text

    @property
    def topic_prefixes(self) -> tuple[str, ...]:
        """Returns the prefixes of the topic names that connectors under this grant may use; empty: any name."""
        if not self.prefix or self.topics == (ANY_TOPIC,):
            return ()
        return self.topics or (self.prefix,)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. `by` says how it was authenticated: token, basic, certificate, oidc (a token of the identity
    provider), session (a login to the console there) or worker; empty without authentication."""

    name: str
    grants: tuple[Grant, ...] = ()
    by: str = ""
    subject: str = ""
    """Who it is at the identity provider, whatever name is shown; empty for callers of other kinds."""

    @property
    def share(self) -> str:
        """For whom limits count. Whoever has chosen the name of a local user at the provider uses nothing of that user's."""
        return f"subject:{self.subject}" if self.subject else f"user:{self.name}"

    def may(self, role: str, connector: str | None = None) -> bool:
        """Returns whether the caller has the role on this connector, or on everything, which only a grant without a
        prefix covers."""
        return any(covers(grant.role, role) and (connector or "").startswith(grant.prefix) for grant in self.grants)

    def topic_prefixes(self, connector: str) -> tuple[str, ...]:
        """Returns what the names of topics begin with that the caller may give to this connector; empty: anything."""
        admin = [grant for grant in self.grants if covers(grant.role, "admin")]
        bounds = [grant.topic_prefixes for grant in admin if connector.startswith(grant.prefix)]
        # Without a name, as in a validation, each of them may be meant.
        bounds = bounds or [grant.topic_prefixes for grant in admin]
        return () if () in bounds else tuple(sorted({prefix for bound in bounds for prefix in bound}))

    def may_somewhere(self, role: str) -> bool:
        """Returns whether the caller has the role on at least some connectors."""
        return any(covers(grant.role, role) for grant in self.grants)


ANYBODY: Final = Caller("anonymous", (Grant("admin"),))
"""The caller where no authentication is configured: the listener is then on the loopback interface, or the operator has
allowed it."""


def covers(granted: str, role: str) -> bool:
    """Returns whether a granted role includes another role."""
    if role == SCHEMAS:
        return granted == SCHEMAS or granted in ROLES
    return granted in ROLES and role in ROLES and ROLES.index(granted) >= ROLES.index(role)


def parse_grant(text: str) -> Grant:
    """Parses `read`, `operate:shop-`, `admin:shop-@topics=shop-+shop.` or `schemas`. ValueError for any other text."""
    whose, at, topics = text.strip().partition(TOPICS)
    role, colon, prefix = whose.partition(":")
    if role not in (*ROLES, SCHEMAS):
        raise ValueError(f"a grant is one of {', '.join(ROLES)}, {SCHEMAS}, with :prefix if wanted")
    if colon and not prefix:
        raise ValueError("a grant that ends in a colon has no prefix; leave the colon away to mean everything")
    if role == SCHEMAS and prefix:
        raise ValueError("schemas has no prefix: subjects are not named after connectors")
    return Grant(role, prefix, _topics(topics, role, prefix) if at else ())


def _topics(text: str, role: str, prefix: str) -> tuple[str, ...]:
    if role != "admin" or not prefix:
        raise ValueError(f"{TOPICS} bounds the topics of a grant admin:prefix: other roles name no topics")
    found = tuple(text.split("+"))
    if found != (ANY_TOPIC,) and not all(BEGINNING.fullmatch(item) for item in found):
        raise ValueError(f"{TOPICS} expects beginnings of topics' names, joined by +, or * for any topic")
    return found


def parse_grants(texts: Iterable[str]) -> tuple[Grant, ...]:
    return tuple(parse_grant(text) for text in texts)


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Returns the caller that the gate has put into the scope."""
    caller = scope.get(CALLER, ANYBODY)
    assert isinstance(caller, Caller)
    return caller


def reach(path: str, whose: str) -> str:
    """Returns what the role is needed on when the endpoint leaves it to its path."""
    named = (kind for kind in (CONNECTOR_KIND, CONNECTION_KIND) if f"{{{kind}}}" in path)
    return whose or next(named, "cluster")


def check(scope: MutableMapping[str, Any], role: str, whose: str, parameters: Mapping[str, Any]) -> None:
    """RestError 403 unless the caller has the role. An endpoint that declares no role is for admins of the cluster."""
    for kind, member in ((CONNECTOR_KIND, CONNECTOR), (CONNECTION_KIND, CONNECTION)):
        if kind in parameters:
            scope[member] = str(parameters[kind])
    if role == "open":
        return
    caller = caller_of(scope)
    if role == "internal":
        if caller.by != "worker":
            raise unsigned()
        return
    needed = role or "admin"
    if whose in ("each", "named"):
        fine = caller.may_somewhere(needed)
    elif whose in (CONNECTOR_KIND, CONNECTION_KIND):
        fine = caller.may(needed, str(parameters[whose]))
    else:
        fine = caller.may(needed)
    if not fine:
        is_one = whose in (CONNECTOR_KIND, CONNECTION_KIND)
        raise not_permitted(caller, needed, parameters.get(whose) if is_one else None, whose)


def require(scope: MutableMapping[str, Any], role: str, connector: str) -> None:
    """RestError 403 unless the caller has the role on a connector that the body names."""
    scope[CONNECTOR] = connector
    caller = caller_of(scope)
    if not caller.may(role, connector):
        raise not_permitted(caller, role, connector)


def require_connection(scope: Mapping[str, Any], role: str, connection: str) -> None:
    """RestError 403 unless the caller has the role on a connection that a config names."""
    caller = caller_of(scope)
    if not caller.may(role, connection):
        raise not_permitted(caller, role, connection, CONNECTION_KIND)


def visible(scope: Mapping[str, Any], connector: str) -> bool:
    """Returns whether the caller may read the connector, or a connection of that name."""
    return caller_of(scope).may("read", connector)


def sees_all(scope: Mapping[str, Any]) -> bool:
    """Returns whether the caller may read everything."""
    return caller_of(scope).may("read")


def not_permitted(caller: Caller, role: str, name: str | None, kind: str = CONNECTOR_KIND) -> e.RestError:
    what = f"{kind} {name}" if name is not None else "the cluster"
    return e.RestError(403, f"{caller.name} has not the role {role} on {what}", NOT_PERMITTED)


def unauthenticated(message: str = "Authentication is required") -> e.RestError:
    return e.RestError(401, message, UNAUTHENTICATED, headers=CHALLENGE)


def unsigned() -> e.RestError:
    """Returns the error for an unsigned internal request, in Kafka Connect's words."""
    return e.RestError(400, "Internal request missing required signature", e.BAD_REQUEST)
