"""A primary, and a standby of it that its slots may be kept on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psycopg
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.postgres import EmbeddedPostgres

STANDBY_SLOT = "standby_1"
LEFT_EMPTY = (
    "pg_dynshmem",
    "pg_notify",
    "pg_replslot",
    "pg_serial",
    "pg_snapshots",
    "pg_stat_tmp",
    "pg_subtrans",
    "pg_wal",
)


def made_primary(folder: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder / "primary", {"max_prepared_transactions": "10", "shared_buffers": "32MB"})


def made_standby(folder: Path, primary: EmbeddedPostgres) -> EmbeddedPostgres:
    """Without data yet, not started."""
    server = EmbeddedPostgres(folder / "standby", {**primary.settings, "hot_standby_feedback": "on"})
    server.settings |= {"sync_replication_slots": "on", "primary_slot_name": STANDBY_SLOT}
    server.settings["primary_conninfo"] = f"{primary.dsn()}?application_name=standby"
    server.directory.mkdir()
    (server.port,), server.password = free_ports(1), primary.password
    server._user, server._bin = primary._user, primary._bin
    return server


def copy(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    """The primary's data as they are now, without its log: the standby streams that. Not every installation has pg_basebackup."""
    with psycopg.connect(primary.dsn(), autocommit=True) as db:
        old = db.info.server_version < 150000
        db.execute("select pg_start_backup('copy', true, false)" if old else "select pg_backup_start('copy', true)")
        shutil.copytree(primary.data, standby.data, symlinks=True, ignore=_not_copied)
        stop = "pg_stop_backup(false, false)" if old else "pg_backup_stop(false)"
        (label,) = db.execute(f"select labelfile from {stop}").fetchone()
    (standby.data / "backup_label").write_text(label)
    (standby.data / "standby.signal").touch()
    standby.data.chmod(0o700)
    if standby._user.startswith("set:"):
        owner = standby.directory.parent.joinpath("primary", "data").stat()
        for path in [standby.directory, *standby.directory.rglob("*")]:
            os.chown(path, owner.st_uid, owner.st_gid)


def _not_copied(folder: str, names: list[str]) -> list[str]:
    return names if Path(folder).name in LEFT_EMPTY else [name for name in names if name.startswith("postmaster.")]


def follow(primary: EmbeddedPostgres, standby: EmbeddedPostgres, db: psycopg.Connection, *, waits: bool) -> None:
    """The standby runs. `waits`: no slot is told of what the standby does not have."""
    db.execute("select pg_create_physical_replication_slot(%s, true)", (STANDBY_SLOT,))
    copy(primary, standby)
    if waits:
        # Not in the copy: a new primary would wait for a standby that it does not have.
        db.execute(f"alter system set synchronized_standby_slots = '{STANDBY_SLOT}'")
        db.execute("select pg_reload_conf()")
    standby.start()
