"""A Dockerfile read as far as ours goes: stages, their instructions, the build context, and steps for another root."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Step:
    word: str
    rest: str

    def words(self) -> list[str]:
        """The JSON form of an ENTRYPOINT, CMD, or the command of a HEALTHCHECK."""
        found: list[str] = json.loads(self.rest[self.rest.index("[") :])
        return found

    def commands(self) -> list[str]:
        return [part.strip() for part in self.rest.split("&&")]


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    steps: tuple[Step, ...]


def stages(text: str) -> dict[str, Stage]:
    """By name. A line that is no instruction is a mistake."""
    joined = re.sub(r"\\\n\s*", " ", text)
    out: dict[str, Stage] = {}
    for line in joined.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            out[name] = Stage(name, base, ())
        elif out:
            assert re.fullmatch(
                r"RUN|COPY|ENV|LABEL|WORKDIR|EXPOSE|STOPSIGNAL|HEALTHCHECK|ENTRYPOINT|CMD|USER", word
            ), line
            last = out[next(reversed(out))]
            out[last.name] = Stage(last.name, last.base, (*last.steps, Step(word, rest.strip())))
        else:
            assert word == "ARG", line
    return out


def all_steps(found: Mapping[str, Stage], name: str) -> list[Step]:
    """With those of the stages below it."""
    below = all_steps(found, found[name].base) if found[name].base in found else []
    return [*below, *found[name].steps]


def variables(steps: list[Step]) -> dict[str, str]:
    pairs = (pair.partition("=") for step in steps if step.word == "ENV" for pair in step.rest.split())
    return {name: value for name, _, value in pairs}


def context() -> Iterator[str]:
    """Files that a build of a clean checkout is given."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    patterns = (ROOT / ".dockerignore").read_text().split()
    yield from (name for name in listed.splitlines() if not any(_ignored(name, pattern) for pattern in patterns))


def _ignored(name: str, pattern: str) -> bool:
    parts = name.split("/")
    heads = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    anywhere = pattern.removeprefix("**/")
    tails = parts if anywhere != pattern else []
    return any(fnmatch.fnmatchcase(head, anywhere) for head in (*heads, *tails))


def copied(source: str, files: set[str]) -> set[str]:
    """Which files of the context a COPY takes."""
    source = source.rstrip("/")
    return {name for name in files if source == "." or name == source or name.startswith(source + "/")}


def unpack(folder: Path) -> None:
    for name in context():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
