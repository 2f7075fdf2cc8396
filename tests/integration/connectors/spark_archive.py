"""The archive of Spark's classes, which `make test` makes beside its first tests: with it a session takes half the processor
time to start. Without it tests are only slower."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cdcworker.connectors.class_archive import SILENT
from cdcworker.connectors.spark.runtime.java_gateway import class_archive_of, java_program
from cdcworker.worker.java import jars
from cdcworker.worker.java.runtime import find_java

OPTIONS = "JAVA_TOOL_OPTIONS"


def cache_of(libraries: Sequence[str]) -> str:
    """The folder of the archive for a process with these libraries, empty where there is none: what ends soon after its
    first batch comes to no archive of its own."""
    archive = class_archive_of(jars.cache_dir(), java_program(str(find_java().home)), libraries)
    return str(jars.cache_dir()) if archive.path.exists() else ""


@contextmanager
def archive_of_spark_alone() -> Iterator[None]:
    """Lets the Java process that is started meanwhile take the archive for sinks without libraries of lakes: Java takes one
    whose class path is the beginning of its own."""
    libraries = [str(path) for path in jars.ensure("spark")]
    archive = class_archive_of(jars.cache_dir(), java_program(str(find_java().home)), libraries)
    before = os.environ.get(OPTIONS)
    if archive.path.exists():
        os.environ[OPTIONS] = " ".join(("-Xshare:auto", f"-XX:SharedArchiveFile={archive.path}", *SILENT))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(OPTIONS, None)
        else:
            os.environ[OPTIONS] = before
