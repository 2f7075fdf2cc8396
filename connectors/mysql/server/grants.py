"""Users and names as statements have them, and what a user may do, as SHOW GRANTS tells it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

ALL: Final = "ALL PRIVILEGES"
REPLICATES: Final = ("REPLICATION SLAVE", "REPLICATION CLIENT")
"""Without them a server sends no log, and does not say where its log ends. Both servers know these names."""
MONITORS: Final = ("REPLICATION CLIENT", "BINLOG MONITOR", "SUPER")
"""Any one of them shows where the log ends."""
SEES_REPLICATION: Final = "REPLICA MONITOR"
"""MariaDB: shows how far a replica has come. MySQL shows it to who has REPLICATION CLIENT."""
_ON_EVERYTHING: Final = re.compile(r"GRANT (?P<rights>.+) ON \*\.\* TO ")
_ROLE: Final = re.compile(r"GRANT [`'].+[`'] TO ")


def account(name: str, host: str) -> str:
    """Returns a user in the form of statements."""
    return "@".join("'" + part.replace("\\", "\\\\").replace("'", "''") + "'" for part in (name, host))


def quoted(*names: str) -> str:
    """Returns a name, or one with the database before it, in the server's quotes."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


@dataclass(frozen=True, slots=True)
class Grants:
    """The global rights of a user, in upper case. `has_roles`: roles may give it more, which cannot be told from here."""

    everywhere: frozenset[str]
    has_roles: bool = False

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Grants:
        """Reads the lines that the server prints."""
        found: set[str] = set()
        has_roles = False
        for line in lines:
            if match := _ON_EVERYTHING.match(line):
                found |= {right.strip().upper() for right in match["rights"].split(",")}
            elif _ROLE.match(line):
                has_roles = True
        return cls(frozenset(found), has_roles)

    def lacks(self, *names: str) -> bool:
        """Returns whether the user certainly has none of these rights, of which any one is enough."""
        return not self.has_roles and self.everywhere.isdisjoint((*names, ALL))
