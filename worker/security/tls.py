"""TLS of the REST listener and of requests between workers: certificates from PEM files, reloaded when the files
change."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cdcworker.connectors.config.definition import Secret, invalid
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.threads import repeated
from cdcworker.worker.security import properties

log = logging.getLogger(__name__)

UNUSABLE: Final = declare(
    "tls.unusable",
    "config",
    "The certificate, its key or the authorities' file cannot be used for TLS",
    f"Name PEM files that the worker's user may read; {properties.CONVERT}.",
)
LOOK_EVERY_S: Final = 1.0
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True)
class TlsFiles:
    """The files and settings of TLS. `key` empty: the key is in the certificate's file."""

    certificate: str
    key: str = ""
    authorities: str = ""
    client_auth: str = "none"
    lowest: str = "TLSv1.2"
    password: Secret = field(default=Secret(""), repr=False)

    def stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Returns what changes when one of the files is replaced."""
        return tuple(_stamp(name) for name in (self.certificate, self.key, self.authorities) if name)


def files_of(values: Mapping[str, Any]) -> TlsFiles:
    """Returns the files that the worker's properties name. CdcError `config.invalid` with the key that is missing or
    wrong."""
    certificate = values[properties.CERTIFICATE] or values[properties.KEYSTORE]
    if not certificate:
        raise invalid([(properties.CERTIFICATE, "is required by an https listener")])
    if values[properties.CLIENT_AUTH] != "none" and not values[properties.TRUSTSTORE]:
        raise invalid(
            [(properties.TRUSTSTORE, f"is required by {properties.CLIENT_AUTH}={values[properties.CLIENT_AUTH]}")]
        )
    lowest = "TLSv1.2" if "TLSv1.2" in values[properties.PROTOCOLS] else "TLSv1.3"
    return TlsFiles(
        certificate,
        values[properties.KEY] or "",
        values[properties.TRUSTSTORE] or "",
        values[properties.CLIENT_AUTH],
        lowest,
        values[properties.KEY_PASSWORD] or Secret(""),
    )


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Returns the context of the REST listener. CdcError `tls.unusable` when a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[files.lowest]
    context.verify_mode = VERIFY[files.client_auth]
    _load(context, files)
    return context


def peer_context(files: TlsFiles) -> ssl.SSLContext:
    """Returns the context for requests to other workers: their name and authority are checked, our certificate is sent.

    The authorities are those of the truststore. Only where there is none the system's count.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not files.authorities:
        context.load_default_certs()
    context.minimum_version = VERSIONS[files.lowest]
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
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


class TlsContexts:
    """The contexts in use. The server's event loop calls `reload`; open connections are not affected."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.server = server_context(files)
        self.peers = peer_context(files)
        self._stamps = files.stamps()

    def reload(self) -> bool:
        """Reloads files that have changed; returns whether it did. Files that do not fit together are tried again at
        their next change."""
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
async def reloading(tls: TlsContexts | None) -> AsyncIterator[None]:
    """Reloads changed files as long as the server runs."""

    if tls is None:
        yield
        return
    async with repeated(tls.reload, LOOK_EVERY_S, name="certificates"):
        yield


def common_name(connection: ssl.SSLObject | ssl.SSLSocket | None) -> str:
    """Returns the common name of the client's verified certificate; empty without one."""
    certificate: Mapping[str, Any] = (connection.getpeercert() if connection is not None else None) or {}
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    names = [str(value) for name, value in subject if name == "commonName"]
    return names[-1] if len(names) == 1 else ""


def _stamp(name: str) -> tuple[int, int, int] | None:
    try:
        status = Path(name).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
