"""Configuration as a type: keys with types, defaults and checks; secrets that do not print."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from cdcworker.connectors import veil
from cdcworker.schemas.errors import CdcError, declare

ConfigType = Literal["BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"]
Importance = Literal["HIGH", "MEDIUM", "LOW"]
Validator = Callable[[Any], str | None]
"""Returns what is wrong with a parsed value, without repeating the value; None when it is fine."""

INVALID = declare(
    "config.invalid",
    "config",
    "The configuration is not valid",
    "Correct the named keys; PUT /connector-plugins/{class}/config/validate lists every problem at once.",
)

MASK = veil.MASK
REFERENCE = veil.REFERENCE


class Secret:
    """A value that does not print; `reveal` is the one way to it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a secret is not serialised")


def has_reference(value: str) -> bool:
    return REFERENCE.search(value) is not None


@dataclass(frozen=True)
class ConfigKey:
    """One key. `default` is a typed value; None means there is none. `note` is shown when the key is set."""

    name: str
    type: ConfigType = "STRING"
    default: Any = None
    required: bool = False
    importance: Importance = "MEDIUM"
    doc: str = ""
    group: str = ""
    validator: Validator | None = None
    recommended: tuple[str, ...] = ()
    note: str = ""
    display_name: str = ""
    dependents: tuple[str, ...] = ()
    former: str = ""
    """The name that the key had: counts where the present one is not given."""

    def definition(self, order: int = 0) -> dict[str, Any]:
        """Kafka Connect's JSON form of a key definition."""
        return {
            "name": veil.name(self.name),
            "type": self.type,
            "required": self.required,
            "default_value": default_text(self),
            "importance": self.importance,
            "documentation": self.doc,
            "group": self.group or None,
            "width": "MEDIUM",
            "display_name": self.display_name or veil.name(self.name),
            "dependents": list(self.dependents),
            "order": order,
        }


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """What validation says about one key; `value` of a secret is masked unless it is a reference."""

    name: str
    value: str | None
    errors: tuple[str, ...] = ()
    recommended: tuple[str, ...] = ()
    visible: bool = True
    note: str = ""
    nearest: str | None = None
    """Of a key that is not known: which one was probably meant."""


def default_text(key: ConfigKey) -> str | None:
    value = key.default
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return MASK if key.type == "PASSWORD" and value else str(value)


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError("expects true or false")
    return lowered == "true"


def _integer(bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text.strip()):
            raise ValueError("expects a whole number")
        value = int(text)
        if not -limit <= value < limit:
            raise ValueError(f"expects a number of at most {bits} bits")
        return value

    return parse


def _double(text: str) -> float:
    try:
        return float(text.strip())
    except ValueError:
        raise ValueError("expects a number") from None


def parse_list(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(",")) if item]


PARSERS: dict[ConfigType, Callable[[str], Any]] = {
    "BOOLEAN": _boolean,
    "STRING": str.strip,
    "CLASS": str.strip,
    "SHORT": _integer(16),
    "INT": _integer(32),
    "LONG": _integer(64),
    "DOUBLE": _double,
    "LIST": parse_list,
    "PASSWORD": Secret,
}
_TEXT: frozenset[ConfigType] = frozenset({"STRING", "CLASS", "LIST", "PASSWORD"})


def one_of(*choices: str) -> Validator:
    def check(value: Any) -> str | None:
        return None if value in choices else f"expects one of {', '.join(choices)}"

    return check


def between(low: float | None = None, high: float | None = None) -> Validator:
    def check(value: Any) -> str | None:
        if low is not None and value < low:
            return f"must be at least {low}"
        if high is not None and value > high:
            return f"must be at most {high}"
        return None

    return check


def non_empty(value: Any) -> str | None:
    return None if value else "must not be empty"


def matches(pattern: str, expectation: str) -> Validator:
    compiled = re.compile(pattern)

    def check(value: Any) -> str | None:
        return None if compiled.fullmatch(value) else f"expects {expectation}"

    return check


def is_regex(value: Any) -> str | None:
    try:
        re.compile(value)
    except re.error as exc:
        return f"is not a regular expression: {exc.msg} at {exc.pos}"
    return None


def regex_list(value: Any) -> str | None:
    for number, pattern in enumerate(value, 1):
        problem = is_regex(pattern)
        if problem:
            return f"item {number} {problem}"
    return None


