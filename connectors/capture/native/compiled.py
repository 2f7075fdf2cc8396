"""Which native cores were built: without a C compiler rows are decoded in Python."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Final

from cdcworker.connectors.config.definition import ConfigKey

log = logging.getLogger(__name__)

CLOCK_NS: Final = 1_000_000
"""How old the time may be that records carry as that of their making."""
NATIVE: Final = "decoder.native"


def built(load: Callable[[], ModuleType]) -> ModuleType | None:
    """Returns the core that `load` imports, where it was built."""
    try:
        return load()
    except ImportError:
        log.warning("the native core was not built: rows are decoded in Python, several times slower")
        return None


def native_keys(group: str) -> Iterable[ConfigKey]:
    yield ConfigKey(
        NATIVE, "BOOLEAN", True, group=group, importance="LOW",
        doc="Rows are decoded by the native core where it was built. false: in Python, which gives the same records slower.",
    )  # fmt: skip
