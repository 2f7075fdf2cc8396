"""The hosts that requests to an object store go to, judged when a config is read and again from time to time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from cdcworker.connectors.config.place_forms import HTTP
from cdcworker.connectors.warehouses.places import admit_places

JUDGED_S: Final = 30.0
"""For so long the addresses of a host count as judged."""


@dataclass(slots=True)
class JudgedHosts:
    """`key` is the key of the config whose value names them."""

    key: str
    roots: Sequence[str]
    judged: dict[str, float] = field(default_factory=dict)
    """When each of them was judged."""

    def admit(self, url: str) -> None:
        """Judges the host of a URL. CdcError `config.host_not_allowed` or `config.tls_not_enough`."""
        parts = urlsplit(url)
        admit_places(HTTP, f"{parts.scheme}://{parts.netloc}", self.key, self.roots)
        self.judged[parts.netloc] = time.monotonic()

    def admit_request(self, url: str) -> None:
        """The same where it was not done a moment ago."""
        if time.monotonic() - self.judged.get(urlsplit(url).netloc, -JUDGED_S) >= JUDGED_S:
            self.admit(url)
