"""Keeps a source out of topics that it may not write: asked once per topic, before its schemas and its first record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

from cdcworker.schemas.change import Change, OutRecord
from cdcworker.schemas.encode import Register
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.log import Registration
from cdcworker.schemas.topic_access import NOT_GRANTED, OWN_TOPIC, TopicAccess

TABLE_REFUSED: Final = declare(
    "source.topic_refused",
    "data",
    "A table's topic is one that the connector may not write",
    "Give the table another topic with a RegexRouter or another topic.prefix, or leave it out. A topic that the grant does "
    "not cover the operator may add to it: admin:PREFIX@topics=BEGINNING+BEGINNING.",
)

Check = Callable[[Iterable[str]], None]


class EncodesChanges(Protocol):
    def encode(self, changes: Sequence[Change]) -> list[OutRecord]: ...


class TopicGuard:
    """Remembers the topics that were found to be the connector's."""

    def __init__(self, access: TopicAccess, exists: Callable[[Collection[str]], Collection[str]]) -> None:
        self._access = access
        self._exists = exists
        self._checked: set[str] = set()

    def check(self, topics: Iterable[str]) -> None:
        """CdcError `topic.internal` or `topic.not_granted` for the first topic that the connector may not write."""
        wanted = set(topics) - self._checked
        if wanted:
            self._access.check_write(wanted, self._exists)
            self._checked |= wanted

    def writable(self, topics: Collection[str]) -> set[str]:
        """Returns those of all existing topics that the connector may write."""
        return {topic for topic in topics if self._access.may_write(topic, topics)}


def guarded(register: Register, check: Check) -> Register:
    """Returns `register` for subjects of topics that the connector may write: a schema is refused before its records."""

    def checked(registrations: Sequence[Registration]) -> Sequence[int]:
        for registration in registrations:
            try:
                check([registration.subject.rpartition("-")[0]])
            except CdcError as error:
                # Records beside those of tables, such as heartbeats, have no table that could be left out.
                raise (_of_table(error, registration.meta.path) if registration.meta.table_id else error) from None
        return register(registrations)

    return checked


def named(error: CdcError, encoder: EncodesChanges, changes: Sequence[Change]) -> CdcError:
    """Returns the refusal of a topic with the table whose records it was for. Other errors, and those of records that are
    no table's, stay as they are."""
    if error.code not in (OWN_TOPIC, NOT_GRANTED):
        return error
    for change in changes:
        is_table = change.table.plain is None
        if is_table and any(record.topic == error.where["topic"] for record in encoder.encode((change,))):
            return _of_table(error, change.table.path)
    return error


def _of_table(error: CdcError, path: Sequence[str]) -> CdcError:
    if error.code not in (OWN_TOPIC, NOT_GRANTED):
        return error
    text = f"[{error.code}] {error.message}"
    return CdcError(TABLE_REFUSED, text, where={**error.where, "table": ".".join(path)})
