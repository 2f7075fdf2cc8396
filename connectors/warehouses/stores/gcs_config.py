"""A bucket of Google Cloud Storage, by the config of a sink: its keys, what is wrong with them, and the client that they describe."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.config import refusals
from cdcworker.connectors.config.definition import ConfigKey, has_reference
from cdcworker.connectors.config.place_forms import HTTP, validator
from cdcworker.connectors.sink_errors import TARGET_AUTH, TARGET_BUCKET, TARGET_RIGHTS, TARGET_STORE_UNFIT
from cdcworker.connectors.warehouses.storage.answer_codes import is_passing
from cdcworker.connectors.warehouses.storage.gcs_bucket import GcsBucket, GcsClient
from cdcworker.connectors.warehouses.storage.judged_connections import open_session
from cdcworker.connectors.warehouses.stores.judged_hosts import JudgedHosts
from cdcworker.connectors.warehouses.stores.s3_config import clean_prefix
from cdcworker.schemas.errors import CdcError

GROUP: Final = "Warehouse"
ENDPOINT: Final = "warehouse.gcs.endpoint"
CREDENTIALS: Final = "warehouse.gcs.credentials"
KEY_OF_ERROR: Final = {TARGET_BUCKET: "warehouse.path", TARGET_AUTH: CREDENTIALS, TARGET_RIGHTS: CREDENTIALS}
_URI: Final = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(?P<prefix>.*))?")
_GOOGLE: Final = "https://storage.googleapis.com"
_SCOPES: Final = ("https://www.googleapis.com/auth/devstorage.read_write",)
_MEMBERS: Final = ("client_email", "private_key", "token_uri")

KEYS: Final = (
    ConfigKey(
        CREDENTIALS,
        "PASSWORD",
        group=GROUP,
        doc="The key of a service account that writes to the bucket, as the JSON that Google gives. Needed with gs:// for Parquet;"
        " what the worker's machine could log in with is not for connectors. Its token_uri is where a token is asked for.",
        connects=True,
    ),
    ConfigKey(
        ENDPOINT,
        default="",
        importance="LOW",
        group=GROUP,
        validator=validator(HTTP),
        doc="Address of the API of Google Cloud Storage; empty: Google's.",
        connects=True,
    ),
)


def is_place(path: str) -> bool:
    """Returns whether `warehouse.path` names a bucket of Google's."""
    return path.startswith("gs://")


def is_given(config: Mapping[str, Any]) -> bool:
    """Returns whether the config says how the bucket is reached."""
    return bool(config[CREDENTIALS] or config[ENDPOINT])


def problems(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Returns what is wrong with the keys of a bucket."""
    if not _URI.fullmatch(config["warehouse.path"]):
        yield "warehouse.path", "expects gs://bucket/prefix with the name of a bucket"
    secret = config[CREDENTIALS]
    if not secret:
        yield CREDENTIALS, refusals.missing(CREDENTIALS)
    elif not has_reference(secret.reveal()) and _account(secret.reveal()) is None:
        yield CREDENTIALS, f"expects the JSON of a service account's key, with {', '.join(_MEMBERS)}"
    if importlib.util.find_spec("google.auth") is None:
        yield "warehouse.path", "needs the worker's extra gcs: pip install 'cdcworker[gcs]'"


def open_store(config: Mapping[str, Any], roots: Sequence[str]) -> GcsBucket:
    """Returns the bucket that a config names, after its hosts have been judged. CdcError `config.host_not_allowed` or
    `config.tls_not_enough` when the worker does not open it to connectors."""
    found = _URI.fullmatch(config["warehouse.path"])
    if found is None:
        raise CdcError(TARGET_STORE_UNFIT, "warehouse.path names no bucket", where={"key": "warehouse.path"})
    endpoint = str(config[ENDPOINT]).rstrip("/") or _GOOGLE
    hosts = JudgedHosts(ENDPOINT, roots)
    hosts.admit(endpoint)
    secret = config[CREDENTIALS]
    account = _account(secret.reveal() if secret else "")
    if account is None:
        text = "warehouse.gcs.credentials is no key of a service account"
        raise CdcError(TARGET_AUTH, text, where={"key": CREDENTIALS})
    JudgedHosts(CREDENTIALS, roots).admit(account["token_uri"])

    def client() -> GcsClient:
        return GcsClient(_session(account, hosts), endpoint)

    return GcsBucket(client, found["bucket"], clean_prefix(found["prefix"]))


def _session(account: Mapping[str, str], hosts: JudgedHosts) -> Any:
    """Returns a session that logs in with a service account's key."""
    import requests
    from google.auth.transport.requests import AuthorizedSession, Request
    from google.oauth2.service_account import Credentials

    try:
        login = Credentials.from_service_account_info(account, scopes=_SCOPES)
    except ValueError as exc:
        text = f"the key of the service account cannot be read ({type(exc).__name__})"
        raise CdcError(TARGET_AUTH, text, where={"key": CREDENTIALS}) from None
    tokens = open_session(requests.Session(), hosts.admit_request)
    tokens.hooks["response"].append(_require_answer)
    return open_session(AuthorizedSession(login, auth_request=Request(tokens)), hosts.admit_request)


def _require_answer(said: Any, *_: Any, **__: Any) -> None:
    """A hook of requests' by which a server of tokens that is down is no refusal of the credentials."""
    import requests

    if is_passing(said.status_code) or (said.ok and not isinstance(said.json(), dict)):
        said.close()  # nobody reads the rest of the answer
        raise requests.HTTPError(f"no token ({said.status_code})")


def _account(text: str) -> dict[str, str] | None:
    """Returns the members of a service account's key; None: it is none."""
    try:
        told = json.loads(text)
    except ValueError:
        return None
    if not isinstance(told, dict) or not all(isinstance(told.get(name), str) for name in _MEMBERS):
        return None
    return told if HTTP.problem(told["token_uri"]) is None else None
