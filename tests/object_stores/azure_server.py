"""A real server that speaks Azure's Blob Storage on memory: Azurite, which `make servers` installs from `locks/azurite`."""

from __future__ import annotations

import base64
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.storage.object_store import ObjectStore
from cdcworker.connectors.warehouses.stores import azure_config
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program

HOST = "127.0.0.1"
ACCOUNT = "testaccount"
ACCOUNT_KEY = base64.b64encode(b"a key of the tests").decode()
CONTAINER = "warehouse"
PLACE = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"
START_S_MAX = 60.0


def find_program() -> tuple[str, Path] | None:
    """Returns the programs that are needed; None where one is missing."""
    home = Path(os.environ.get("CDC_AZURITE") or Path(sys.prefix) / "azurite")
    script, node = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js", shutil.which("node")
    return (node, script) if node and script.is_file() else None


class AzureServer(EmbeddedServer):
    """A server with one account and one container."""

    title: ClassVar[str] = "azurite"
    place = PLACE

    def __init__(self, program: tuple[str, Path], directory: Path) -> None:
        self._program, self._directory = program, directory
        (self.port,) = free_ports(1)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        node, script = self._program
        place = ["--blobHost", HOST, "--blobPort", str(self.port)]
        argv = [
            node,
            str(script),
            *place,
            "--inMemoryPersistence",
            "--skipApiVersionCheck",
            "--silent",
            "--disableTelemetry",
        ]
        accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
        self._child = Program("azurite", argv, self._directory / "azurite.log", env={**os.environ, **accounts})
        deadline = time.monotonic() + START_S_MAX
        while not self._made():
            if time.monotonic() > deadline or not self._child.alive():
                log = (self._directory / "azurite.log").read_text(errors="replace")
                self.stop()
                raise RuntimeError(f"Azurite does not answer: {log[-1000:]}")
            time.sleep(0.05)

    def _made(self) -> bool:
        store = store_at(self.endpoint, "")
        try:
            store._again(store._client.create_container, retry_s=0.0)
        except CdcError:
            return False
        return True

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=5)
            self._child = None

    def remove(self) -> None:
        self.stop()


def sink_config(endpoint: str, prefix: str, **more: str) -> dict[str, Any]:
    """Returns the parsed config of a sink that writes to the container by way of `endpoint`."""
    own = {"name": "sink", "topics": "t", "warehouse": "parquet", "warehouse.path": f"{PLACE}/{prefix}"}
    keys = {"warehouse.azure.endpoint": f"{endpoint}/{ACCOUNT}", "warehouse.azure.account.key": ACCOUNT_KEY}
    return CONFIG_DEF.parse({**own, **keys, **more})


def store_at(endpoint: str, prefix: str, **more: str) -> ObjectStore:
    """Returns files below a prefix of the container, with a client of their own."""
    return azure_config.open_store(sink_config(endpoint, prefix, **more), ())
