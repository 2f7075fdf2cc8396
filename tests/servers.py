"""Puts the programs of other PostgreSQL versions, and of MariaDB, into a folder, one folder per version: `servers.py FOLDER`.

They come from Maven Central as the Java libraries do, checked against `locks/servers.json`. Those of PostgreSQL speak TLS and have
the extensions of its own source.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from cdcworker.worker.devstack import mariadb
from cdcworker.worker.java import jars

LOCK_FILE = Path(__file__).resolve().parents[1] / "locks" / "servers.json"


def locked() -> dict[str, dict[str, dict[str, str]]]:
    """Version → machine → coordinates and SHA-256."""
    document: dict[str, dict[str, dict[str, str]]] = json.loads(LOCK_FILE.read_text(encoding="utf-8"))
    return document


def unpack(archive: Path, into: Path) -> None:
    """`bin`, `lib` and `share`, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=into.parent) as scratch, zipfile.ZipFile(archive) as outer:
        packed = [name for name in outer.namelist() if name.endswith(".txz")]
        programs = Path(scratch) / into.name
        with outer.open(packed[0]) as compressed, tarfile.open(fileobj=compressed, mode="r:xz") as inner:
            inner.extractall(programs, filter="data")
        shutil.rmtree(into, ignore_errors=True)
        programs.replace(into)


def install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for version, machines in locked().items():
        entry = machines.get(platform.machine())
        name = version if version.startswith("mariadb") else f"postgres-{version}"
        if entry is None:
            if version.startswith("mariadb"):
                print(
                    f"there are no programs of {name} for {platform.machine()}: its tests are skipped", file=sys.stderr
                )
                continue
            sys.exit(f"there are no programs of {name} for {platform.machine()}")
        jar = jars.Jar(*entry["jar"].split(":"), entry["sha256"])
        (archive,) = jars.ensure_jars(name, (jar,), print)
        (mariadb.unpack if version.startswith("mariadb") else unpack)(archive, folder / version)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
