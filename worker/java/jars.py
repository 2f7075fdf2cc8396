"""The locked Java libraries: fetched by the Ivy in the pyspark wheel, checked by SHA-256, kept in a cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.java import ivy
from cdcworker.worker.java.errors import JAR_FETCH, JAR_MISMATCH, JAR_SECTION
from cdcworker.worker.java.runtime import find_java

LOCK_FILE = Path(__file__).with_name("jars.lock.json")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked library; `alternatives` are accepted in its place when a mirror lacks it."""

    organisation: str
    name: str
    revision: str
    sha256: str
    alternatives: tuple[Jar, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.revision}.jar"

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.revision}"


@dataclass(frozen=True, slots=True)
class JarFinding:
    """The result of `verify` for one library."""

    section: str
    jar: Jar
    state: str
    """`ok`, `missing` or `mismatch`."""


def cache_dir() -> Path:
    configured = os.environ.get("CDC_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "cdcworker"


@cache
def lock() -> dict[str, tuple[Jar, ...]]:
    """Returns the libraries by section."""
    document = json.loads(LOCK_FILE.read_text(encoding="utf-8"))
    return {section: tuple(_jar(entry) for entry in entries) for section, entries in document["sections"].items()}


def _jar(entry: dict[str, object]) -> Jar:
    organisation, name, revision = str(entry["jar"]).split(":")
    others = entry.get("alternatives", [])
    assert isinstance(others, list)
    return Jar(organisation, name, revision, str(entry["sha256"]), tuple(_jar(other) for other in others))


def section(name: str) -> tuple[Jar, ...]:
    try:
        return lock()[name]
    except KeyError:
        raise CdcError(JAR_SECTION, f"there is no section {name}; known: {', '.join(lock())}") from None


def folder(name: str) -> Path:
    return cache_dir() / "jars" / name


def ensure(name: str, progress: Progress | None = None) -> list[Path]:
    """Returns the verified files of a section of the lock; missing ones are fetched."""
    return ensure_jars(name, section(name), progress)


def ensure_jars(name: str, jars: Sequence[Jar], progress: Progress | None = None) -> list[Path]:
    """Returns the verified files of these jars in the cache's folder `name`. Two processes never fetch at the same
    time."""
    paths = _present(name, jars)
    if paths is not None:
        return paths
    with _locked(folder(name)):
        paths = _present(name, jars)  # another process may have fetched meanwhile
        if paths is None:
            _fetch(name, jars, progress or (lambda _: None))
            paths = _present(name, jars)
    if paths is None:
        raise CdcError(JAR_FETCH, f"the libraries of section {name} vanished after they were fetched")
    return paths


def class_path(name: str) -> str:
    """Returns the class path of a section; missing jars are fetched."""
    return os.pathsep.join(str(path) for path in ensure(name))


def verify(name: str) -> list[JarFinding]:
    """Returns the state of every library of a section; nothing is fetched or removed."""
    findings = []
    for jar in section(name):
        states = [(candidate, _state(folder(name) / candidate.file_name, candidate)) for candidate in _choices(jar)]
        candidate, state = next((pair for pair in states if pair[1] != "missing"), states[0])
        findings.append(JarFinding(name, candidate, state))
    return findings


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _choices(jar: Jar) -> tuple[Jar, ...]:
    return (jar, *jar.alternatives)


def _state(path: Path, jar: Jar) -> str:
    if not path.is_file():
        return "missing"
    return "ok" if sha256_of(path) == jar.sha256 else "mismatch"


def _present(name: str, jars: Sequence[Jar]) -> list[Path] | None:
    """Returns all files in the order of the lock, None if one is missing; a file with another content is removed."""
    paths = []
    for jar in jars:
        for candidate in _choices(jar):
            path = folder(name) / candidate.file_name
            state = _state(path, candidate)
            if state == "mismatch":
                path.unlink(missing_ok=True)
            elif state == "ok":
                paths.append(path)
                break
        else:
            return None
    return paths


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(name: str, jars: Sequence[Jar], progress: Progress) -> None:
    """Fetches missing jars; an alternative replaces a jar that no repository has."""
    missing = [jar for jar in jars if not any((folder(name) / c.file_name).is_file() for c in _choices(jar))]
    choice = {jar: list(_choices(jar)) for jar in missing}
    progress(f"fetching {len(missing)} Java libraries for {name}")
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="fetch-") as scratch:
        work = Path(scratch)
        while True:
            chosen = [left[0] for left in choice.values()]
            absent = ivy.retrieve(find_java().program, _ivy_jar(), chosen, work, progress)
            if not absent:
                break
            for jar, left in choice.items():
                if str(left[0]) in absent:
                    left.pop(0)
                    if not left:
                        raise CdcError(JAR_FETCH, f"no repository has {jar}", where={"section": name})
        for jar in chosen:
            _install(jar, work / "out" / jar.file_name, folder(name))
    progress(f"fetched {len(missing)} Java libraries for {name}")


def _install(jar: Jar, source: Path, target: Path) -> None:
    if not source.is_file():
        raise CdcError(JAR_FETCH, f"{jar} was not retrieved")
    if sha256_of(source) != jar.sha256:
        raise CdcError(JAR_MISMATCH, f"{jar} has another SHA-256 than the lock", where={"jar": str(jar)})
    partial = target / f".{jar.file_name}.partial"
    shutil.copyfile(source, partial)
    partial.replace(target / jar.file_name)


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise CdcError(JAR_FETCH, "the pyspark package, which brings the fetcher, is not installed")
    paths = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not paths:
        raise CdcError(JAR_FETCH, "the pyspark package holds no Ivy")
    return paths[-1]
