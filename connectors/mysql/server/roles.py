"""The user of a source, as SQL for a server's administrator: what the connector needs, and nothing besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.api.abilities import RoleOption
from cdcworker.connectors.mysql.server.grants import REPLICATES, SEES_REPLICATION, account, quoted
from cdcworker.connectors.sql_script import ScriptStep

OPTIONS: Final = (
    RoleOption("host", "--from-host", "The host that workers connect from, as MySQL writes it.", "%"),
    RoleOption(
        "replicas",
        "--replicas",
        "MariaDB: database.hostname may lead to a replica, which is waited for where it comes late.",
        default=False,
    ),
)


@dataclass(frozen=True, slots=True)
class SourceUser:
    """`tables` are (database, table); a signal table is one of them."""

    name: str
    tables: Sequence[tuple[str, str]]
    host: str = "%"
    replicas: bool = False


def source_script(wanted: SourceUser) -> list[ScriptStep]:
    """Returns a script that may be run again, with other tables too."""
    user = account(wanted.name, wanted.host)
    rights = [*REPLICATES, *([SEES_REPLICATION] if wanted.replicas else [])]
    return [
        ScriptStep(
            "A new user is locked until it has a password, which belongs in no script: type ALTER USER"
            f" {user} IDENTIFIED BY '...' ACCOUNT UNLOCK into the client.",
            (f"CREATE USER IF NOT EXISTS {user} ACCOUNT LOCK",),
        ),
        ScriptStep(
            "Whoever may replicate can read the changes of every table of the server: include and exclude lists are no boundary.",
            (f"GRANT {', '.join(rights)} ON *.* TO {user}",),
        ),
        ScriptStep(
            "Snapshots, the catalog of columns, and the comparison with a warehouse read tables. A table without this right is"
            " not captured.",
            tuple(f"GRANT SELECT ON {quoted(*table)} TO {user}" for table in wanted.tables),
        ),
    ]
