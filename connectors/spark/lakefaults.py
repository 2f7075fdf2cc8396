"""What goes wrong in a lake: tables whose own files are missing or cannot be read are waited for a little, then held to be
broken."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cdcworker.connectors.spark.errors import TARGET_BROKEN, TARGET_UNREACHABLE, from_lake, is_of_files
from cdcworker.connectors.spark.laketables import Place
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

TRIES = 4
WAIT_S = 30.0
"""So often, and for so long, a file that is missing may be one that comes back."""
FORGET_S = 300.0


@dataclass(slots=True)
class _Fault:
    since: float
    last: float
    count: int = 0


class Faults:
    """By topic, in whatever thread a table is written."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._faults: dict[str, _Fault] = {}
        self._broken: set[str] = set()

    def over(self, topic: str) -> None:
        """Its files were read, and written."""
        self._faults.pop(topic, None)
        self._broken.discard(topic)

    @contextlib.contextmanager
    def of(self, topic: str, place: Place) -> Iterator[None]:
        """CdcError TARGET_UNREACHABLE, and in the end TARGET_BROKEN, where what ends it is said of a table's files."""
        try:
            yield
        except CdcError:
            raise
        except Exception as exc:
            if not is_broken(exc):
                raise
            raise self._fault(topic, place, exc) from exc

    def _fault(self, topic: str, place: Place, exc: Exception) -> CdcError:
        now = self._clock()
        known = self._faults.get(topic)
        if known is None or now - known.last > FORGET_S:
            known = self._faults[topic] = _Fault(now, now)
        known.last, known.count = now, known.count + 1
        said = from_lake(exc)
        where = {"topic": topic, "table": ".".join(place)}
        text = f"files of a table cannot be read ({said.message if said else type(exc).__name__})"
        if topic not in self._broken and (known.count < TRIES or now - known.since < WAIT_S):
            return CdcError(TARGET_UNREACHABLE, text, where=where)
        self._broken.add(topic)
        return CdcError(TARGET_BROKEN, text, where=where)

    def aside(self, place: Place, exc: Exception) -> None:
        """Of a table that is nobody's business now; raises what is not said of its files."""
        if not is_broken(exc):
            raise exc
        log.warning(
            "a table is left alone whose files cannot be read table=%s error=%s", ".".join(place), type(exc).__name__
        )


@contextlib.contextmanager
def translated(where: Mapping[str, str]) -> Iterator[None]:
    """What Spark raises about a lake, as a CdcError; what is not known is let through."""
    try:
        yield
    except CdcError:
        raise
    except Exception as exc:
        found = from_lake(exc, where)
        if found is None:
            raise
        log.warning("lake refused a statement code=%s error=%s", found.code, found.message)
        raise found from exc


def is_broken(exc: Exception) -> bool:
    return isinstance(exc, json.JSONDecodeError) or is_of_files(exc)
