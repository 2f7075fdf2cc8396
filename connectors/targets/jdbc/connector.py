"""The sink into a database, as a connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from cdcworker.connectors.api.abilities import RoleOption, RoleRequest
from cdcworker.connectors.api.record_target import RecordTarget, TargetPlace
from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.record_sink.connector import RecordSink
from cdcworker.connectors.sql_script import ScriptStep
from cdcworker.connectors.targets.jdbc.config import CONFIG_DEF
from cdcworker.connectors.targets.jdbc.rules import BATCH_DEFAULT
from cdcworker.connectors.warehouses.mysql import roles as mysql_roles
from cdcworker.connectors.warehouses.postgres import roles as postgres_roles
from cdcworker.connectors.warehouses.shared_keys import ROLE_SCHEMAS

_SERVER: Final = RoleOption(
    "server", "--server", "jdbc-sink: the kind of database.", "postgresql", ("postgresql", "mysql")
)


class JdbcSink(RecordSink):
    """Rows in the tables of a database."""

    config_def: ClassVar[ConfigDef] = CONFIG_DEF

    def open_target(self, place: TargetPlace) -> RecordTarget:
        from cdcworker.connectors.targets.jdbc.target import JdbcTarget

        return JdbcTarget(place)

    def batch_default(self, config: Mapping[str, Any]) -> int:
        return int(config["batch.size"] or BATCH_DEFAULT)

    def redrives_by(self, config: Mapping[str, Any]) -> Literal["record", "row", "letter", ""]:
        """The ledger takes no earlier offset of a topic: letters have their own."""
        del config
        return "letter"

    def alter_offsets(self, place: LedgerAccess, changes: SinkOffsets | None) -> None:
        """Also of the ledger in the database, so that records that are read again are written again."""
        from cdcworker.connectors.sink_engine.kafka.brokers import SinkBrokers
        from cdcworker.connectors.targets.jdbc.altered_offsets import alter

        super().alter_offsets(place, changes)
        brokers = SinkBrokers(place.kafka)
        firsts = brokers.firsts(sorted(changes)) if changes else {}
        wanted = None if changes is None else {k: firsts[k] if v is None else v for k, v in changes.items()}
        alter(self.config_def.parse(self._config), place, wanted, lambda topic: brokers.id_of(topic) or topic)

    # Roles

    @classmethod
    def role_options(cls) -> Sequence[RoleOption]:
        return (_SERVER, ROLE_SCHEMAS, mysql_roles.HOST)

    @classmethod
    def role_script(cls, wanted: RoleRequest) -> list[ScriptStep]:
        options = wanted.options
        if options["server"] == "mysql":
            return mysql_roles.sink_script(mysql_roles.SinkUser(wanted.role, options["schemas"], options["host"]))
        return postgres_roles.sink_script(postgres_roles.SinkRole(wanted.role, wanted.database, options["schemas"]))
