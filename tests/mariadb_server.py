"""The embedded MariaDB server as tests use it; `make servers` takes its programs from the archive that is locked."""

from __future__ import annotations

from cdcworker.connectors.mysql_client.login import Login
from cdcworker.worker.devstack.mariadb import USER, EmbeddedMariaDb, find_programs
from cdcworker.worker.devstack.ports import HOST

__all__ = ["HOST", "USER", "MariaDbServer", "find_programs"]


class MariaDbServer(EmbeddedMariaDb):
    """One server whose data and log are in a folder of the test's own."""

    def login(self, **more: str) -> Login:
        """Returns what a warehouse logs in with."""
        return Login(HOST, self.port, USER, self.password, **more)

    def wipe(self) -> None:
        """Drops every database but the server's own."""
        own = ("mysql", "sys", "information_schema", "performance_schema")
        names = [str(name) for (name,) in self.ask("show databases") if name not in own]
        if names:
            self.ask("set foreign_key_checks = 0", *(f"drop database `{name.replace('`', '``')}`" for name in names))
