"""What Spark is started with for a kind of warehouse, and a Spark for requests that come from no running task."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.spark.runtime import redaction
from cdcworker.connectors.warehouses.kind import SparkHost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def jars_of(config: Mapping[str, str]) -> str:
    """Returns the names of the locked sets of Java libraries, joined by a plus."""
    libraries = kind_of(config).libraries
    return f"spark+{libraries}" if libraries else "spark"


def spark_settings(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the settings of Spark besides its usual ones: those that the kind of warehouse needs, and what hides its secrets.
    The config need not be parsed."""
    kind = kind_of(config)
    hidden = redaction.settings(kind.secret_settings(config))
    more = {} if hidden == redaction.settings() else hidden
    return tuple({**kind.spark_settings, **more}.items())


def spark_host(config: Mapping[str, Any], access: LedgerAccess) -> SparkHost:
    """Returns what starts Spark for a request, with the Java runtime and the libraries that the request brings."""
    return partial(_started, config, access.machine)


@contextlib.contextmanager
def _started(
    config: Mapping[str, Any], machine: Callable[[], tuple[str, Sequence[str]]]
) -> Iterator[Callable[[], SparkSession]]:
    from cdcworker.connectors.scratch_folder import TemporaryFolder
    from cdcworker.connectors.spark.runtime.java_gateway import java_program
    from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine

    java_home, jars = machine()
    state = TemporaryFolder()
    memory, settings = config["spark.driver.memory"], spark_settings(config)
    runtime = JavaRuntime(java_program(java_home), tuple(jars), memory, 1, "", settings)
    engine = SparkEngine(runtime, state.path, lambda: False, release=state.close)
    try:
        yield engine.session
    finally:
        engine.close()
