"""Where a warehouse's bucket is, by the config of a sink: its keys, what is wrong with them, and the client that they describe."""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.config import refusals
from cdcworker.connectors.config.definition import ConfigKey, Secret
from cdcworker.connectors.config.place_forms import HTTP, store_problem, validator
from cdcworker.connectors.sink_errors import TARGET_AUTH, TARGET_BUCKET, TARGET_RIGHTS, TARGET_STORE_UNFIT
from cdcworker.connectors.warehouses.places import admit_places
from cdcworker.connectors.warehouses.storage.s3_bucket import S3Bucket
from cdcworker.connectors.warehouses.storage.s3_client import Login, open_client
from cdcworker.schemas.errors import CdcError

GROUP: Final = "Warehouse"
ENDPOINT: Final = "warehouse.s3.endpoint"
REGION: Final = "warehouse.s3.region"
PATH_STYLE: Final = "warehouse.s3.path.style.access"
ACCESS_KEY: Final = "warehouse.s3.access.key"
SECRET_KEY: Final = "warehouse.s3.secret.key"  # noqa: S105  the name of a key
SESSION_TOKEN: Final = "warehouse.s3.session.token"  # noqa: S105  the name of a key
KEY_OF_ERROR: Final = {TARGET_BUCKET: "warehouse.path", TARGET_AUTH: ACCESS_KEY, TARGET_RIGHTS: ACCESS_KEY}
"""The keys that cause what a bucket refuses; of all else it is the endpoint."""
_REGION: Final = re.compile(r"[a-z0-9-]{1,64}")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_URI: Final = re.compile(r"s3a?://(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?")
JUDGED_S: Final = 30.0
"""For so long the addresses of a host count as judged."""


def _region_problem(value: str) -> str | None:
    return None if _REGION.fullmatch(value) else "expects the name of a region, such as eu-central-1"


KEYS: Final = (
    ConfigKey(
        ENDPOINT,
        default="",
        group=GROUP,
        validator=validator(HTTP),
        doc="Address of a store that speaks S3, such as https://minio.example:9000; empty: Amazon's, by the region.",
        connects=True,
    ),
    ConfigKey(
        REGION,
        default="us-east-1",
        importance="LOW",
        group=GROUP,
        validator=_region_problem,
        doc="Region of the bucket; requests are signed for it.",
        connects=False,
    ),
    ConfigKey(
        PATH_STYLE,
        "BOOLEAN",
        False,
        importance="LOW",
        group=GROUP,
        doc="Whether the bucket stands in the path of an address, not in the name of the host; most stores that are not Amazon's"
        " need it.",
        connects=False,
    ),
    ConfigKey(
        ACCESS_KEY,
        default="",
        group=GROUP,
        doc="Access key of the user that writes to the bucket. Needed with s3:// for Parquet, and for Delta unless Spark's Hadoop client"
        " opens it: what the worker's machine could log in with is not for connectors.",
        connects=False,
    ),
    ConfigKey(SECRET_KEY, "PASSWORD", group=GROUP, doc="Secret key of that user.", connects=False),
    ConfigKey(
        SESSION_TOKEN,
        "PASSWORD",
        importance="LOW",
        group=GROUP,
        doc="Session token of temporary credentials. A task fails when they have expired.",
        connects=False,
    ),
)


def is_bucket(path: str) -> bool:
    """Returns whether `warehouse.path` names a bucket of S3."""
    return path.startswith(("s3://", "s3a://"))


def problems(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Returns what is wrong with the keys of a bucket."""
    found = _URI.fullmatch(config["warehouse.path"])
    if found is None or not _BUCKET.fullmatch(found["bucket"]):
        yield "warehouse.path", "expects s3://bucket/prefix with the name of a bucket"
    for name in (ACCESS_KEY, SECRET_KEY):
        if not config[name]:
            yield name, refusals.missing(name)
    if importlib.util.find_spec("botocore") is None:
        yield "warehouse.path", "needs the worker's extra s3: pip install 'cdcworker[s3]'"


def probe(config: Mapping[str, Any]) -> list[CheckFinding]:
    """Asks the bucket for a name, and returns what is wrong, at the key that causes it."""
    try:
        bucket_of(config, ()).probe()
    except CdcError as exc:
        key = KEY_OF_ERROR.get(exc.code, ENDPOINT)
        return [CheckFinding(key, "error", exc.code, exc.message, exc.hint)]
    return []


def bucket_of(config: Mapping[str, Any], roots: Sequence[str]) -> S3Bucket:
    """Returns the bucket that a config names, after its hosts have been judged. CdcError `config.host_not_allowed` or
    `config.tls_not_enough` when the worker does not open it to connectors."""
    found = _URI.fullmatch(config["warehouse.path"])
    if found is None or store_problem(config["warehouse.path"]) or not _BUCKET.fullmatch(found["bucket"]):
        raise CdcError(TARGET_STORE_UNFIT, "warehouse.path names no bucket", where={"key": "warehouse.path"})
    hosts = _Hosts(config, found["bucket"], roots)
    hosts.admit()
    prefix = "/".join(part for part in (found["prefix"] or "").split("/") if part)
    login = Login(config[ACCESS_KEY], _text(config[SECRET_KEY]) or "", _text(config[SESSION_TOKEN]))

    def client() -> Any:
        return open_client(hosts.endpoint, config[REGION], login, path_style=hosts.path_style, admit=hosts.admit_url)

    return S3Bucket(client, found["bucket"], prefix)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _text(secret: Secret | None) -> str | None:
    return secret.reveal() if secret else None


@dataclass(slots=True)
class _Hosts:
    """The hosts that requests go to."""

    config: Mapping[str, Any]
    bucket: str
    roots: Sequence[str]
    judged: dict[str, float] = field(default_factory=dict)
    """When each of them was judged."""

    @property
    def endpoint(self) -> str:
        return str(self.config[ENDPOINT]) or f"https://s3.{self.config[REGION]}.amazonaws.com"

    @property
    def path_style(self) -> bool:
        """Whether the bucket stands in the path; an address is no name that a bucket could stand before."""
        return bool(self.config[PATH_STYLE]) or _is_address(urlsplit(self.endpoint).hostname or "")

    def admit(self) -> None:
        """Judges the addresses of the hosts as they are now."""
        parts = urlsplit(self.endpoint)
        self._admit(self.endpoint, parts.netloc)
        if not self.path_style:
            host = f"{self.bucket}.{parts.netloc}"
            self._admit(parts._replace(netloc=host).geturl(), host)

    def admit_url(self, url: str) -> None:
        """Judges the host of a request again from time to time."""
        parts = urlsplit(url)
        if time.monotonic() - self.judged.get(parts.netloc, -JUDGED_S) >= JUDGED_S:
            self._admit(f"{parts.scheme}://{parts.netloc}", parts.netloc)

    def _admit(self, address: str, host: str) -> None:
        admit_places(HTTP, address, ENDPOINT, self.roots)
        self.judged[host] = time.monotonic()