class ConfigDef:
    """All keys of one connector.

    `accepted` maps keys of Kafka Connect or Debezium that need nothing here to a note; a name that ends in `.` or `*`
    stands for every key that begins with it. `check` looks at several keys together: it gets the parsed values and
    returns (key, problem) pairs. `more` gives the keys whose names depend on the config itself.
    """

    def __init__(
        self,
        keys: Iterable[ConfigKey],
        accepted: Mapping[str, str] | None = None,
        check: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] | None = None,
        more: Callable[[Mapping[str, str]], Iterable[ConfigKey]] | None = None,
    ) -> None:
        self.keys: dict[str, ConfigKey] = {}
        for key in keys:
            if key.name in self.keys:
                raise ValueError(f"config key {key.name} is defined twice")
            self.keys[key.name] = key
        self.accepted = dict(accepted or {})
        self._check = check
        self._more = more

    @cached_property
    def secrets(self) -> frozenset[str]:
        return frozenset(name for name, key in self.keys.items() if key.type == "PASSWORD")

    def definitions(self) -> list[dict[str, Any]]:
        return [key.definition(order) for order, key in enumerate(self.keys.values())]

    def headed(self, keys: Iterable[ConfigKey]) -> ConfigDef:
        """The definition with those of these keys in front that it does not define itself."""
        missing = [key for key in keys if key.name not in self.keys]
        return ConfigDef([*missing, *self.keys.values()], self.accepted, self._check, self._more)

    def of(self, config: Mapping[str, str]) -> ConfigDef:
        """This definition with the keys that depend on the config."""
        if self._more is None:
            return self
        keys = {**self.keys, **{key.name: key for key in self._more(config)}}
        return ConfigDef(keys.values(), self.accepted, self._check)

    def validate(self, config: Mapping[str, str]) -> list[ConfigValue]:
        """One answer per defined key and per key given, in that order; opens nothing."""
        if self._more is not None:
            return self.of(config).validate(config)
        parsed: dict[str, Any] = {}
        errors: dict[str, list[str]] = {}
        for key in self.keys.values():
            value, problem = self._read(key, _given(key, config))
            parsed[key.name] = value
            if problem:
                errors.setdefault(key.name, []).append(problem)
        if self._check and not errors:
            for name, problem in self._check(parsed):
                errors.setdefault(name, []).append(problem)
        answers = [self._answer(key, config, errors.get(key.name, ())) for key in self.keys.values()]
        answers += [self._other(name, config) for name in config if name not in self.keys]
        return answers

    def parse(self, config: Mapping[str, str]) -> dict[str, Any]:
        """Typed values of every defined key; CdcError `config.invalid` lists all problems.

        Task configs are parsed with their references resolved. Where they are not yet (planning), a reference in a
        text key stays as it is, and one in a numeric key gives the default.
        """
        if self._more is not None:
            return self.of(config).parse(config)
        problems = [(value.name, error) for value in self.validate(config) for error in value.errors]
        if problems:
            raise invalid(problems)
        return {name: self._read(key, _given(key, config))[0] for name, key in self.keys.items()}

    def mask(self, config: Mapping[str, str]) -> dict[str, str]:
        """The config as it may be shown: secrets masked, also those inside of values and names; references left. In the
        order in which it is given."""
        names = veil.names(config)
        return {names[name]: self.shown(name, value) for name, value in config.items()}

    def notes(self, config: Mapping[str, str]) -> list[tuple[str, str]]:
        """(key, note) of every key that is accepted without effect or carries a remark."""
        return [(value.name, value.note) for value in self.validate(config) if value.note]

    def _read(self, key: ConfigKey, text: str | None) -> tuple[Any, str]:
        if text is None:
            return key.default, "is required" if key.required else ""
        if not isinstance(text, str):
            return key.default, "expects a string"
        if "\0" in text:
            return key.default, "must not contain the character NUL"
        if has_reference(text):
            return (PARSERS[key.type](text) if key.type in _TEXT else key.default), ""
        if not text.strip() and key.type not in _TEXT:
            return key.default, "must not be empty"
        if key.required and not text.strip():
            return key.default, "is required"
        try:
            value = PARSERS[key.type](text)
        except ValueError as exc:
            return key.default, str(exc)
        return value, (key.validator(value) or "") if key.validator else ""

    def _answer(self, key: ConfigKey, config: Mapping[str, str], errors: Iterable[str]) -> ConfigValue:
        given = key.name in config
        shown = veil.name(key.name)
        return ConfigValue(
            shown,
            self.shown(key.name, config[key.name]) if given else default_text(key),
            tuple(f"{shown} {error}" for error in errors),
            key.recommended,
            note=key.note if given else "",
        )

    def _other(self, name: str, config: Mapping[str, str]) -> ConfigValue:
        note = self._accepted_note(name)
        if note is not None:
            return ConfigValue(name, self.shown(name, config[name]), note=note)
        shown = veil.name(name)
        near = nearest(name, [*self.keys, *(known for known in self.accepted if known[-1] not in ".*")])
        hint = f"; did you mean {near}?" if near else ""
        return ConfigValue(shown, None, (f"{shown} is not a known key{hint}",), nearest=near)

    def _accepted_note(self, name: str) -> str | None:
        if name in self.accepted:
            return self.accepted[name]
        for known, note in self.accepted.items():
            if known[-1] in ".*" and name.startswith(known.rstrip("*")):
                return note
        return None

    def shown(self, name: str, value: str) -> str:
        """One value as it may be shown."""
        key = self.keys.get(name)
        secret = key.type == "PASSWORD" if key else _looks_secret(name)
        if secret and value and not REFERENCE.fullmatch(value):
            return MASK
        return veil.text(value) if isinstance(value, str) else value


def _given(key: ConfigKey, config: Mapping[str, str]) -> str | None:
    return config.get(key.name, config.get(key.former) if key.former else None)


def invalid(problems: Iterable[tuple[str, str]]) -> CdcError:
    """The one error for a config: every problem on a line of its own, the first key as its place."""
    found = list(problems)
    lines = "\n".join(text if text.startswith(name) else f"{name} {text}" for name, text in found)
    count = len(found)
    return CdcError(INVALID, f"{count} problem{'s' if count != 1 else ''}:\n{lines}", where={"key": found[0][0]})


def nearest(name: str, known: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return found[0] if found else None


def _looks_secret(name: str) -> bool:
    """Keys without a definition: mask what a person would call a secret."""
    return (
        re.search(r"password|passwd|secret|token|credential|jaas|user\.info|private|api\.?key", name.lower())
        is not None
    )
