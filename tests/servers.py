"""Puts the programs of other PostgreSQL versions into a folder, one folder per major version: `servers.py FOLDER`.

They come from Maven Central as the Java libraries do, checked against `locks/servers.json`, and speak TLS and have the
extensions of PostgreSQL's own source.
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

from cdcworker.worker.java import jars

LOCK_FILE = Path(__file__).resolve().parents[1] / "locks" / "servers.json"


def locked() -> dict[str, dict[str, dict[str, str]]]:
    """Major version → machine → coordinates and SHA-256."""
    document: dict[str, dict[str, dict[str, str]]] = json.loads(LOCK_FILE.read_text(encoding="utf-8"))
    return document


def unpack(archive: Path, into: Path) -> None:
    """`bin`, `lib` and `share`, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=into.parent) as scratch, zipfile.ZipFile(archive) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".txz"))
        programs = Path(scratch) / into.name
        with outer.open(name) as compressed, tarfile.open(fileobj=compressed, mode="r:xz") as inner:
            inner.extractall(programs, filter="data")
        shutil.rmtree(into, ignore_errors=True)
        programs.replace(into)


def install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for version, machines in locked().items():
        entry = machines.get(platform.machine())
        if entry is None:
            sys.exit(f"there are no programs of PostgreSQL {version} for {platform.machine()}")
        jar = jars.Jar(*entry["jar"].split(":"), entry["sha256"])
        (archive,) = jars.ensure_jars(f"postgres-{version}", (jar,), print)
        unpack(archive, folder / version)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
