"""What a look at the server says before a task runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.record_sink.errors import TARGET_REFUSES
from cdcworker.connectors.targets.opensearch.client import SearchClient
from cdcworker.connectors.targets.opensearch.config import holds_events, is_stream
from cdcworker.connectors.targets.opensearch.names import names_of, path_of

OLDEST: Final = {"opensearch": 1, "elasticsearch": 7}
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DEFAULT_MS: Final = 60_000
"""How long an index remembers deleted documents unless it says otherwise."""


def findings(client: SearchClient, config: Mapping[str, Any]) -> Sequence[CheckFinding]:
    """Returns what is wrong. Raises CdcError."""
    version = client.ask("GET", "/").json().get("version", {})
    kind = str(version.get("distribution", "elasticsearch"))
    major = int(re.match(r"[0-9]*", str(version.get("number", "")))[0] or 0)  # type: ignore[index]  # it matches any text
    if major < OLDEST.get(kind, 0):
        text = f"the server is older than {OLDEST[kind]}.0, whose indexes have types: it is not supported"
        return [CheckFinding("connection.url", "error", TARGET_REFUSES, text)]
    creates = config["index.create"] and config["external.resource.usage"] == "DISABLED"
    return [one for name in sorted(set(names_of(config).values())) for one in _of_index(client, config, name, creates)]


def _of_index(client: SearchClient, config: Mapping[str, Any], name: str, creates: bool) -> Iterator[CheckFinding]:
    path = f"/{path_of(name)}/_settings?flat_settings=true"
    reply = client.ask("GET", path, None, (404,))
    if reply.status == 404:
        if not creates:
            text = f"there is no {'data stream' if is_stream(config) else 'index'} {name}, and none is created"
            yield CheckFinding("index.create", "error", TARGET_REFUSES, text)
        return
    for one in reply.json().values():
        settings = one.get("settings", {})
        kept_ms = duration_ms(settings.get("index.gc_deletes"))
        if not holds_events(config) and kept_ms < config["index.gc.deletes.ms"]:
            text = (
                f"index {name} remembers deleted documents for {kept_ms} ms: behind that a late write of a former owner could bring"
                f" one back. Set its index.gc_deletes to {config['index.gc.deletes.ms']}ms"
            )
            yield CheckFinding("index.gc.deletes.ms", "warning", TARGET_REFUSES, text)
            return


def duration_ms(text: str | None) -> int:
    """Returns a duration of the server's, such as 60s, in ms."""
    found = re.fullmatch(r"([0-9]{1,15})(ms|s|m|h|d)", text or "")
    return int(found[1]) * _UNITS_MS[found[2]] if found else DEFAULT_MS
