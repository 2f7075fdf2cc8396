"""A person's changes of a sink's offsets, in the ledger of its database."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.record_sink.letter_offsets import are_of_letters
from cdcworker.connectors.targets.jdbc.errors import as_target_error
from cdcworker.connectors.targets.jdbc.ledger import Partition, RecordLedger
from cdcworker.connectors.targets.jdbc.rules import WriteRules
from cdcworker.connectors.targets.jdbc.target import open_database
from cdcworker.schemas.errors import CdcError


def alter(
    config: Mapping[str, Any],
    place: LedgerAccess,
    changes: Mapping[tuple[str, int], int] | None,
    id_of: Callable[[str], str],
) -> None:
    """Sets the next offsets of partitions; None: of all, to nothing. Raises CdcError."""
    database = open_database(config, WriteRules())
    ledger = RecordLedger(place.connector, place.epoch, database.ledger_sql)
    wanted = None if changes is None else {Partition(id_of(topic), n): at for (topic, n), at in changes.items()}
    with contextlib.closing(database):
        try:
            database.prepare_ledger(database.ledger_sql.ddl)
            with database.transaction():
                # Letters that were sent again have offsets of their own, which a change of the topics leaves as they are.
                known = [one for one in ledger.partitions(database.connection) if not are_of_letters(one.topic_id)]
                ledger.alter(database.connection, dict.fromkeys(known, 0) if wanted is None else wanted)
        except CdcError as error:
            raise as_target_error(error) from error
        except database.failures as exc:
            raise as_target_error(database.explained(exc)) from exc
