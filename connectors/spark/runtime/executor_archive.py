"""What executors run of our Python code, as one archive: the packages of this interpreter that they import, and a program
that starts the same Python of their machine with them."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import sys
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from cdcworker.connectors.sink_errors import ARCHIVE
from cdcworker.schemas.errors import CdcError

PACKAGES = ("cdcworker.schemas", "cdcworker.connectors")
"""Of ours, each with those below it: which of them a function needs that is sent to executors changes with the code."""
KEPT = (".py", ".so")
DISTRIBUTIONS = ("fastavro", "google-re2", "numpy", "psycopg", "psycopg-binary", "pyarrow", "typing-extensions")
"""What these packages import; Spark's own come from the cluster."""
MARK = "cdcworker"
"""First member of an archive: which code of ours is in it."""
LEFT_OUT = {"__pycache__", "include", "tests"}
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PROGRAM_PATH = "bin/python"
HERE = "with the packages that lie beside"
TEXT_BYTES_MAX = 4096
PROGRAM = f"""\
#!/bin/sh
# {PYTHON} of this machine, {HERE}.
home=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
PYTHONPATH="$home/lib${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
exec {PYTHON} "$@"
"""


def pack(target: Path) -> None:
    """Writes the archive, a .tar.gz, whole or not at all. CdcError when something is not installed here; OSError."""
    files = dict(_all_files())
    scratch = target.with_name(f".{uuid.uuid4().hex}")
    try:
        # What is linked from elsewhere is of this machine only.
        with tarfile.open(scratch, "w:gz", compresslevel=6, dereference=True) as archive:
            _add(archive, MARK, version().encode(), 0o644)
            _add(archive, PROGRAM_PATH, PROGRAM.encode(), 0o755)
            for name in sorted(files):
                archive.add(files[name], f"lib/{name}", recursive=False)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.mode, member.size = mode, len(content)
    archive.addfile(member, io.BytesIO(content))


@functools.cache
def version() -> str:
    """Returns a hash of our code that executors run: two builds with the same version number may differ."""
    digest = hashlib.sha256()
    for name, path in sorted(_our_files()):
        if path.suffix == ".py":
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{importlib.metadata.version('cdcworker')}+{digest.hexdigest()[:12]}"


def version_of(path: Path) -> str | None:
    """Returns the version that created an archive; None: `pack` has not created it, or it cannot be read."""
    try:
        with tarfile.open(path, "r|*") as archive:
            first = archive.next()
            found = archive.extractfile(first) if first is not None and first.isfile() else None
            text = b"" if found is None else found.read(TEXT_BYTES_MAX)
    except (OSError, tarfile.TarError, EOFError):
        return None
    if first is not None and first.isfile() and first.name == MARK:
        return text.decode(errors="replace")
    # Versions that wrote no mark began with the program.
    return "" if first is not None and first.name == PROGRAM_PATH and HERE.encode() in text else None


def _all_files() -> Iterator[tuple[str, Path]]:
    """Names in the archive's `lib`, and where they are here."""
    yield from _our_files()
    for name in DISTRIBUTIONS:
        yield from _installed(name)


def _our_files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            for path in Path(folder).rglob("*"):
                if path.suffix in KEPT:
                    yield f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}", path


def _installed(name: str) -> Iterator[tuple[str, Path]]:
    """Files of a distribution; what it has beside the packages, such as programs, is of no use to an executor."""
    try:
        files = importlib.metadata.files(name)
    except importlib.metadata.PackageNotFoundError:
        files = None
    if files is None:
        raise CdcError(ARCHIVE, "a package is not installed in this environment", where={"package": name})
    for file in files:
        if ".." not in file.parts and LEFT_OUT.isdisjoint(file.parts):
            yield str(file), Path(str(file.locate()))
