"""The kinds of object stores that a warehouse may lie in, by the scheme of `warehouse.path`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.config.definition import ConfigKey
from cdcworker.connectors.warehouses.storage.object_store import ObjectStore
from cdcworker.connectors.warehouses.stores import azure_config, gcs_config, s3_config
from cdcworker.schemas.errors import CdcError

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoreKind:
    """How configs name a kind of store."""

    keys: tuple[ConfigKey, ...]
    is_place: Callable[[str], bool]
    """Returns whether a path names a place in such a store."""
    is_given: Callable[[Config], bool]
    """Returns whether a config says how this process reaches it."""
    problems: Callable[[Config], Iterable[tuple[str, str]]]
    open: Callable[[Config, Sequence[str]], ObjectStore]
    """Returns the files below the place that a config names, after its hosts have been judged, with the folders of this machine that are
    open to connectors."""
    key_of_error: Mapping[str, str]
    """The keys that cause what a store refuses; of all else it is the endpoint."""
    endpoint: str


KINDS: Final = (
    StoreKind(
        s3_config.KEYS,
        s3_config.is_bucket,
        s3_config.is_given,
        s3_config.problems,
        s3_config.bucket_of,
        s3_config.KEY_OF_ERROR,
        s3_config.ENDPOINT,
    ),
    StoreKind(
        gcs_config.KEYS,
        gcs_config.is_place,
        gcs_config.is_given,
        gcs_config.problems,
        gcs_config.open_store,
        gcs_config.KEY_OF_ERROR,
        gcs_config.ENDPOINT,
    ),
    StoreKind(
        azure_config.KEYS,
        azure_config.is_place,
        azure_config.is_given,
        azure_config.problems,
        azure_config.open_store,
        azure_config.KEY_OF_ERROR,
        azure_config.ENDPOINT,
    ),
)
KEYS: Final = tuple(key for kind in KINDS for key in kind.keys)


def kind_of(path: str) -> StoreKind | None:
    """Returns the kind of store that a path names; None: it is none of these."""
    return next((kind for kind in KINDS if kind.is_place(path)), None)


def given_keys(config: Config) -> list[str]:
    """Returns the keys of stores that a config has with another value than the default."""
    return [key.name for key in KEYS if config[key.name] not in (key.default, None)]


def probe(config: Config) -> list[CheckFinding]:
    """Asks the store for a name, and returns what is wrong, at the key that causes it."""
    kind = kind_of(config["warehouse.path"])
    if kind is None:
        return []
    try:
        kind.open(config, ()).probe()
    except CdcError as exc:
        key = kind.key_of_error.get(exc.code, kind.endpoint)
        return [CheckFinding(key, "error", exc.code, exc.message, exc.hint)]
    return []
