"""What a connector leaves in its database: slots and publications, and how they are dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import psycopg
from cdcworker.connectors.api.source import DropRequest, Leftover
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.connection import application_name, connect
from cdcworker.schemas.errors import CdcError, declare
from psycopg import sql

SLOT: Final = "slot"
PUBLICATION: Final = "publication"
SHARED: Final = declare(
    "postgres.still_used",
    "config",
    "Another connector of the cluster uses it",
    "Delete that connector too, or drop it by hand when nothing uses it any more.",
)


def leftovers(settings: PostgresSettings) -> list[Leftover]:
    """Returns the slots and publications of all tasks; opens nothing."""
    place = f"{settings.hosts}:{settings.ports}/{settings.dbname}"
    tasks = [settings.of_task(number) for number in range(settings.raw["slot.count"])]
    publications = dict.fromkeys(task.publication for task in tasks)
    return [
        *(Leftover(SLOT, task.slot, place) for task in tasks),
        *(Leftover(PUBLICATION, name, place) for name in publications),
    ]


def drop(settings: PostgresSettings, asked: DropRequest) -> Iterator[tuple[Leftover, CdcError | None]]:
    """Drops the slots first: nobody reads by a publication whose slot is gone. Where a slot stays, its publications stay."""
    wanted = [item for item in leftovers(settings) if item.kind in asked.kinds]
    slot_names = [item.name for item in leftovers(settings) if item.kind == SLOT]
    kept: CdcError | None = None
    for item in wanted:
        if (item.kind, item.name) in asked.spared:
            error: CdcError | None = CdcError(
                SHARED, f"another connector uses the {item.kind}", where={item.kind: item.name}
            )
        elif item.kind == PUBLICATION and kept is not None:
            error = kept
        else:
            number = slot_names.index(item.name) if item.kind == SLOT else 0
            error = _dropped(settings, item, application_name(asked.group, asked.connector, number))
        if item.kind == SLOT and error is not None:
            kept = error
        yield item, error


def _dropped(settings: PostgresSettings, item: Leftover, application: str) -> CdcError | None:
    try:
        with connect(settings, application) as connection:
            connection.execute("set statement_timeout = '10s'")
            if item.kind == PUBLICATION:
                connection.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(item.name)))
            elif slots.find_slot(connection, item.name) is not None:
                _drop_slot(connection, item.name)
    except psycopg.Error as exc:
        return translate(exc)
    except CdcError as exc:
        return exc
    return None


def _drop_slot(connection: AdminConnection, name: str) -> None:
    """The walsender of the task that has just ended may not have noticed yet; another program's is left alone."""
    slots.take_over(connection, name, lambda: False)
    slots.drop(connection, name)
