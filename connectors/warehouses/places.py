"""The hosts and paths in a value of a config, judged before a client of a store or a catalog gets the value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdcworker.connectors.config import allowed_hosts, tls_policy
from cdcworker.connectors.config.allowed_paths import allowed_path
from cdcworker.connectors.config.place_forms import PlaceForm
from cdcworker.connectors.sink_errors import TARGET_UNREACHABLE
from cdcworker.schemas.errors import CdcError

_WITH_TLS: Final = {"http": "https", "webhdfs": "swebhdfs", "wasb": "wasbs"}
"""Schemes without TLS, each with the one for the same service with it."""


def admit_places(form: PlaceForm, value: str, key: str, roots: Sequence[str], *, is_proxy: bool = False) -> None:
    """Judges the paths of a resolved value by the worker's file roots, and its hosts by the addresses to which they lead.
    A scheme without TLS is judged by `connector.tls`, but for a proxy, which passes the TLS of its clients through.

    The client looks a name up again when it connects. CdcError `config.host_not_allowed`, `config.tls_not_enough` or
    `file.path_not_allowed`; `spark.target_unreachable` where a name leads to no address at this moment.
    """
    scheme, sign, _ = value.partition("://")
    if sign and scheme in _WITH_TLS and not is_proxy:
        tls_policy.check(key, f"{scheme} instead of {_WITH_TLS[scheme]}", tls_policy.PLAIN, form.hosts(value))
    for path in form.paths(value):
        allowed_path(path, roots, key)
    for host in form.hosts(value):
        _admit_host(host, key)
    for service in form.services(value):
        _admit_host(service, key, may_be_service=True)


def _admit_host(host: str, key: str, *, may_be_service: bool = False) -> None:
    try:
        allowed_hosts.judge(host, key)
    except allowed_hosts.UnknownHost:
        if not may_be_service:
            where = {"key": key, "host": host}
            raise CdcError(TARGET_UNREACHABLE, f"the host of {key} leads to no address", where=where) from None
        allowed_hosts.require_named(host, key)
