"""A real server that speaks S3 on a folder: versitygw, which `make servers` builds from `locks/versitygw`."""

from __future__ import annotations

import http.client
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.storage.s3_bucket import S3Bucket
from cdcworker.connectors.warehouses.stores import s3_config
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program

HOST = "127.0.0.1"
ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret"
BUCKET = "warehouse"
START_S_MAX = 30.0


def find_program() -> Path | None:
    """Returns where the server's program is; None where it was not built."""
    places = (os.environ.get("CDC_VERSITYGW", ""), str(Path(sys.prefix) / "versitygw" / "versitygw"))
    return next((Path(place) for place in places if place and Path(place).is_file()), None)


class S3Server(EmbeddedServer):
    """A server whose buckets are folders in `directory`."""

    title: ClassVar[str] = "versitygw"

    def __init__(self, program: Path, directory: Path) -> None:
        self._program = program
        self._directory = directory
        (self.port,) = free_ports(1)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        for name in ("buckets", "metadata"):
            (self._directory / name).mkdir(parents=True, exist_ok=True)
        login = ["--access", ACCESS_KEY, "--secret", SECRET_KEY]
        argv = [str(self._program), *login, "--port", f"{HOST}:{self.port}", "--health", "/health", "--quiet"]
        # File systems for tests may lack attributes of files.
        disk = ["posix", "--sidecar", str(self._directory / "metadata"), str(self._directory / "buckets")]
        self._child = Program("versitygw", [*argv, *disk], self._directory / "versitygw.log")
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            if time.monotonic() > deadline or not self._child.alive():
                log = (self._directory / "versitygw.log").read_text(errors="replace")
                self.stop()
                raise RuntimeError(f"versitygw does not answer: {log[-1000:]}")
            time.sleep(0.02)
        self.client = bucket_at(self.endpoint, "")._client
        self.client.create_bucket(Bucket=BUCKET)

    def files(self, prefix: str) -> S3Bucket:
        """Returns files below a prefix of the bucket. All of them have one client, which takes long to make."""
        return S3Bucket(lambda: self.client, BUCKET, prefix)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=1)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=5)
            self._child = None

    def remove(self) -> None:
        """Stops it and removes its data."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def sink_config(endpoint: str, path: str, **more: str) -> dict[str, Any]:
    """Returns the parsed config of a sink that writes to a bucket of the server."""
    keys = {"endpoint": endpoint, "path.style.access": "true", "access.key": ACCESS_KEY, "secret.key": SECRET_KEY}
    own = {"name": "sink", "topics": "t", "warehouse": "parquet", "warehouse.path": path}
    return CONFIG_DEF.parse({**own, **{f"warehouse.s3.{name}": value for name, value in keys.items()}, **more})


def bucket_at(endpoint: str, prefix: str, **more: str) -> S3Bucket:
    """Returns files below a prefix of the server's bucket, with a client of their own."""
    return s3_config.bucket_of(sink_config(endpoint, f"s3://{BUCKET}/{prefix}", **more), ())
