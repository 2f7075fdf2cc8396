"""The source's own tests over every PostgreSQL beside the one of the suite: each version speaks another pgoutput.

`make servers` puts programs of other versions beside the environment, from a lock of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REQUIRE_PARTS

ROOT = Path(__file__).resolve().parents[5]
PYTEST = Path(sys.executable).parent / "pytest"
SERVERS = Path(sys.prefix) / "servers"
STREAM = (
    "source/test_events.py",
    "decode/test_streamed_transactions.py",
    "decode/test_transaction_metadata.py",
    "doctor/test_replica_identity.py",
    "config/test_slot_split.py",
    "snapshot/test_snapshots.py",
    "types/test_types.py",
    "doctor/test_position_checks.py",
    "source/test_publication_gaps.py",
    "server/test_publication_members.py",
    "snapshot/test_locked_tables.py",
    "server/test_roles.py",
    "source/test_task.py",
    "source/test_table_quarantine.py",
    "source/test_moved_rows.py",
    "snapshot/test_copy_frames.py",
    "types/test_binary_values.py",
    "decode/test_binary_stream.py",
    "decode/test_native_path.py",
    "transport/test_tls_channel.py",
    "doctor/test_restored_server.py",
    "source/test_halting.py",
    "source/test_crash_starts.py",
    "source/test_crash_matrix.py::test_a_sample_of_crashes_leaves_exactly_what_the_witness_saw",
    "source/test_crash_large.py::test_a_large_transaction_in_parts_is_whole_after_three_deaths_in_it",
    "source/test_crash_snapshots.py::test_a_sample_of_crashes_amid_a_snapshot_leaves_the_table_and_what_the_witness_saw",
)
VERSIONS = ("14", "15", "16", "18")
TIMEOUT_S = 3600


def programs_of(version: str) -> Path | None:
    """CDC_PG_BIN_15 and the like, what `make servers` has installed, the distribution's: that may lack extensions, and
    tests leave out what needs them."""
    folders = [Path(os.environ[f"CDC_PG_BIN_{version}"])] if f"CDC_PG_BIN_{version}" in os.environ else []
    folders += [SERVERS / version / "bin", Path(f"/usr/lib/postgresql/{version}/bin")]
    return next((folder for folder in folders if os.access(folder / "postgres", os.X_OK)), None)


def passes(version: str, *tests: str, marked: str = "not long") -> None:
    folder = programs_of(version)
    if folder is None:
        reason = f"missing part PostgreSQL {version}: `make servers`, or name its programs in CDC_PG_BIN_{version}"
        (pytest.fail if REQUIRE_PARTS else pytest.skip)(reason)
    assert folder
    told = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    assert f" {version}." in told
    done = subprocess.run(
        [PYTEST, "-q", "-rs", "-p", "no:cacheprovider", "-m", marked, *(f"tests/integration/connectors/postgres/{name}" for name in tests)],
        cwd=ROOT, env={**os.environ, "CDC_PG_BIN": str(folder)}, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    # What this version lacks is named there.
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_source_reads_this_version_like_the_others(version):
    # Its tables have a scale below zero, which came with PostgreSQL 15.
    left_out = "source/test_task.py" if version == "14" else ""
    passes(version, *(name for name in STREAM if name != left_out))


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_standby_of_this_version_takes_over_or_the_source_halts(version):
    passes(version, "server/test_failover_slots.py", marked="long")


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("version", VERSIONS)
def test_schema_changes_amid_deaths_are_followed_on_this_version(version):
    passes(version, "source/test_crash_schemas.py", marked="long")
