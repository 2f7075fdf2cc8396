"""A container of Azure's Blob Storage, by the config of a sink: its keys, what is wrong with them, and the client that they describe."""

from __future__ import annotations

import binascii
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigKey, has_reference
from cdcworker.connectors.config.place_forms import HTTP, validator
from cdcworker.connectors.sink_errors import TARGET_AUTH, TARGET_BUCKET, TARGET_RIGHTS, TARGET_STORE_UNFIT
from cdcworker.connectors.warehouses.storage.azure_container import AzureContainer
from cdcworker.connectors.warehouses.storage.judged_connections import open_session
from cdcworker.connectors.warehouses.stores.judged_hosts import JudgedHosts
from cdcworker.connectors.warehouses.stores.s3_config import clean_prefix
from cdcworker.schemas.errors import CdcError

GROUP: Final = "Warehouse"
ENDPOINT: Final = "warehouse.azure.endpoint"
ACCOUNT_KEY: Final = "warehouse.azure.account.key"
SAS_TOKEN: Final = "warehouse.azure.sas.token"  # noqa: S105  the name of a key
KEY_OF_ERROR: Final = {TARGET_BUCKET: "warehouse.path", TARGET_AUTH: ACCOUNT_KEY, TARGET_RIGHTS: ACCOUNT_KEY}
_URI: Final = re.compile(
    r"abfss?://(?P<container>[a-z0-9][a-z0-9-]{1,61}[a-z0-9])@(?P<account>[a-z0-9]{3,24})"
    r"\.(?P<domain>(?:dfs|blob)\.[a-z0-9.-]{1,100})(?:/(?P<prefix>.*))?"
)
_SIGNATURE: Final = re.compile(r"\??(?:[a-z]+=[^&\s]*&)*sig=[^&\s]+(?:&[a-z]+=[^&\s]*)*")
"""Azure's client takes another text for the key of an account."""
_NO_SIGNATURE: Final = "expects a shared access signature, names and values such as sv=…&sig=…, without an address"

KEYS: Final = (
    ConfigKey(
        ACCOUNT_KEY,
        "PASSWORD",
        group=GROUP,
        doc="A key of the storage account. With abfss:// for Parquet this or warehouse.azure.sas.token is needed: what the worker's"
        " machine could log in with is not for connectors.",
        connects=False,
    ),
    ConfigKey(
        SAS_TOKEN,
        "PASSWORD",
        group=GROUP,
        doc="A shared access signature for the container that lets list, read, create, write and delete. A task fails when it has"
        " expired.",
        connects=False,
    ),
    ConfigKey(
        ENDPOINT,
        default="",
        importance="LOW",
        group=GROUP,
        validator=validator(HTTP),
        doc="Address of the account's blob service; empty: that of the account in warehouse.path.",
        connects=True,
    ),
)


def is_place(path: str) -> bool:
    """Returns whether `warehouse.path` names a container of Azure's."""
    return path.startswith(("abfss://", "abfs://"))


def is_given(config: Mapping[str, Any]) -> bool:
    """Returns whether the config says how the container is reached."""
    return bool(config[ACCOUNT_KEY] or config[SAS_TOKEN] or config[ENDPOINT])


def problems(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Returns what is wrong with the keys of a container."""
    if not _URI.fullmatch(config["warehouse.path"]):
        yield "warehouse.path", "expects abfss://container@account.dfs.core.windows.net/prefix"
    key, signature = config[ACCOUNT_KEY], config[SAS_TOKEN]
    if bool(key) == bool(signature):
        yield ACCOUNT_KEY, f"expects a value, or {SAS_TOKEN} one, and not both"
    if key and not has_reference(key.reveal()) and not _is_key(key.reveal()):
        yield ACCOUNT_KEY, "expects a key in base64"
    if signature and not has_reference(signature.reveal()) and not _is_signature(signature.reveal()):
        yield SAS_TOKEN, _NO_SIGNATURE
    if importlib.util.find_spec("azure.storage.blob") is None:
        yield "warehouse.path", "needs the worker's extra azure: pip install 'cdcworker[azure]'"


def open_store(config: Mapping[str, Any], roots: Sequence[str]) -> AzureContainer:
    """Returns the container that a config names, after its host has been judged. CdcError `config.host_not_allowed` or
    `config.tls_not_enough` when the worker does not open it to connectors."""
    found = _URI.fullmatch(config["warehouse.path"])
    if found is None:
        raise CdcError(TARGET_STORE_UNFIT, "warehouse.path names no container", where={"key": "warehouse.path"})
    domain = found["domain"].replace("dfs.", "blob.", 1)
    endpoint = str(config[ENDPOINT]).rstrip("/") or f"https://{found['account']}.{domain}"
    hosts = JudgedHosts(ENDPOINT, roots)
    hosts.admit(endpoint)
    key, signature = config[ACCOUNT_KEY], config[SAS_TOKEN]
    if key and not _is_key(key.reveal()):
        raise CdcError(TARGET_AUTH, f"{ACCOUNT_KEY} is no key in base64", where={"key": ACCOUNT_KEY})
    if signature and not _is_signature(signature.reveal()):
        raise CdcError(TARGET_AUTH, f"{SAS_TOKEN} {_NO_SIGNATURE}", where={"key": SAS_TOKEN})

    def client() -> Any:
        import requests
        from azure.core.pipeline.transport import RequestsTransport
        from azure.storage.blob import ContainerClient

        login: Any = (
            signature.reveal() if signature else {"account_name": found["account"], "account_key": key.reveal()}
        )
        session = open_session(requests.Session(), hosts.admit_request)
        return ContainerClient(
            endpoint,
            found["container"],
            credential=login,
            transport=RequestsTransport(session=session, session_owner=False, use_env_settings=False),
            retry_total=0,
            permit_redirects=False,
            max_single_put_size=1 << 40,
            max_single_get_size=1 << 40,
            logging_enable=False,
        )

    name = f"{found['container']}@{found['account']}.{found['domain']}"
    return AzureContainer(client, name, clean_prefix(found["prefix"]))


def _is_signature(text: str) -> bool:
    return bool(_SIGNATURE.fullmatch(text))


def _is_key(text: str) -> bool:
    try:
        return bool(binascii.a2b_base64(text, strict_mode=True))
    except ValueError:
        return False
