"""TLS of the REST listener and of requests between workers: certificates from PEM files, loaded again when they change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cdcworker.connectors.config import Secret, invalid
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.security import keys

log = logging.getLogger(__name__)

UNUSABLE: Final = declare(
    "tls.unusable",
    "config",
    "The certificate, its key or the authorities' file cannot be used for TLS",
    f"Name PEM files that the worker's user may read; {keys.CONVERT}.",
)
LOOK_EVERY_S: Final = 1.0
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True)
class Files:
    """What the worker's properties name. `key` empty: it is in the file of the certificate."""

    certificate: str
    key: str = ""
    authorities: str = ""
    client_auth: str = "none"
    lowest: str = "TLSv1.2"
    password: Secret = field(default=Secret(""), repr=False)

    def stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(name) for name in (self.certificate, self.key, self.authorities) if name)


def files_of(values: Mapping[str, Any]) -> Files:
    """CdcError `config.invalid` with the key that is missing or wrong."""
    certificate = values[keys.CERTIFICATE] or values[keys.KEYSTORE]
    if not certificate:
        raise invalid([(keys.CERTIFICATE, "is required by an https listener")])
    if values[keys.CLIENT_AUTH] != "none" and not values[keys.TRUSTSTORE]:
        raise invalid([(keys.TRUSTSTORE, f"is required by {keys.CLIENT_AUTH}={values[keys.CLIENT_AUTH]}")])
    lowest = "TLSv1.2" if "TLSv1.2" in values[keys.PROTOCOLS] else "TLSv1.3"
    return Files(
        certificate,
        values[keys.KEY] or "",
        values[keys.TRUSTSTORE] or "",
        values[keys.CLIENT_AUTH],
        lowest,
        values[keys.KEY_PASSWORD] or Secret(""),
    )


def server_context(files: Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[files.lowest]
    context.verify_mode = VERIFY[files.client_auth]
    _load(context, files)
    return context


def peer_context(files: Files) -> ssl.SSLContext:
    """For asking other workers: their name and their authority are checked, our certificate is shown."""
    context = ssl.create_default_context()
    context.minimum_version = VERSIONS[files.lowest]
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: Files) -> None:
    password = files.password.reveal()
    place = files.certificate
    try:
        # Without a password nothing may be asked for on the terminal.
        context.load_cert_chain(files.certificate, files.key or None, password=lambda: password)
        place = files.authorities
        if files.authorities:
            context.load_verify_locations(files.authorities)
    except ssl.SSLError as exc:
        reason = exc.reason or "not PEM, or the key is of another certificate"
        raise CdcError(UNUSABLE, f"cannot be loaded: {reason}", where={"file": place}) from None
    except OSError as exc:
        raise CdcError(UNUSABLE, f"cannot be read: {exc.strerror}", where={"file": place}) from None


class Tls:
    """The contexts in use. `reload` is called by the server's own loop; connections that are open stay as they are."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.server = server_context(files)
        self.peers = peer_context(files)
        self._stamps = files.stamps()

    def reload(self) -> bool:
        """Whether something was loaded. Files that do not fit together yet are tried again when they change next."""
        stamps = self.files.stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            server_context(self.files)  # tried first: a failed load would leave the context in use without a key
            for context in (self.server, self.peers):
                _load(context, self.files)
        except CdcError as error:
            log.error("certificate not loaded again, the earlier one stays error=%s", error)
            return False
        log.info("certificate loaded again file=%s", self.files.certificate)
        return True


@contextlib.asynccontextmanager
async def kept(tls: Tls | None) -> AsyncIterator[None]:
    """Looks for new files as long as the server runs."""

    async def look() -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if tls is not None:
                tls.reload()

    task = asyncio.create_task(look()) if tls is not None else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def common_name(connection: ssl.SSLObject | ssl.SSLSocket | None) -> str:
    """Of the client's certificate, which the handshake has verified; empty without one."""
    certificate: Mapping[str, Any] = (connection.getpeercert() if connection is not None else None) or {}
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    names = [str(value) for name, value in subject if name == "commonName"]
    return names[-1] if len(names) == 1 else ""


def _stamp(name: str) -> tuple[int, int, int] | None:
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
