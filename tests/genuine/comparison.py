"""How the answers of one cluster differ from those of another, told by the place of each difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

IDENTITY = ("class", "name")
"""Members by which the items of a list are told apart; others are told apart by their place."""


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, list[str]]:
    """By request: what is other than wanted, in status, headers, members or values."""
    told = {name: list(of_answer(answer, found[name])) for name, answer in wanted.items()}
    return {name: lines for name, lines in told.items() if lines}


def of_answer(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    if wanted["status"] == 500:
        # What a client did wrong is Connect's own failure here and there: ours tells it as the client's.
        if not 400 <= found["status"] < 500:
            yield f"status {found['status']}, not 4xx"
        return
    if wanted["status"] != found["status"]:
        yield f"status {found['status']}, not {wanted['status']}: {found.get('body')}"
        return
    yield from of_value(wanted["headers"], found["headers"], "headers")
    yield from of_value(wanted.get("body"), found.get("body"), "")


def of_value(wanted: Any, found: Any, at: str) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name in sorted(set(wanted) | set(found)):
            if name not in found:
                yield f"{at}/{name} is missing"
            elif name not in wanted:
                yield f"{at}/{name} is ours alone"
            else:
                yield from of_value(wanted[name], found[name], f"{at}/{name}")
    elif isinstance(wanted, list) and isinstance(found, list):
        yield from of_lists(wanted, found, at)
    elif wanted != found:
        yield f"{at or '/'} is {found!r}, not {wanted!r}"


def of_lists(wanted: list[Any], found: list[Any], at: str) -> Iterator[str]:
    names = (
        [identity(item, place) for place, item in enumerate(wanted)],
        [identity(item, place) for place, item in enumerate(found)],
    )
    there = dict(zip(names[1], found, strict=True))
    for name, item in zip(names[0], wanted, strict=True):
        if name not in there:
            yield f"{at}/{name} is missing"
        else:
            yield from of_value(item, there[name], f"{at}/{name}")
    yield from (f"{at}/{name} is ours alone" for name in names[1] if name not in names[0])


def identity(item: Any, place: int) -> str:
    if isinstance(item, dict):
        inner = item.get("value") if isinstance(item.get("value"), dict) else item
        return next((str(inner[name]) for name in IDENTITY if name in inner), str(place))
    return str(place)
