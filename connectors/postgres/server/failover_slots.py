"""Failover slots, which standbys keep too (PostgreSQL 17): which slots become such, and what a primary knows of the standbys."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdcworker.connectors.postgres.transport.libpq_stream import ReplicationStream, quote
from cdcworker.connectors.postgres.transport.server_functions import is_standby

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.config.settings import PostgresSettings
    from cdcworker.connectors.postgres.server.replication_slot import ReplicationSlot
    from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection

log = logging.getLogger(__name__)

KEY: Final = "slot.failover"
VERSION: Final = 170_000
PHYSICAL: Final = "select slot_name::text, active from pg_replication_slots where slot_type = 'physical'"


@dataclass(frozen=True, slots=True)
class SynchronizedStandbys:
    """The slots that `synchronized_standby_slots` names, those of them that are no physical slot, and those that no standby reads."""

    named: tuple[str, ...]
    missing: tuple[str, ...]
    idle: tuple[str, ...]

    @property
    def are_waited_for(self) -> bool:
        """Returns whether changes are sent only once all named standbys have them, and those are connected."""
        return bool(self.named) and not (self.missing or self.idle)


def is_possible(connection: AdminConnection) -> bool:
    """Returns whether the server can have failover slots: a slot of a standby follows to no other server."""
    return connection.info.server_version >= VERSION and not is_standby(connection)


def of_new(connection: AdminConnection, settings: PostgresSettings) -> bool:
    """Returns whether a slot that is created now is to be a failover slot: wherever that is possible, unless slot.failover is
    false."""
    wanted, possible = settings.raw[KEY], is_possible(connection)
    if wanted and not possible:
        log.warning("slot.failover has no effect here: it takes a primary of PostgreSQL 17 slot=%s", settings.slot)
    return possible and wanted is not False


def follow(
    connection: AdminConnection, settings: PostgresSettings, found: ReplicationSlot | None, stream: ReplicationStream
) -> None:
    """Makes an existing slot a failover slot, where slot.failover is set to true."""
    if found is None or found.failover is not False or not settings.raw[KEY] or not is_possible(connection):
        return
    stream.command(alteration(settings.slot))
    log.info("slot is kept on standbys from now on slot=%s", settings.slot)


def alteration(slot: str) -> str:
    """A command of a replication connection; the server refuses it while the slot is read."""
    return f"ALTER_REPLICATION_SLOT {quote(slot)} (FAILOVER true)"


def standbys_of(setting: str, physical: Mapping[str, bool]) -> SynchronizedStandbys:
    """`setting`: synchronized_standby_slots; `physical`: by slot whether a standby reads it."""
    named = tuple(name.strip().strip('"') for name in setting.split(",") if name.strip())
    missing = tuple(name for name in named if name not in physical)
    idle = tuple(name for name in named if physical.get(name) is False)
    return SynchronizedStandbys(named, missing, idle)


def is_ready(connection: AdminConnection, slot: ReplicationSlot) -> bool:
    """Returns whether the slot is ready, as far as a primary can tell: it is intact and kept on standbys, and what it
    hands on waits for standbys that are named in synchronized_standby_slots and connected. Whether one of them has its copy
    already only that one knows."""
    if not slot.failover or slot.wal_status == "lost" or slot.reason:
        return False
    row = connection.execute("select current_setting('synchronized_standby_slots', true)").fetchone()
    physical: dict[str, bool] = dict(connection.execute(PHYSICAL).fetchall())
    return standbys_of(row[0] or "" if row else "", physical).are_waited_for
