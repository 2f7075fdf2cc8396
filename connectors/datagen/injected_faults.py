"""What a task does wrong because it is asked to."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from cdcworker.schemas.errors import CdcError, declare

FAULT_TRANSIENT: Final = declare(
    "datagen.fault_transient", "transient", "A passing failure was asked for", "Lower fail.prob to have fewer of them."
)
FAULT_CONFIG: Final = declare(
    "datagen.fault_config", "config", "A failure of the configuration was asked for", "Set fail.prob to 0."
)
FAULT_DATA: Final = declare(
    "datagen.fault_data", "data", "A record that cannot be handled was asked for", "Set fail.prob to 0."
)
FAULTS: Final = {"transient": FAULT_TRANSIENT, "configuration": FAULT_CONFIG, "data": FAULT_DATA}

PAGE: Final = 4_096


class InjectedFaults:
    """What a task does wrong on purpose. Its dice are not seeded: a restart must not meet the same fate for ever."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._dice = random.SystemRandom()
        self._hoard: list[bytearray] = []
        self._leaked_at: float | None = None
        self._any = any(value for name, value in settings.items() if name.endswith(".prob"))
        self._fate: str | None = None

    def at(self, place: str) -> None:
        if self._settings["hang.in"] == place:
            _hang()

    def before(self, n: int, *, held: bool) -> bool:
        """Strikes, or says that it will at the next call, because rows are `held` that have to go out first."""
        if not self._any:
            return False
        self._fate = self._fate or self._drawn()
        if self._fate is None:
            return False
        if not held:
            self._strike(self._fate, n)
        return True

    def _drawn(self) -> str | None:
        for name in ("fail.prob", "crash.prob", "hang.prob", "spin.prob"):
            chance = self._settings[name]
            if chance and self._dice.random() < chance:
                return name
        return None

    def _strike(self, fate: str, n: int) -> NoReturn:
        if fate == "crash.prob":
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == "spin.prob":
            _spin()
        if fate != "fail.prob":
            _hang()
        kind = self._settings["fail.class"]
        raise CdcError(FAULTS[kind], f"a {kind} failure as configured", where={"row": n})

    def leak(self, now: float) -> None:
        rate = self._settings["leak.bytes.per.second"]
        if not rate:
            return
        since, self._leaked_at = self._leaked_at or now, now
        block = bytearray(int((now - since) * rate))
        block[::PAGE] = b"\1" * len(block[::PAGE])  # memory that is not written to is not taken
        self._hoard.append(block)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)


def _spin() -> NoReturn:
    while True:
        pass
