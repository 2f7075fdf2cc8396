"""Which hosts connectors may open connections to: judged by the address that a name leads to, at every connection."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.config import server_authentication, worker_logins
from cdcworker.schemas.errors import CdcError, declare

NOT_ALLOWED: Final = declare(
    "config.host_not_allowed",
    "config",
    "The worker's settings do not let connectors reach this host",
    "Name another host, or add it to the worker property connector.hosts.allowed; addresses of the link, of clouds' "
    "metadata services and of no single machine stay closed.",
)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

NEVER: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "169.254.0.0/16",
        "100.100.100.200/32",
        "168.63.129.16/32",
        "192.0.0.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/128",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
        "fd00:ec2::/32",
        "fd20:ce::/32",
    )
)
"""No database is there; the metadata services of the clouds are, which hand credentials to whoever asks."""
_CARRIERS: Final = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_COMPATIBLE: Final = ipaddress.ip_network("::/96")
HOSTS_MAX: Final = 16
ADDRESSES_MAX: Final = 8
_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_NUMBER: Final = re.compile(r"(0[xX][0-9a-fA-F]*|[0-9]+)")


@dataclass(frozen=True)
class HostPolicy:
    """`allowed` empty: everything but what is never allowed. `loopback`: whether this machine itself may be reached."""

    allowed: tuple[Network | str, ...] = ()
    loopback: bool = True
    lake: tuple[Network | str, ...] = ()
    """What the clients of a lake may reach besides, closed addresses included."""

    def problem(self, host: str, address: Address) -> str | None:
        """Why the address is closed; None when it is open. `host` is the name that led to it."""
        for one in (address, *_carried(address)):
            if any(one in network for network in NEVER if network.version == one.version):
                return "leads to an address that is closed to connectors"
            if one.is_loopback and not self.loopback and not self.names(host):
                return "leads to this machine itself, which is closed to connectors (connector.hosts.loopback)"
        if self.allowed and not self.names(host) and not self._contains(address):
            return "is not in connector.hosts.allowed"
        return None

    def lake_problem(self, host: str, addresses: Sequence[Address]) -> str | None:
        """Returns why a lake's client may not reach a host with all of these addresses; None when it may. A host without an
        address here is one that a proxy of the operator may know."""
        if _named(host, self.lake):
            return None
        if not addresses:
            return "is not in connector.hosts.allowed" if self.allowed and not self.names(host) else None
        judged = (None if _contained(one, self.lake) else self.problem(host, one) for one in addresses)
        return next(filter(None, judged), None)

    def names(self, host: str) -> bool:
        """Returns whether the list holds the host by its name or its domain."""
        return _named(host, self.allowed)

    def _contains(self, address: Address) -> bool:
        return _contained(address, self.allowed)


def _named(host: str, items: Iterable[Network | str]) -> bool:
    name = host.lower().rstrip(".")
    return any(
        name == item or (item.startswith(".") and name.endswith(item)) for item in items if isinstance(item, str)
    )


def _contained(address: Address, items: Iterable[Network | str]) -> bool:
    plain = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any(
        (plain or address) in item
        for item in items
        if not isinstance(item, str) and item.version == (plain or address).version
    )


_policy = HostPolicy()


class UnknownHost(Exception):
    """A name that leads to no address at this moment."""


def use(policy: HostPolicy) -> None:
    """For this process, which runs one connector for a worker."""
    global _policy
    _policy = policy


def parse_allowed(items: Iterable[str]) -> tuple[Network | str, ...]:
    """Networks, addresses, names, and `.domain` for everything below it. ValueError for anything else."""
    found: list[Network | str] = []
    for item in items:
        try:
            found.append(ipaddress.ip_network(item.strip(), strict=False))
        except ValueError:
            if not _NAME.fullmatch(item.strip().removeprefix(".")):
                raise ValueError(f"{item.strip()[:100]!r} is no network, address or name") from None
            found.append(item.strip().lower().rstrip("."))
    return tuple(found)


def host_list(value: str) -> str | None:
    """A validator of keys: one host or a comma list, each a name or an address in its usual form, none closed."""
    hosts = value.split(",")
    if len(hosts) > HOSTS_MAX:
        return f"expects at most {HOSTS_MAX} hosts"
    for host in hosts:
        problem = form_problem(host.strip())
        if problem is None and (literal := _literal(host.strip())) is not None:
            problem = HostPolicy().problem("", literal)
        if problem:
            return problem
    return None


def is_loopback(host: str) -> bool:
    """By what is written: this machine without doubt."""
    address = _literal(host.strip())
    return host.strip().lower() == "localhost" if address is None else address.is_loopback


def form_problem(host: str) -> str | None:
    """Paths of sockets, options, user names and the disguises of addresses are no names of hosts."""
    if _literal(host) is not None:
        return None
    if not host.isascii() or len(host) > 253 or not _NAME.fullmatch(host):
        return "expects the name of a host, or an address"
    if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        return "expects an address as four decimal numbers without leading zeros"
    return None


def guarded(conninfo: str) -> str:
    """libpq's connection string with the addresses that were judged: the name is not looked up a second time. With what
    the server may ask for, too, and without logins of the worker's user: every connection of a connector's goes by here.

    CdcError `config.host_not_allowed` or `postgres.weak_login`; psycopg's own error when a name leads nowhere, as libpq would say it.
    """
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    parts = conninfo_to_dict(conninfo)
    hosts = [host.strip() for host in str(parts.get("host") or "").split(",")]
    ports = str(parts.get("port") or "").split(",")
    if len(ports) not in (1, len(hosts)):
        return conninfo  # libpq refuses it by itself
    for host in hosts:  # all of them before any is looked up
        literal = _literal(host)
        problem = form_problem(host) if literal is None else _policy.problem(host, literal)
        if problem:
            raise CdcError(NOT_ALLOWED, f"the host {problem}")
    found = [
        (host, address, ports[number if len(ports) > 1 else 0])
        for number, host in enumerate(hosts)
        for address in _judged(host)
    ]
    pinned = {
        "host": ",".join(host for host, _, _ in found),
        "hostaddr": ",".join(address for _, address, _ in found),
        "port": ",".join(port for _, _, port in found),
    }
    required = server_authentication.required(parts)
    return make_conninfo(conninfo, **pinned, **worker_logins.withheld(parts), require_auth=required)


def _judged(host: str) -> Sequence[str]:
    """The addresses of a host; all of them have to be open: which one is taken is not ours to say."""
    from psycopg import OperationalError

    try:
        addresses = _addresses(host)
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not a name"
        raise OperationalError(f'could not translate host name "{host}" to address: {reason}') from None
    for address in addresses:
        problem = _policy.problem(host, address)
        if problem:
            raise CdcError(NOT_ALLOWED, f"the host {problem}", where={"host": host})
    return [str(address) for address in addresses[:ADDRESSES_MAX]]


def judge(host: str, key: str) -> None:
    """Judges a host that `key` of a config names, for a client that looks the name up again when it connects.

    CdcError `config.host_not_allowed`; UnknownHost when the name leads to no address.
    """
    addresses(host, key)


def addresses(host: str, key: str) -> Sequence[str]:
    """Returns the judged addresses of a host that `key` of a config names, for a client that connects to them as they are.

    CdcError `config.host_not_allowed`; UnknownHost when the name leads to no address.
    """
    found: list[Address] = []
    problem = form_problem(host)
    if problem is None:
        try:
            found = _addresses(host)
        except (OSError, UnicodeError):
            raise UnknownHost(host) from None
        problem = next(filter(None, (_policy.problem(host, address) for address in found)), None)
    if problem:
        raise CdcError(NOT_ALLOWED, f"the host of {key} {problem}", where={"key": key, "host": host})
    return [str(address) for address in found[:ADDRESSES_MAX]]


def host_of(place: str) -> str:
    """Returns the host of `host:port`, without brackets."""
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition("/")[0].partition(":")[0]


def lake_problem(host: str, addresses: Sequence[Address]) -> str | None:
    """Returns why a lake's client in this process may not connect to a host with these addresses; None when it may."""
    return _policy.lake_problem(host, addresses)


def require_named(host: str, key: str) -> None:
    """CdcError `config.host_not_allowed` for a name that leads to no address, where a list of hosts does not hold it."""
    if _policy.allowed and not _policy.names(host):
        text = f"the host of {key} is not in connector.hosts.allowed"
        raise CdcError(NOT_ALLOWED, text, where={"key": key, "host": host})


def _addresses(host: str) -> list[Address]:
    """Returns the addresses of a host. OSError or UnicodeError for a name that leads nowhere."""
    literal = _literal(host)
    if literal is not None:
        return [literal]
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ipaddress.ip_address(info[4][0]) for info in infos))


def _literal(host: str) -> Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return None if "%" in host else address


def _carried(address: Address) -> Sequence[Address]:
    """IPv4 addresses inside of IPv6 ones: mapped, translated, tunnelled."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    found: list[Address] = [inner for inner in (address.ipv4_mapped, address.sixtofour) if inner is not None]
    if address.teredo is not None:
        found += address.teredo
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if any(address in network for network in _CARRIERS):
        found.append(last)
    if address in _COMPATIBLE and int(address) > 1:
        found.append(last)
    return found
