"""What plugins import keeps its names and signatures: they are kept in a file, and a change of it is a change for every plugin.

`python -m tests.unit.connectors.api.test_public_surface` writes the file anew. A name that goes, or a parameter that becomes
required, calls for another `API_VERSION`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path

from cdcworker.connectors.api import kit

KEPT = Path(__file__).with_name("public_surface.txt")


def surface() -> str:
    found = (line for name in sorted(kit.__all__) for line in lines(name, getattr(kit, name)))
    # Versions of Python quote annotations in ways of their own.
    return "".join(line.replace("'", "") + "\n" for line in found)


def lines(name: str, thing: object) -> Iterator[str]:
    if not callable(thing):
        yield f"{name} = {thing}"
    elif not inspect.isclass(thing):
        yield f"def {name}{inspect.signature(thing)}"
    else:
        bases = ", ".join(base.__name__ for base in thing.__bases__ if base.__name__ not in ("object", "Generic"))
        yield f"class {name}({bases})"
        if dataclasses.is_dataclass(thing):
            yield from (f"    {field.name}: {field.type}{default(field)}" for field in dataclasses.fields(thing))
        elif issubclass(thing, tuple):
            yield from (f"    {member}: {kind.__forward_arg__}" for member, kind in thing.__annotations__.items())
        elif "__init__" in vars(thing) and not getattr(thing, "_is_protocol", False):
            yield f"    def __init__{inspect.signature(thing.__init__)}"
        for member, value in sorted(vars(thing).items()):
            if not member.startswith("_") and inspect.isfunction(value):
                yield f"    def {member}{inspect.signature(value)}"


def default(field: dataclasses.Field) -> str:
    if field.default is dataclasses.MISSING:
        return " = ..." if field.default_factory is not dataclasses.MISSING else ""
    return " = ..." if callable(field.default) else f" = {field.default!r}"


def test_names_and_signatures_are_those_that_are_kept() -> None:
    assert surface() == KEPT.read_text(), "see the docstring of this module"


def test_everything_public_says_what_it_is() -> None:
    without = [name for name in kit.__all__ if callable(getattr(kit, name)) and not inspect.getdoc(getattr(kit, name))]
    assert without == ["between", "matches", "non_empty", "one_of"], "validators say it by their names"


if __name__ == "__main__":
    KEPT.write_text(surface())
