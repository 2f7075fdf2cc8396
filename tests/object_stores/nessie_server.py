"""A real server of Iceberg's REST catalog: Nessie, which `make catalog` fetches, over a bucket of the test's server of S3."""

from __future__ import annotations

import http.client
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program

from tests.conftest import REQUIRE_PARTS
from tests.s3_server import ACCESS_KEY, HOST, SECRET_KEY

START_S_MAX = 180.0
JAVA_MIN = 21


def find_parts() -> tuple[Path, Path]:
    """Returns the program of a Java that is new enough, and the server's archive. Skips the test where one is missing."""
    archive = Path(os.environ.get("CDC_NESSIE") or Path(sys.prefix) / "nessie" / "nessie.jar")
    homes = [Path(os.environ.get("JAVA_HOME", "/nowhere")), *sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)]
    found = [home / "bin" / "java" for home in homes if _version(home) >= JAVA_MIN]
    if not archive.is_file() or not found:
        (pytest.fail if REQUIRE_PARTS else pytest.skip)("missing part Nessie: `make catalog`, and Java 21")
    return found[0], archive


def _version(home: Path) -> int:
    try:
        lines = (home / "release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    told = dict(line.split("=", 1) for line in lines if "=" in line).get("JAVA_VERSION", "0").strip('"')
    return int(told.split(".")[0])


class NessieServer(EmbeddedServer):
    """A catalog in memory, whose warehouse is a place in a bucket."""

    title: ClassVar[str] = "nessie"

    def __init__(self, directory: Path, s3_endpoint: str, place: str) -> None:
        self._java, self._archive = find_parts()
        self._directory, self._s3_endpoint, self._place = directory, s3_endpoint, place
        self.port, self._management = free_ports(2)

    @property
    def uri(self) -> str:
        return f"http://{HOST}:{self.port}/iceberg/"

    def start(self) -> None:
        store = "nessie.catalog.service.s3.default-options"
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": str(self.port),
            "quarkus.management.host": HOST,
            "quarkus.management.port": str(self._management),
            "quarkus.otel.sdk.disabled": "true",
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.server.authentication.enabled": "false",
            "nessie.catalog.default-warehouse": "lake",
            "nessie.catalog.warehouses.lake.location": self._place,
            f"{store}.endpoint": self._s3_endpoint,
            f"{store}.region": "us-east-1",
            f"{store}.path-style-access": "true",
            f"{store}.access-key": "urn:nessie-secret:quarkus:bucket",
            "bucket.name": ACCESS_KEY,
            "bucket.secret": SECRET_KEY,
        }
        memory = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        given = [f"-D{name}={value}" for name, value in settings.items()]
        argv = [str(self._java), *memory, *given, "-jar", str(self._archive)]
        self._child = Program("nessie", argv, self._directory / "nessie.log")
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            if time.monotonic() > deadline or not self._child.alive():
                log = (self._directory / "nessie.log").read_text(errors="replace")
                self.stop()
                raise RuntimeError(f"Nessie does not answer: {log[-1000:]}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/iceberg/v1/config")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def remove(self) -> None:
        self.stop()

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=5)
            self._child = None
