"""TLS of connections: the keys of a certificate and its authorities as PEM text, and what is made of them."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cdcworker.connectors.config.definition import ConfigKey
from cdcworker.schemas.errors import CdcError


def tls_keys(prefix: str) -> Iterable[ConfigKey]:
    """Yields the keys of TLS, each of which begins with `prefix` (`http.ssl.`)."""
    group = "TLS"
    yield ConfigKey(
        f"{prefix}truststore.certificates", "PASSWORD", group=group, connects=True,
        doc="Authorities that may sign the server's certificate, as PEM text; best a reference such as ${file:/path}. Default: those of the"
        " machine.",
    )  # fmt: skip
    yield ConfigKey(
        f"{prefix}keystore.certificate.chain", "PASSWORD", group=group, connects=False,
        doc="A certificate of this client with its chain, as PEM text.",
    )  # fmt: skip
    yield ConfigKey(
        f"{prefix}keystore.key", "PASSWORD", group=group, connects=False, doc="Its key, as PEM text without a password."
    )


def tls_checks(config: Mapping[str, Any], prefix: str, plain: str = "") -> Iterable[tuple[str, str]]:
    """Yields keys with what is wrong with them. `plain` says why there is no TLS; empty: there is."""
    chain, key = f"{prefix}keystore.certificate.chain", f"{prefix}keystore.key"
    if bool(config[chain]) != bool(config[key]):
        yield (key, f"is needed with {chain}") if config[chain] else (chain, f"is needed with {key}")
    if plain:
        for name in (f"{prefix}truststore.certificates", chain):
            if config[name]:
                yield name, f"has no meaning with {plain}"


def tls_context(config: Mapping[str, Any], prefix: str, state_dir: str, code: str) -> ssl.SSLContext:
    """Returns a context that verifies servers. CdcError of this code for PEM text that cannot be read."""
    trusted, chain, key = (
        config[f"{prefix}{name}"] for name in ("truststore.certificates", "keystore.certificate.chain", "keystore.key")
    )
    try:
        context = ssl.create_default_context(cadata=trusted.reveal() if trusted else None)
        if chain:
            with secret_file(chain.reveal() + "\n" + key.reveal(), state_dir) as path:
                context.load_cert_chain(path, password=lambda: "")
    except (ssl.SSLError, ValueError, OSError):
        raise CdcError(code, f"a certificate or a key of {prefix} cannot be read") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@contextlib.contextmanager
def secret_file(text: str, folder: str) -> Iterator[str]:
    """A file that only this user reads, as long as the context lasts: libraries read keys from files alone."""
    fd, path = tempfile.mkstemp(dir=folder or None)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)
