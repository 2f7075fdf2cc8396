"""A cluster of Spark's that runs the tasks of a sink's driver: which one, and what its two sides have to know of each other."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdcworker.connectors.config.allowed_hosts import form_problem
from cdcworker.connectors.config.definition import ConfigKey, Importance, Secret, between, one_of
from cdcworker.connectors.sink_errors import ARCHIVE, ARCHIVE_VERSION
from cdcworker.connectors.spark.runtime import executor_archive
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

LOCAL, CLIENT = "local", "client"
STANDALONE = "spark://"
KUBERNETES = "k8s://"
YARN = "yarn"
FORMS = "expects spark://host:port, yarn or k8s://https://host:port"
MEMORY = "1g"
PYTHON = "spark.pyspark.python"
ARCHIVES = "spark.archives"
ARCHIVE_FORM = re.compile(
    r"(?P<place>(?:/|[a-z][a-z0-9+.-]*://)[^#,\s]*\.(?:zip|jar|tar|tar\.gz|tgz))(?:#(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*))?"
)
OPEN_PROPERTIES = (
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.executor.memoryOverhead",
    "spark.kubernetes.authenticate.driver.serviceAccountName",
    "spark.kubernetes.authenticate.serviceAccountName",
    "spark.kubernetes.container.image",
    "spark.kubernetes.container.image.pullPolicy",
    "spark.kubernetes.container.image.pullSecrets",
    "spark.kubernetes.driver.pod.name",
    "spark.kubernetes.executor.limit.cores",
    "spark.kubernetes.executor.request.cores",
    "spark.kubernetes.namespace",
    "spark.speculation",
    "spark.speculation.interval",
    "spark.speculation.minTaskRuntime",
    "spark.speculation.multiplier",
    "spark.speculation.quantile",
    "spark.task.maxFailures",
    "spark.yarn.archive",
    "spark.yarn.jars",
    "spark.yarn.queue",
)
"""None of them makes the driver load a class. Of those in `RUN_BY_EXECUTORS` the worker has to allow the value."""
RUN_BY_EXECUTORS = ("spark.kubernetes.container.image", "spark.yarn.archive", "spark.yarn.jars")
"""Executors run what they name, and the driver uploads a file of the worker's that they name."""
SECRET_MIN = 16


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """The driver stays in the task's process: a worker watches over it as over any other."""

    master: str
    host: str = ""
    """Where executors reach the driver; empty: what Spark takes for this machine's address."""
    bind: str = ""
    ports: tuple[int, int] = (0, 0)
    """Of the driver and of its store of blocks; 0: any."""
    memory: str = MEMORY
    python: str = ""
    """The interpreter of executors; empty: this one."""
    secret: Secret | None = None
    more: tuple[tuple[str, str], ...] = ()
    archives: tuple[str, ...] = ()
    """Each executor unpacks them in the folder it runs in, as the name behind `#`."""

    @property
    def authenticated(self) -> bool:
        """YARN and Kubernetes hand a new secret of Spark's to each executor; the daemons of a standalone cluster share one
        with all its applications."""
        return not self.master.startswith(STANDALONE) or self.secret is not None

    def settings(self, cores: int, jars: Sequence[str]) -> dict[str, str | Secret]:
        found: dict[str, str | Secret] = {
            "spark.master": self.master,
            "spark.submit.deployMode": CLIENT,
            # Executors fetch them from the driver, as they do with the reader's class.
            "spark.jars": ",".join(jars),
            "spark.executor.memory": self.memory,
            PYTHON: self.python or sys.executable,
            "spark.dynamicAllocation.enabled": "false",
            # There is no data beside which a task would be better off.
            "spark.locality.wait": "0",
            # Executors have temporary folders of their own, whose names may be too long for it.
            "spark.python.unix.domain.socket.enabled": "false",
            **self._share(cores),
            **self._addresses(),
        }
        if self.authenticated:
            found |= {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
        else:
            log.warning("connections between driver and executors are not authenticated: set spark.authenticate.secret")
        if self.secret is not None:
            found["spark.authenticate.secret"] = self.secret
        if self.archives:
            self._check_archives()
            found[ARCHIVES] = ",".join(self.archives)
        return {**found, **dict(self.more)}

    def _check_archives(self) -> None:
        """The driver hands on those that are files of this machine."""
        for place in map(place_of, self.archives):
            path = place.removeprefix("file://")
            if not path.startswith("/"):
                continue
            where = {"key": ARCHIVES, "file": path}
            if not os.access(path, os.R_OK):
                raise CdcError(ARCHIVE, "an archive for executors is not there", where=where)
            made = executor_archive.version_of(Path(path))
            if made is not None and made != executor_archive.version():
                text = (
                    f"the archive was made by version {made or 'unknown'}, the driver is {executor_archive.version()}"
                )
                raise CdcError(ARCHIVE_VERSION, text, where=where)

    def _share(self, cores: int) -> dict[str, str]:
        """Returns how many cores are asked for: of a standalone cluster an application would take all that are free."""
        if self.master.startswith(STANDALONE):
            return {"spark.cores.max": str(cores)}
        return {"spark.executor.instances": "1", "spark.executor.cores": str(cores)}

    def _addresses(self) -> dict[str, str]:
        found = {"spark.driver.host": self.host, "spark.driver.bindAddress": self.bind}
        for name, port in zip(("spark.driver.port", "spark.driver.blockManager.port"), self.ports, strict=True):
            found[name] = str(port) if port else ""
        return {name: value for name, value in found.items() if value}


def cluster_of(config: Mapping[str, Any]) -> SparkCluster | None:
    """Returns the cluster that a parsed config names; None: the driver runs its tasks itself."""
    if config["spark.launcher"] != CLIENT:
        return None
    return SparkCluster(
        config["spark.master"],
        config["spark.driver.host"],
        config["spark.driver.bindAddress"],
        (config["spark.driver.port"], config["spark.driver.blockManager.port"]),
        config["spark.executor.memory"],
        config[PYTHON],
        config["spark.authenticate.secret"] or None,
        tuple(pair(text) for text in config["spark.properties"]),
        tuple(config[ARCHIVES]),
    )


# -- configuration ------------------------------------------------------------------------------------------------------


def pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


def place_of(archive: str) -> str:
    """Returns the location of an archive without the name that it gets on the executors."""
    return archive.partition("#")[0]


def _folder_of(archive: str) -> str:
    """Returns the archive's folder on the executors."""
    return archive.partition("#")[2] or place_of(archive).rpartition("/")[2]


def masters(value: str) -> list[str]:
    """Returns the address of each of several masters that stand in for each other."""
    if not value.startswith(STANDALONE):
        return [value]
    return [STANDALONE + place for place in value.removeprefix(STANDALONE).split(",")]


def master_problem(value: str) -> str | None:
    """Returns what is wrong with the form of a master's address; None: nothing. A master inside of the driver, or one that
    starts it elsewhere, is none of a cluster's."""
    if value == YARN:
        return None
    if value.startswith(STANDALONE):
        places = [place.rpartition(":") for place in value.removeprefix(STANDALONE).split(",")]
        return None if all(_is_place(host, port) for host, _, port in places) else FORMS
    if value.startswith(KUBERNETES):
        found = re.fullmatch(r"(?:https?://)?([^/:]+)(?::(\d+))?/?", value.removeprefix(KUBERNETES))
        return None if found and _is_place(found[1], found[2] or "443") else FORMS
    return FORMS


def _is_place(host: str, port: str) -> bool:
    return bool(host) and form_problem(host) is None and bool(re.fullmatch(r"[1-9]\d{0,4}", port)) and int(port) < 65536


def _python_problem(value: str) -> str | None:
    """Relative ones are checked with the archives."""
    fine = not value or (re.fullmatch(r"(?:/|\./)[A-Za-z0-9_./-]+", value) and ".." not in value.split("/"))
    return None if fine else "expects an absolute path, or ./name/… in one of spark.archives"


def _archives_problem(value: Iterable[str]) -> str | None:
    fine = all(ARCHIVE_FORM.fullmatch(text) for text in value)
    return (
        None if fine else "expects absolute paths or URIs of .tar.gz, .tgz, .tar, .zip or .jar files, each with #name"
    )


def _properties_problem(value: Iterable[str]) -> str | None:
    pairs = [pair(text) for text in value]
    if any(not content for _, content in pairs):
        return "expects name=value"
    closed = [name for name, _ in pairs if name not in OPEN_PROPERTIES]
    return f"does not take {', '.join(closed)}" if closed else None


def _secret_problem(value: Secret) -> str | None:
    fine = not value or re.fullmatch(rf"[!-~]{{{SECRET_MIN},}}", value.reveal())
    return None if fine else f"expects at least {SECRET_MIN} printable characters without spaces"


def cluster_keys(memory: Any) -> Iterable[ConfigKey]:
    """`memory` is the validator of sizes."""
    key, group = ConfigKey, "Spark"
    yield key(
        "spark.launcher",
        default=LOCAL,
        validator=one_of(LOCAL, CLIENT),
        recommended=(LOCAL, CLIENT),
        group=group,
        doc="Where Spark's tasks run. local: in the task's own Java process. client: in executors of the cluster that"
        " spark.master names; the driver stays with the worker.",
        connects=True,
    )
    yield key(
        "spark.master",
        default="",
        validator=lambda value: master_problem(value) if value else None,
        group=group,
        doc="Master of the cluster: spark://host:port (several by commas), yarn, or k8s://https://host:port. The worker has"
        " to allow it (connector.spark.masters).",
        connects=True,
    )
    yield key(
        "spark.driver.host",
        default="",
        validator=lambda value: form_problem(value) if value else None,
        group=group,
        doc="Host by which executors reach the driver; empty: what Spark takes for the worker's address.",
        connects=True,
    )
    yield from _detail_keys(memory)


def _detail_keys(memory: Any) -> Iterable[ConfigKey]:
    key, group = ConfigKey, "Spark"
    low: Importance = "LOW"
    yield key(
        "spark.driver.bindAddress",
        default="",
        validator=lambda value: form_problem(value) if value else None,
        importance=low,
        group=group,
        doc="Address on which the driver listens for executors; empty: that of spark.driver.host.",
        connects=True,
    )
    for name, what in (("spark.driver.port", "the driver"), ("spark.driver.blockManager.port", "its store of blocks")):
        yield key(
            name,
            "INT",
            0,
            validator=between(0, 65535),
            importance=low,
            group=group,
            connects=True,
            doc=f"Port on which {what} listens for executors; 0: any. A second task on the machine takes the next.",
        )
    yield key(
        "spark.executor.memory", default=MEMORY, validator=memory, importance=low, group=group, doc="Heap per executor."
    )
    yield from _python_keys()
    yield from _trust_keys()
    yield key(
        "spark.properties",
        "LIST",
        (),
        validator=_properties_problem,
        importance=low,
        group=group,
        doc=f"Further settings of Spark for a cluster, each name=value, of these: {', '.join(OPEN_PROPERTIES)}."
        f" The worker has to allow the values of {', '.join(RUN_BY_EXECUTORS)} (connector.spark.archives).",
        connects=True,
    )


def _python_keys() -> Iterable[ConfigKey]:
    key, group = ConfigKey, "Spark"
    low: Importance = "LOW"
    yield key(
        PYTHON,
        connects=True,
        default="",
        validator=_python_problem,
        importance=low,
        group=group,
        doc="Interpreter on the machines of the executors, with cdcworker in the worker's version: they stage large"
        " tables of a PostgreSQL warehouse. ./name/bin/python is one in an archive of spark.archives. Empty: the path of"
        " the worker's own. Where there is none the driver stages.",
    )
    yield key(
        ARCHIVES,
        "LIST",
        (),
        connects=True,
        validator=_archives_problem,
        importance=low,
        group=group,
        doc="Archives that executors unpack, as path#name: such as what cdcworker spark-archive has made, for"
        " spark.pyspark.python. The worker has to allow each (connector.spark.archives).",
    )


def _trust_keys() -> Iterable[ConfigKey]:
    key, group = ConfigKey, "Spark"
    low: Importance = "LOW"
    yield key(
        "spark.authenticate.secret",
        "PASSWORD",
        validator=_secret_problem,
        importance=low,
        group=group,
        doc="What the daemons of a standalone cluster have as spark.authenticate.secret: connections are authenticated and"
        " encrypted with it. For YARN and Kubernetes Spark makes one by itself.",
        connects=False,
    )


def check(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if config["spark.launcher"] == CLIENT and not config["spark.master"]:
        yield "spark.master", "is required with spark.launcher=client"
    if config["spark.launcher"] != CLIENT and config["spark.master"]:
        yield "spark.master", "needs spark.launcher=client"
    if config["spark.launcher"] != CLIENT and config[ARCHIVES]:
        yield ARCHIVES, "needs spark.launcher=client"
    folders = [f"./{_folder_of(archive)}/" for archive in config[ARCHIVES]]
    if config[PYTHON].startswith("./") and not config[PYTHON].startswith(tuple(folders)):
        yield PYTHON, f"is in none of {ARCHIVES}"
