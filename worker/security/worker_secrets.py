"""The operator's secrets between workers: the key in the config log signs nothing without one of them."""

from __future__ import annotations

import hmac
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.linux.operator_file import OperatorFile, read_bytes
from cdcworker.worker.security import properties
from cdcworker.worker.security.listener import Listener

UNUSABLE: Final = declare(
    "worker.secret_unusable",
    "config",
    "The file of the workers' shared secrets cannot be used",
    "Write one secret of 32 characters or more in each line, the one to sign with first (openssl rand -base64 48). The "
    "file belongs to root or to the worker's user, and nobody else has the right to write it.",
)
PLAIN: Final = b""
"""Stands among the secrets for none: the key in the config log signs by itself."""
CHARS_MIN: Final = 32
"""A shorter secret could be guessed from one signed request and the config topic."""
SECRETS_MAX: Final = 8
FILE_BYTES_MAX: Final = 65_536

Secrets = Callable[[], tuple[bytes, ...]]
"""Returns the secrets that count now. Requests are signed with each of them, and taken if signed with one of them."""


def plain_only() -> tuple[bytes, ...]:
    """Returns the secrets of a cluster whose operator has given none."""
    return (PLAIN,)


def signing_key(secret: bytes, key_id: str, published: bytes) -> bytes:
    """Returns the key that signs: of the published session key and a secret, so that neither signs without the other."""
    if secret == PLAIN:
        return published
    return hmac.digest(secret, b"cdcworker inter-worker key 1\0" + key_id.encode() + b"\0" + published, "sha256")


class SecretFile:
    """Returns, when called, the secrets that the file holds now."""

    def __init__(
        self, path: Path, *, plain_accepted: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._last = (PLAIN,) if plain_accepted else ()
        self._file = OperatorFile(path, read, "secrets", clock)

    def __call__(self) -> tuple[bytes, ...]:
        return (*self._file.content(), *self._last)


def read(path: Path) -> tuple[bytes, ...]:
    """Reads the file. CdcError `worker.secret_unusable` when it holds no good secret, or others may write it."""
    where: dict[str, str | int] = {"file": str(path)}
    lines = [line.strip() for line in read_bytes(path, UNUSABLE, FILE_BYTES_MAX).splitlines()]
    secrets = tuple(line for line in lines if line and not line.startswith(b"#"))
    if not 0 < len(secrets) <= SECRETS_MAX:
        raise CdcError(UNUSABLE, f"the file holds {len(secrets)} secrets, not 1 to {SECRETS_MAX}", where=where)
    short = next((number for number, secret in enumerate(secrets, 1) if len(secret) < CHARS_MIN), None)
    if short is not None:
        raise CdcError(UNUSABLE, f"secret {short} is shorter than {CHARS_MIN} characters", where=where)
    return secrets


def warnings(listener: Listener, values: Mapping[str, Any]) -> Iterator[str]:
    """Yields a warning for each way in which whoever reads the config topic could pass for a worker."""
    has_callers = values[properties.AUTH_FILE] or values[properties.OIDC_ISSUER]
    is_closed = has_callers or values[properties.CLIENT_AUTH] == "required"
    if values[properties.SECRET_FILE]:
        if _is_readable_by_all(Path(str(values[properties.SECRET_FILE]))):
            yield (
                f"{properties.SECRET_FILE}: every user of this machine may read the file, and can pass for a worker once "
                "he reads the config topic; chmod o-r"
            )
        if values[properties.PLAIN_KEY]:
            yield (
                f"{properties.PLAIN_KEY}: whoever can read the config topic can pass for a worker and do everything; "
                "take it out when all workers have the secret"
            )
    elif is_closed and not listener.is_loopback and not values[properties.WORKER_CERTIFICATES]:
        yield (
            f"{properties.SECRET_FILE} is not set: whoever can read the config topic can pass for a worker and do "
            "everything over REST"
        )


def _is_readable_by_all(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
