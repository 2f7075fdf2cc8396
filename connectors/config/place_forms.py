"""Forms of the values by which a config names places outside: addresses of services, URIs of stores, files of this machine.

A form is strict, so that no client reads another host or path in a value than the one that was judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.config import allowed_hosts
from cdcworker.connectors.config.definition import Validator

Places = Callable[[str], Sequence[str]]
"""Returns the names of places that are in a value."""
HOST: Final = r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})"
PLACE: Final = rf"(?P<host>{HOST})(?P<port>:[0-9]{{1,5}})?"
_HTTP: Final = re.compile(rf"https?://{PLACE}(?:/[!-\[\]-~]*)?")
_RELATIVE: Final = re.compile(r"[A-Za-z0-9._~-]+(?:/[A-Za-z0-9._~-]+)*")
_PLAIN_PATH: Final = r"(?P<path>/[^\\?#\x00-\x20\x7f]*)?"
_NAME: Final = r"[A-Za-z0-9._-]{1,253}"
BUCKETS: Final = ("s3", "s3a", "s3n", "gs", "oss", "cosn", "obs", "viewfs")
"""Schemes whose URIs name a bucket or a table of mounts: the operator's settings of Hadoop say where that is."""
NAME_SERVICES: Final = ("hdfs", "ofs")
"""Schemes whose URIs name a host, or a service that the operator's settings of Hadoop describe."""
WEB_FILES: Final = ("webhdfs", "swebhdfs", "adl")
AZURE: Final = ("abfs", "abfss", "wasb", "wasbs")
STORES: Final = (*BUCKETS, *NAME_SERVICES, *WEB_FILES, *AZURE)
_STORE: Final = re.compile(
    rf"(?:(?P<bucket>{'|'.join(BUCKETS)})://{_NAME}"
    rf"|(?P<service>{'|'.join(NAME_SERVICES)})://(?:(?P<logical>{_NAME})|{PLACE})?"
    rf"|(?:{'|'.join(WEB_FILES)})://(?P<web>{HOST})(?::[0-9]{{1,5}})?"
    rf"|(?:{'|'.join(AZURE)})://[A-Za-z0-9$._-]{{1,253}}@(?P<azure>{_NAME})(?::[0-9]{{1,5}})?)"
    rf"{_PLAIN_PATH}"
)


def _none(_value: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class PlaceForm:
    """The form of a value."""

    problem: Callable[[str], str | None]
    """Returns what is wrong with the value, without repeating it; None: nothing."""
    hosts: Places = _none
    """Returns the hosts that a value of this form names."""
    services: Places = _none
    """Returns names of hosts that may be names of services instead, which no DNS knows."""
    paths: Places = _none
    """Returns the files and folders of this machine that a value of this form names."""


def text_of(pattern: str, expectation: str) -> PlaceForm:
    """Returns the form of values that match a pattern as a whole and name no place."""
    compiled = re.compile(pattern)
    return PlaceForm(lambda value: None if compiled.fullmatch(value) else f"expects {expectation}")


def one_of(*choices: str) -> PlaceForm:
    """Returns the form of values that are one of a few words."""
    return PlaceForm(lambda value: None if value in choices else f"expects one of {', '.join(choices)}")


def host_problem(host: str) -> str | None:
    """Returns what is wrong with a host by its form alone, an address in brackets included."""
    return allowed_hosts.host_list(bare(host))


def bare(host: str) -> str:
    """Returns a host without the brackets of an address of version 6."""
    return host[1:-1] if host.startswith("[") else host


def _http_hosts(value: str) -> Sequence[str]:
    found = _HTTP.fullmatch(value)
    return [bare(found["host"])] if found else ()


def http_problem(value: str) -> str | None:
    """Returns what is wrong with an address of a web service. A login in it is refused: it hides where the host begins."""
    hosts = _http_hosts(value)
    return allowed_hosts.host_list(hosts[0]) if hosts else "expects http://host or https://host, without a login"


def _http_or_path_problem(value: str) -> str | None:
    return None if _RELATIVE.fullmatch(value) and ".." not in value.split("/") else http_problem(value)


def _host_or_http(value: str) -> str:
    return value if "://" in value else f"https://{value}"


HTTP: Final = PlaceForm(http_problem, _http_hosts)
HTTP_OR_PATH: Final = PlaceForm(_http_or_path_problem, _http_hosts)
"""An address, or a path at the service that another property names."""
HOST_OR_HTTP: Final = PlaceForm(
    lambda value: http_problem(_host_or_http(value)), lambda value: _http_hosts(_host_or_http(value))
)


# -- files --------------------------------------------------------------------------------------------------------------


def path_problem(value: str) -> str | None:
    """Returns what is wrong with the absolute path of a file."""
    fine = value.startswith("/") and ".." not in value.split("/") and not re.search(r"[\x00-\x1f\x7f]", value)
    return None if fine else "expects an absolute path without .."


PATH: Final = PlaceForm(path_problem, paths=lambda value: [value])


def store_problem(value: str) -> str | None:
    """Returns what is wrong with the URI of a store that holds files."""
    found = _STORE.fullmatch(value)
    if not found:
        return f"expects a URI of one of {', '.join(STORES)}, without a login, options or .."
    if ".." in (found["path"] or "").split("/"):
        return "expects a URI without .."
    hosts = [*store_hosts(value), *store_services(value)]
    return next(filter(None, map(allowed_hosts.host_list, hosts)), None)


def store_hosts(value: str) -> Sequence[str]:
    """Returns the host that the URI of a store names."""
    found = _STORE.fullmatch(value)
    hosts: Iterable[str | None] = (found["host"], found["web"], found["azure"]) if found else ()
    return [bare(host) for host in hosts if host]


def store_services(value: str) -> Sequence[str]:
    """Returns the host, or the service of Hadoop's, that the URI of a store names without a port."""
    found = _STORE.fullmatch(value)
    return [found["logical"]] if found and found["logical"] else ()


def _place_problem(value: str) -> str | None:
    return store_problem(value) if "://" in value else path_problem(value)


def _place_paths(value: str) -> Sequence[str]:
    return () if "://" in value else [value]


FILES: Final = PlaceForm(_place_problem, store_hosts, store_services, _place_paths)
"""A folder of this machine, or the URI of a store."""


def validator(form: PlaceForm) -> Validator:
    """Returns the validator of a key whose value has this form or is empty."""
    return lambda value: form.problem(value) if value else None
