"""Files that only the operator may write, read again when they change."""

from __future__ import annotations

import functools
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
Content = TypeVar("Content")


def read_bytes(path: Path, code: str, bytes_max: int) -> bytes:
    """Returns what the file holds. CdcError of this code when it cannot be read or is larger, or others may write it."""
    where: dict[str, str | int] = {"file": str(path)}
    try:
        with path.open("rb") as file:
            if problem := writer_problem(os.fstat(file.fileno())):
                raise CdcError(code, problem, where=where)
            content = file.read(bytes_max + 1)
    except OSError as exc:
        raise CdcError(code, f"the file cannot be read: {exc.strerror}", where=where) from None
    if len(content) > bytes_max:
        raise CdcError(code, f"the file is larger than {bytes_max} bytes", where=where)
    return content


def read_yaml(
    path: Path, parse: Callable[[Any], Content], code: str, bytes_max: int, *, texts: bool = False
) -> Content:
    """Returns what `parse` makes of the file's YAML. CdcError of this code when it cannot be used, or others may write it;
    a ValueError of `parse` becomes its text. `texts`: what stands there without quotes is a text too, such as 007 and on."""
    import yaml

    where: dict[str, str | int] = {"file": str(path)}
    content = read_bytes(path, code, bytes_max)
    try:
        return parse(_loader(texts=texts)(content.decode()).get_single_data())
    except _NamedTwice as exc:
        raise CdcError(code, f"line {exc.line}: a member is named twice", where=where) from None
    except RecursionError:
        raise CdcError(code, "nested too deeply", where=where) from None
    except yaml.YAMLError as exc:
        line = exc.problem_mark.line + 1 if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark else 0
        raise CdcError(code, f"not YAML (line {line})", where=where) from None
    except (ValueError, TypeError) as exc:
        message = str(exc) if type(exc) is ValueError else "members of another kind than expected"
        raise CdcError(code, message, where=where) from None


class _NamedTwice(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


@functools.cache
def _loader(*, texts: bool) -> Any:
    """Returns the safe loader that refuses a member that is named twice: of two lists the first would count no more, in silence."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if len(set(names)) < len(names):
                raise _NamedTwice(node.start_mark.line + 1)
            return node

    if texts:
        kept = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
        Loader.yaml_implicit_resolvers = {
            first: [pair for pair in pairs if pair[0] in kept]
            for first, pairs in Loader.yaml_implicit_resolvers.items()
        }
    return Loader


def writer_problem(status: os.stat_result) -> str:
    """Returns why others than the operator may have written the file; empty when they cannot have."""
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IWOTH:
        return "everybody may write the file"
    if mode & stat.S_IWGRP:
        return "its group may write the file"
    if status.st_uid not in (0, os.geteuid()):
        return "the file belongs to another user than root and the worker's"
    return ""


class OperatorFile(Generic[Content]):
    """Returns by `content()` what the file holds now. A file that has become unusable changes nothing; the log says so."""

    def __init__(
        self, path: Path, read: Callable[[Path], Content], what: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Reads the file once; its error is raised. `what` says in the log what the file holds, as a plural."""
        self._path = path
        self._read = read
        self._what = what
        self._clock = clock
        self._stamp = _stamp(path)
        self._content = read(path)
        self._checked_at = clock()
        self._trouble = ""
        """Why the file could not be used at the last look; empty when it could."""
        self.version = 0
        """Counts the changes of the file: whatever was derived from it is void after one."""

    def content(self) -> Content:
        now = self._clock()
        if now - self._checked_at >= LOOK_EVERY_S:
            self._checked_at = now
            self._read_if_changed()
        return self._content

    def _read_if_changed(self) -> None:
        stamp = _stamp(self._path)
        # The stamp of a file that cannot be used says nothing of its rights, nor of other files that it names.
        if stamp == self._stamp and not self._trouble:
            return
        self._stamp = stamp
        try:
            self._content = self._read(self._path)
        except CdcError as error:
            if self._trouble != str(error):
                text = "%s not read again, the earlier ones count on file=%s error=%s"
                log.error(text, self._what, self._path, error)
            self._trouble = str(error)
            return
        self._trouble = ""
        self.version += 1
        log.info("%s read again file=%s", self._what, self._path)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Returns what identifies the file behind the name: mounted secrets are replaced by switching a link."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
