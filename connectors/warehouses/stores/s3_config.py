"""Where a warehouse's bucket is, by the config of a sink: its keys, what is wrong with them, and the client that they describe."""

from __future__ import annotations

import importlib.util
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from cdcworker.connectors.config import refusals
from cdcworker.connectors.config.definition import ConfigKey, Secret
from cdcworker.connectors.config.place_forms import HTTP, store_problem, validator
from cdcworker.connectors.sink_errors import TARGET_AUTH, TARGET_BUCKET, TARGET_RIGHTS, TARGET_STORE_UNFIT
from cdcworker.connectors.warehouses.storage.s3_bucket import S3Bucket
from cdcworker.connectors.warehouses.storage.s3_client import S3Login, open_client
from cdcworker.connectors.warehouses.stores.judged_hosts import JudgedHosts
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
        of_server=True,
    ),
    ConfigKey(
        PATH_STYLE,
        "BOOLEAN",
        False,
        importance="LOW",
        group=GROUP,
        doc="Whether the bucket stands in the path of an address, not in the name of the host; most stores that are not Amazon's"
        " need it.",
        of_server=True,
        connects=False,
    ),
    ConfigKey(
        ACCESS_KEY,
        default="",
        group=GROUP,
        doc="Access key of the user that writes to the bucket. Needed with s3:// for Parquet, and for Delta and Iceberg unless Spark's"
        " clients open it: what the worker's machine could log in with is not for connectors.",
        connects=False,
        of_server=True,
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


def is_given(config: Mapping[str, Any]) -> bool:
    """Returns whether the config says how the bucket is reached."""
    return any(config[name] for name in (ACCESS_KEY, SECRET_KEY, ENDPOINT, SESSION_TOKEN))


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


def bucket_of(config: Mapping[str, Any], roots: Sequence[str]) -> S3Bucket:
    """Returns the bucket that a config names, after its hosts have been judged. CdcError `config.host_not_allowed` or
    `config.tls_not_enough` when the worker does not open it to connectors."""
    found = _URI.fullmatch(config["warehouse.path"])
    if found is None or store_problem(config["warehouse.path"]) or not _BUCKET.fullmatch(found["bucket"]):
        raise CdcError(TARGET_STORE_UNFIT, "warehouse.path names no bucket", where={"key": "warehouse.path"})
    hosts, endpoint, path_style = _hosts(config, found["bucket"], roots)
    prefix = clean_prefix(found["prefix"])
    login = S3Login(config[ACCESS_KEY], _text(config[SECRET_KEY]) or "", _text(config[SESSION_TOKEN]))

    def client() -> Any:
        return open_client(endpoint, config[REGION], login, path_style=path_style, admit=hosts.admit_request)

    return S3Bucket(client, found["bucket"], prefix)


def clean_prefix(prefix: str | None) -> str:
    """Returns a prefix without / at its ends and without empty parts."""
    return "/".join(part for part in (prefix or "").split("/") if part)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _text(secret: Secret | None) -> str | None:
    return secret.reveal() if secret else None


def _hosts(config: Mapping[str, Any], bucket: str, roots: Sequence[str]) -> tuple[JudgedHosts, str, bool]:
    """Returns the hosts of a bucket, which have been judged, the endpoint, and whether the bucket stands in the path of an address."""
    endpoint = str(config[ENDPOINT]) or f"https://s3.{config[REGION]}.amazonaws.com"
    parts = urlsplit(endpoint)
    hosts = JudgedHosts(ENDPOINT, roots)
    hosts.admit(endpoint)
    # An address is no name that a bucket could stand before.
    path_style = bool(config[PATH_STYLE]) or _is_address(parts.hostname or "")
    if not path_style:
        hosts.admit(parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl())
    return hosts, endpoint, path_style
