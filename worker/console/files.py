"""The files of the console: read once from the package, each with its media type and an entity tag of its content."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

PAGE: Final = "index.html"
MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
"""A file of any other kind, such as a licence, is in the wheel and is not served."""
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing but the worker's own files is loaded or run, and no text becomes markup or a script."""
HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """One file as it is sent."""

    content: bytes
    media_type: str
    etag: str


@functools.cache
def console_files() -> Mapping[str, ConsoleFile]:
    """Returns the files by their path below `/ui/`. Nothing else can be asked for: no request opens a file."""
    return dict(_files(files(__package__).joinpath("assets"), ""))


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, ConsoleFile]]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _files(item, f"{prefix}{item.name}/")
            continue
        media_type = MEDIA_TYPES.get("." + item.name.rpartition(".")[2])
        if media_type is not None:
            content = item.read_bytes()
            yield prefix + item.name, ConsoleFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
