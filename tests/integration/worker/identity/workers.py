"""Two workers' REST servers over one cluster in memory, with the login of a real identity provider."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml
from cdcworker.worker.config.worker_properties import parse
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.rest.settings import ApiSettings, Protection
from cdcworker.worker.security.audit import Audit
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.server import RestServer
from cdcworker.worker.server.wiring import gate_of, identity_of, secrets_of

from tests.identity_provider.server import AUDIENCE, CONSOLE, SECRET, IdentityProvider
from tests.unit.worker.conftest import Cluster, FakeCatalog, FakeHerder

ROLES = {"cdc-admins": ["admin"], "cdc-readers": ["read"], "cdc-shop": ["operate:shop-"]}


class Clock:
    """A monotonic time that a test may set forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class Workers:
    """`urls` are those of the consoles of two workers, the first of which the provider knows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.trail = folder, Clock(), list[dict[str, Any]]()
        self.ports = free_ports(2)
        self.urls = [f"http://localhost:{port}/ui/" for port in self.ports]
        self.rules, self.secret = folder / "roles.yaml", folder / "secret"
        self.secret.write_text("of all workers, and of nobody else beside them")
        self.secret.chmod(0o600)
        self.write()
        self.cluster = Cluster()
        self.cluster.add("shop-orders")
        self._servers: list[RestServer] = []

    def write(self, *revoked: Any, **roles: Any) -> None:
        """Has the operator's file say what is revoked, and what roles may do."""
        scratch = self.rules.with_suffix(".new")
        scratch.write_text(yaml.safe_dump({"roles": {**ROLES, **roles}, "revoked": list(revoked)}))
        scratch.chmod(0o600)
        scratch.replace(self.rules)
        self.clock.ahead_s += 2.0

    def start(self, provider: IdentityProvider, **properties: str) -> None:
        for number, port in enumerate(self.ports):
            values = parse({
                "bootstrap.servers": "k:9092", "group.id": "g", "listeners": f"http://127.0.0.1:{port}",
                "rest.oidc.issuer": provider.issuer, "rest.oidc.audience": AUDIENCE, "rest.oidc.access.file": str(self.rules),
                "rest.oidc.username.claim": "preferred_username", "rest.oidc.scopes": "profile,roles",
                "rest.oidc.client.id": CONSOLE, "rest.oidc.client.secret": SECRET, "rest.oidc.console.url": self.urls[0],
                "inter.worker.secret.file": str(self.secret), **properties,
            })[0].values  # fmt: skip
            identity = identity_of(values, {}, secrets_of(values, {}), self.clock)
            protection = Protection(
                gate=gate_of(values, loopback=True, identity=identity),
                login=identity.login,
                audit=Audit(f"w{number}", self.trail.append),
            )
            app = create_app(
                FakeHerder(self.cluster),
                settings=ApiSettings(live_checks=False, protection=protection),
                catalog=FakeCatalog(),
            )
            server = RestServer(app, "127.0.0.1", port)
            server.start()
            self._servers.append(server)

    def api(self, path: str, worker: int = 0) -> str:
        return f"http://localhost:{self.ports[worker]}{path}"

    def stop(self) -> None:
        for server in self._servers:
            server.stop()
