"""The file of alerts: who is told of which incidents, and how fresh connectors have to be."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from cdcworker.connectors.network.webhook_signature import signing_key
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.linux.operator_file import read_bytes, read_yaml

BAD_FILE: Final = declare(
    "alerts.file_invalid",
    "config",
    "The file of alerts cannot be used",
    "Correct the place that the message names; `cdcworker alerts check FILE` reads it as a worker does. It belongs to root or to the "
    "worker's user, and nobody else has the right to write it.",
)
FILE_BYTES_MAX: Final = 1 << 20
SECRET_BYTES_MAX: Final = 65_536
PAGERDUTY: Final = "https://events.pagerduty.com/v2/enqueue"
HOLD_S: Final = 30.0
RESOLVE_S: Final = 60.0
MATCHES_MAX: Final = 65_536
"""The leader matches the names of all connectors and tables every few seconds, and they are seldom others."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|h|)")
PERCENT: Final = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,6})?)\s*%?")
UNIT_S: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0}
DURATION_S_MAX: Final = 7 * 86_400.0

Severity = Literal["warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("warning", "critical")
Kind = Literal["webhook", "slack", "pagerduty"]
KINDS: Final[tuple[Kind, ...]] = ("webhook", "slack", "pagerduty")


@dataclass(frozen=True, slots=True)
class Receiver:
    """Who is told, and of what: incidents of connectors whose names match a pattern, from a severity on."""

    name: str
    kind: Kind
    url: str = field(repr=False)
    """The address of a web hook of Slack is a secret by itself."""
    secret: bytes | None = field(default=None, repr=False)
    """The key that requests are signed with; None: they are not."""
    routing_key: str = field(default="", repr=False)
    """The key of the service in PagerDuty."""
    connectors: tuple[str, ...] = ("*",)
    severity: Severity = "warning"

    def wants(self, connector: str, severity: Severity) -> bool:
        """Returns whether an incident of this connector and severity is told."""
        return matches(connector, self.connectors) and SEVERITIES.index(severity) >= SEVERITIES.index(self.severity)


@dataclass(frozen=True, slots=True)
class Objective:
    """How far connectors, or tables of theirs, may lag behind."""

    name: str
    freshness_s: float
    connectors: tuple[str, ...] = ("*",)
    tables: tuple[str, ...] = ()
    """Patterns of tables, and of topics of sinks; none: the connector as a whole."""
    severity: Severity = "warning"
    target: float | None = None
    """The share of the last thirty days in which it has to hold; None: nobody counts."""


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """All of the file."""

    receivers: tuple[Receiver, ...] = ()
    objectives: tuple[Objective, ...] = ()
    hold_s: float = HOLD_S
    """So long a condition lasts before it is an incident."""
    resolve_s: float = RESOLVE_S
    """So long it is gone before the incident is over."""


@functools.lru_cache(maxsize=MATCHES_MAX)
def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether one of the patterns, with `*` and `?`, is the name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def read(path: Path) -> AlertSettings:
    """Reads the file, and the files of secrets that it names. CdcError `alerts.file_invalid`."""
    return read_yaml(path, parse, BAD_FILE, FILE_BYTES_MAX)


def parse(content: Any) -> AlertSettings:
    """Returns the settings of a file's content. ValueError names the place of a mistake and repeats no value."""
    _check_members(content, {"receivers", "objectives", "hold", "resolve"}, "the file")
    receivers = tuple(_receiver(item, place) for item, place in _items(content, "receivers"))
    objectives = tuple(_objective(item, place) for item, place in _items(content, "objectives"))
    for what, names in (("receivers", receivers), ("objectives", objectives)):
        if len({one.name for one in names}) < len(names):
            raise ValueError(f"{what}: two of them have the same name")
    if not receivers:
        raise ValueError("receivers: expects a list of one or more")
    return AlertSettings(
        receivers,
        objectives,
        _duration(content.get("hold", HOLD_S), "hold"),
        _duration(content.get("resolve", RESOLVE_S), "resolve"),
    )


def _items(content: Mapping[str, Any], name: str) -> Iterable[tuple[Any, str]]:
    found = content.get(name) or []
    if not isinstance(found, list):
        raise ValueError(f"{name}: expects a list of objects")
    return [(item, f"{name}[{number}]") for number, item in enumerate(found)]


def _receiver(item: Any, place: str) -> Receiver:
    _check_members(item, _RECEIVER_MEMBERS, place)
    kind = _one_of(item.get("kind", "webhook"), KINDS, f"{place}.kind")
    for name, of in (("secret", "webhook"), ("routing_key", "pagerduty")):
        if kind != of and (name in item or f"{name}_file" in item):
            raise ValueError(f"{place}.{name}: belongs to receivers of kind {of}")
    secret, routing_key = _text(item, "secret", place), _text(item, "routing_key", place)
    url = _text(item, "url", place) or (PAGERDUTY if kind == "pagerduty" else "")
    _check_url(url, f"{place}.url")
    if kind == "pagerduty" and not routing_key:
        raise ValueError(f"{place}.routing_key: is missing; it is the integration key of a service (Events API v2)")
    try:
        key = signing_key(secret) if secret else None
    except ValueError as exc:
        raise ValueError(f"{place}.secret: {exc}") from None
    return Receiver(
        _name(item, place),
        kind,
        url,
        key,
        routing_key,
        _patterns(item.get("connectors", "*"), f"{place}.connectors"),
        _one_of(item.get("severity", "warning"), SEVERITIES, f"{place}.severity"),
    )


_RECEIVER_MEMBERS: Final = {
    *("name", "kind", "url", "url_file", "secret", "secret_file", "routing_key", "routing_key_file"),
    *("connectors", "severity"),
}


def _objective(item: Any, place: str) -> Objective:
    _check_members(item, {"name", "freshness", "connectors", "tables", "severity", "target"}, place)
    if "freshness" not in item:
        raise ValueError(f"{place}.freshness: is missing; it says how old the newest change may be, such as 60s")
    return Objective(
        _name(item, place),
        _duration(item["freshness"], f"{place}.freshness"),
        _patterns(item.get("connectors", "*"), f"{place}.connectors"),
        _patterns(item["tables"], f"{place}.tables") if "tables" in item else (),
        _one_of(item.get("severity", "warning"), SEVERITIES, f"{place}.severity"),
        _percent(item["target"], f"{place}.target") if "target" in item else None,
    )


def _check_members(item: Any, known: set[str], place: str) -> None:
    if not isinstance(item, dict):
        raise ValueError(f"{place}: expects an object")
    unknown = sorted(str(name) for name in item if name not in known)
    if unknown:
        raise ValueError(f"{place}: there is no {unknown[0][:100]}; there are {', '.join(sorted(known))}")


def _name(item: Mapping[str, Any], place: str) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{place}.name: expects letters, digits, dots, hyphens and underscores, 100 at most")
    return name


def _text(item: Mapping[str, Any], name: str, place: str) -> str:
    """Returns a text that stands in the file, or in another one that it names: without the end of its line."""
    file, text = item.get(f"{name}_file"), item.get(name)
    if file is not None and text is not None:
        raise ValueError(f"{place}: set {name} or {name}_file, not both")
    if file is not None:
        if not isinstance(file, str) or not file.startswith("/"):
            raise ValueError(f"{place}.{name}_file: expects an absolute path")
        try:
            text = read_bytes(Path(file), BAD_FILE, SECRET_BYTES_MAX).decode().strip()
        except CdcError as error:
            raise ValueError(f"{place}.{name}_file: {error.message}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{place}.{name}_file: the file is no text") from None
    if text is None:
        return ""
    if not isinstance(text, str) or not text or not text.isprintable():
        raise ValueError(f"{place}.{name}: expects a text in one line")
    return text


def _check_url(url: str, place: str) -> None:
    try:
        parts = urlsplit(url)
        is_fine = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        # Raises UnicodeError, a ValueError, for parts of a name that are empty or too long to be looked up.
        (parts.hostname or "").encode("idna")
    except ValueError:
        is_fine = False
    if not is_fine or not url.isascii() or " " in url:
        raise ValueError(f"{place}: expects an address that begins with https:// or http://")


def _patterns(value: Any, place: str) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
        raise ValueError(f"{place}: expects a pattern with * and ?, or a list of them")
    return tuple(found)


def _one_of(value: Any, known: tuple[Any, ...], place: str) -> Any:
    if value not in known:
        raise ValueError(f"{place}: expects {' or '.join(known)}")
    return value


def _duration(value: Any, place: str) -> float:
    match = DURATION.fullmatch(str(value)) if isinstance(value, int | float | str) else None
    seconds = float(match[1]) * UNIT_S[match[2]] if match and not isinstance(value, bool) else -1.0
    if not 0 <= seconds <= DURATION_S_MAX:
        raise ValueError(f"{place}: expects a time such as 30s, 5m or 1h, seven days at most")
    return seconds


def _percent(value: Any, place: str) -> float:
    match = (
        PERCENT.fullmatch(str(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    )
    percent = float(match[1]) if match else 0.0
    if not 0 < percent < 100:
        raise ValueError(f"{place}: expects a share of the time in percent, such as 99.9%")
    return percent / 100
