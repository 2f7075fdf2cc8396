"""What goes wrong in a lake: tables whose own files are missing or cannot be read are waited for a little, then held to be
broken."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from cdcworker.connectors.sink_errors import TARGET_BROKEN, TARGET_UNREACHABLE, from_lake, from_os, gone, is_of_files
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

TRIES = 4
WAIT_S = 30.0
"""So often, and for so long, a file that is missing may be one that comes back."""
FORGET_S = 300.0


class UnreadableFile(Exception):
    """A file of a table is missing, or holds something else, as this process finds when it looks at it."""


@contextlib.contextmanager
def file_errors() -> Iterator[None]:
    """Raises UnreadableFile, or a CdcError, for what goes wrong with a file that this process reads or writes itself."""
    from pyarrow import ArrowException

    try:
        yield
    except OSError as exc:
        # pyarrow's own have no number.
        if exc.errno in (None, errno.ENOENT):
            raise UnreadableFile(type(exc).__name__) from exc
        raise from_os(exc, {}) from exc
    except ArrowException as exc:
        raise UnreadableFile(type(exc).__name__) from exc


@dataclass(slots=True)
class _Fault:
    since: float
    last: float
    count: int = 0


class FileFaults:
    """Faults of the files of a lake's tables by topic; any thread that writes a table may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._faults: dict[str, _Fault] = {}
        self._broken: dict[str, LakeName | None] = {}
        """None: which table it is, is not known."""
        self._aside: dict[LakeName, Exception] = {}

    def over(self, topic: str) -> None:
        """Its files were read, and written."""
        self._faults.pop(topic, None)
        self._broken.pop(topic, None)

    @contextlib.contextmanager
    def of(self, topic: str, place: LakeName) -> Iterator[None]:
        """CdcError TARGET_UNREACHABLE, and in the end TARGET_BROKEN, where what ends it is said of a table's files."""
        try:
            yield
        except CdcError:
            raise
        except Exception as exc:
            if not is_broken(exc):
                raise
            raise self._fault(topic, place, exc) from exc

    def _fault(self, topic: str, place: LakeName | None, exc: Exception) -> CdcError:
        now = self._clock()
        known = self._faults.get(topic)
        if known is None or now - known.last > FORGET_S:
            known = self._faults[topic] = _Fault(now, now)
        known.last, known.count = now, known.count + 1
        said = from_lake(exc)
        where = {"topic": topic, "table": ", ".join(sorted(map(".".join, [place] if place else self._unknown())))}
        text = "files of a table cannot be read" if place else "its table may be one whose files cannot be read"
        text = f"{text} ({said.message if said else type(exc).__name__})"
        if topic not in self._broken and (known.count < TRIES or now - known.since < WAIT_S):
            return CdcError(TARGET_UNREACHABLE, text, where=where)
        self._broken[topic] = place
        return CdcError(TARGET_BROKEN, text, where=where)

    def begin(self) -> None:
        """Forgets which tables had faults, before all of them are read again."""
        self._aside.clear()

    def missing(self, topics: Collection[str]) -> None:
        """Raises the error for topics whose tables were there and are not found now. A table whose files cannot be read does
        not say whose it is: while there are as many of them, each of the topics may have its own among these. CdcError
        of one of them."""
        if not topics:
            return
        held = {topic for topic, place in self._broken.items() if place is None}
        topic, unknown = min(topics), self._unknown()
        if len(held.union(topics)) > len(unknown):
            raise gone(topic)
        raise self._fault(topic, None, self._aside[min(unknown)])

    def _unknown(self) -> set[LakeName]:
        return self._aside.keys() - set(self._broken.values())

    def aside(self, place: LakeName, exc: Exception) -> None:
        """Of a table that is, as far as is known, nobody's business now; raises what is not said of its files."""
        if not is_broken(exc):
            raise exc
        self._aside[place] = exc
        log.warning(
            "a table whose files cannot be read is skipped table=%s error=%s", ".".join(place), type(exc).__name__
        )


@contextlib.contextmanager
def translated(where: Mapping[str, str]) -> Iterator[None]:
    """Translates what Spark raises about a lake into a CdcError; other exceptions pass."""
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
    return isinstance(exc, (json.JSONDecodeError, UnreadableFile)) or is_of_files(exc)


def is_refused(exc: CdcError) -> bool:
    """Returns whether a commit was certainly not made. What a catalog says of one is not certain: the answer that it was made may
    have been lost before, and somebody else's commit may have come since."""
    return exc.__cause__ is None
