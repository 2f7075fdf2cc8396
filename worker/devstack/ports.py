"""Free TCP ports on 127.0.0.1 outside the range of outgoing connections."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.errors import NO_PORT

HOST = "127.0.0.1"
LOWEST_PORT = 10_000
DEFAULT_EPHEMERAL_START = 32_768
ATTEMPTS = 200

_handed_out: set[int] = set()


def ephemeral_start() -> int:
    """Returns the first port of the kernel's range for outgoing connections."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return DEFAULT_EPHEMERAL_START


def free_ports(count: int, within: range | None = None) -> list[int]:
    """Returns distinct free ports below the ephemeral range, so that a stopped server gets its port back; or of another range."""
    choices = within or _usual()
    chosen: list[int] = []
    source = random.SystemRandom()
    for _ in range(ATTEMPTS * count):
        port = source.choice(choices)
        if port not in _handed_out and is_free(port):
            _handed_out.add(port)
            chosen.append(port)
            if len(chosen) == count:
                return chosen
    raise CdcError(NO_PORT, f"no {count} free TCP ports between {choices.start} and {choices.stop}")


def _usual() -> range:
    top = ephemeral_start()
    return range(LOWEST_PORT, top if top - LOWEST_PORT >= 1000 else 65_535)


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def accepts(port: int) -> bool:
    """Returns whether something accepts connections on the port."""
    try:
        with socket.create_connection((HOST, port), timeout=1.0):
            return True
    except OSError:
        return False
