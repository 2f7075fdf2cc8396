"""Configuration as a type: keys with types, defaults and checks; secrets that do not print."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.refusals import Refusal, Sentence, Unreadable, missing
from cdcworker.schemas import patterns
from cdcworker.schemas.errors import CdcError, declare

ConfigType = Literal["BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"]
Importance = Literal["HIGH", "MEDIUM", "LOW"]
Width = Literal["SHORT", "MEDIUM", "LONG"]
TopicUse = Literal["", "name", "names", "pattern", "prefix", "heartbeats", "part", "template"]
"""How a key names topics: whole names, a pattern, the first part (`prefix`), what stands before the first part
(`heartbeats`), what stands behind it (`part`), or a template that is filled from another topic's name."""
Validator = Callable[[Any], str | None]
"""Returns what is wrong with a parsed value, without repeating the value; None when it is fine."""


Check = Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]]
"""Looks at the parsed values of several keys together; returns (key, problem) pairs."""


INVALID = declare(
    "config.invalid",
    "config",
    "The configuration is not valid",
    "Correct the named keys; PUT /connector-plugins/{class}/config/validate lists every problem at once.",
)

HINTS_MAX = 20
"""Keys that are not known for which the one that was probably meant is looked up: each costs some milliseconds."""
HINT_CHARS_MAX = 100

MASK = secret_names.MASK
REFERENCE = secret_names.REFERENCE


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
    width: Width = "MEDIUM"
    order: int = 0
    """The place within the group, from 1; 0: behind the key before."""
    dependents: tuple[str, ...] = ()
    former: str = ""
    """The name that the key had: counts where the present one is not given."""
    connects: bool | None = None
    """Whether another value sends the connector's secrets elsewhere, or lets others read them on the way. None: it does not,
    and nothing in the name suggests it. A key whose name speaks of a place has to say one or the other."""
    of_server: bool = False
    """Whether it takes this key too to reach the server or to log in, although it decides on no place and is no secret, as the
    name of a user: connections may hold it."""
    has_effect: bool = True
    """False: its values are judged when a config is submitted, and a config that runs has the default, whatever it says."""
    of_task: bool = True
    """Whether tasks read it. The values of another key are judged when a config is submitted, and keep no task from starting."""
    spellings: tuple[str, ...] = ()
    """Further values that are known beside those that are recommended. All of these are read without regard to case."""
    topics: TopicUse = ""
    """How the key names topics; those are checked before the config is taken."""

    def spelled(self, text: str) -> str:
        """Returns a known value as it is written here, whatever its case; another one as it is."""
        known = (*self.recommended, *self.spellings)
        return text if text in known else next((one for one in known if one.lower() == text.lower()), text)

    def definition(self, order: int = 0) -> dict[str, Any]:
        """Kafka Connect's JSON form of a key definition. The place in the group has two names: one of them is of its earlier
        versions."""
        return {
            "name": secret_names.name(self.name),
            "type": self.type,
            "required": self.required,
            "default_value": default_text(self),
            "importance": self.importance,
            "documentation": self.doc,
            "group": self.group or None,
            "width": self.width,
            "display_name": self.display_name or secret_names.name(self.name),
            "dependents": list(self.dependents),
            "order_in_group": order,
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
    known: bool = True
    """Whether the key is one of the connector's, or accepted by it."""


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
        raise ValueError("Expected value to be either true or false")
    return lowered == "true"


def _integer(kind: ConfigType, bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text.strip()) or not -limit <= int(text) < limit:
            raise ValueError(f"Not a number of type {kind}")
        return int(text)

    return parse


def _double(text: str) -> float:
    try:
        return float(text.strip())
    except ValueError:
        raise ValueError("Not a number of type DOUBLE") from None


def parse_list(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(",")) if item]


PARSERS: dict[ConfigType, Callable[[str], Any]] = {
    "BOOLEAN": _boolean,
    "STRING": str.strip,
    "CLASS": str.strip,
    "SHORT": _integer("SHORT", 16),
    "INT": _integer("INT", 32),
    "LONG": _integer("LONG", 64),
    "DOUBLE": _double,
    "LIST": parse_list,
    "PASSWORD": Secret,
}
_TEXT: frozenset[ConfigType] = frozenset({"STRING", "CLASS", "LIST", "PASSWORD"})


def one_of(*choices: str) -> Validator:
    def check(value: Any) -> str | None:
        return None if value in choices else Refusal(f"String must be one of: {', '.join(choices)}")

    return check


def one_of_any_case(*choices: str) -> Validator:
    def check(value: Any) -> str | None:
        known = value.lower() in choices
        return None if known else Refusal(f"String must be one of (case insensitive): {', '.join(choices).upper()}")

    return check


def between(low: float | None = None, high: float | None = None) -> Validator:
    def check(value: Any) -> str | None:
        if low is not None and value < low:
            return Refusal(f"Value must be at least {low}")
        if high is not None and value > high:
            return Refusal(f"Value must be no more than {high}")
        return None

    return check


def non_empty(value: Any) -> str | None:
    return None if value else Refusal("String must be non-empty")


def matches(pattern: str, expectation: str) -> Validator:
    compiled = re.compile(pattern)

    def check(value: Any) -> str | None:
        return None if compiled.fullmatch(value) else f"expects {expectation}"

    return check


def is_regex(value: Any) -> str | None:
    return patterns.problem(value)


def regex_list(value: Any) -> str | None:
    return patterns.list_problem(value)


class ConfigDef:
    """All keys of one connector.

    `accepted` maps keys of Kafka Connect or Debezium that need nothing here to a note; a name that ends in `.` or `*`
    stands for every key that begins with it. `check` looks at several keys together: it gets the parsed values and
    returns (key, problem) pairs; it is asked when every value by itself is fine, `always` whatever is wrong. `more` gives
    the keys whose names depend on the config itself.
    """

    def __init__(
        self,
        keys: Iterable[ConfigKey],
        accepted: Mapping[str, str] | None = None,
        check: Check | None = None,
        more: Callable[[Mapping[str, str]], Iterable[ConfigKey]] | None = None,
        always: Check | None = None,
    ) -> None:
        self.keys: dict[str, ConfigKey] = {}
        for key in keys:
            if key.name in self.keys:
                raise ValueError(f"config key {key.name} is defined twice")
            self.keys[key.name] = key
        self.accepted = dict(accepted or {})
        self._check = check
        self._more = more
        self._always = always

    @cached_property
    def secrets(self) -> frozenset[str]:
        return frozenset(name for name, key in self.keys.items() if key.type == "PASSWORD")

    def definitions(self) -> list[dict[str, Any]]:
        """Returns Kafka Connect's JSON form of each key; those without a place of their own are counted within their group."""
        last: dict[str, int] = {}
        out = []
        for key in self.keys.values():
            last[key.group] = key.order or last.get(key.group, 0) + 1
            out.append(key.definition(last[key.group]))
        return out

    def headed(self, keys: Iterable[ConfigKey], accepted: Mapping[str, str]) -> ConfigDef:
        """Returns the definition with these keys in front, each in the place of one of the same name that it has, and with
        what is accepted besides."""
        first = {key.name: key for key in keys}
        own = [key for key in self.keys.values() if key.name not in first]
        return ConfigDef([*first.values(), *own], {**accepted, **self.accepted}, self._check, self._more, self._always)

    def of(self, config: Mapping[str, str]) -> ConfigDef:
        """This definition with the keys that depend on the config."""
        if self._more is None:
            return self
        keys = {**self.keys, **{key.name: key for key in self._more(config)}}
        return ConfigDef(keys.values(), self.accepted, self._check, always=self._always)

    def validate(self, config: Mapping[str, str]) -> list[ConfigValue]:
        """One answer per defined key and per key given, in that order; opens nothing. Errors show values as they may be
        shown."""
        return self._validated(config, shows_values=True)

    def _validated(self, config: Mapping[str, str], *, shows_values: bool) -> list[ConfigValue]:
        if self._more is not None:
            return self.of(config)._validated(config, shows_values=shows_values)
        parsed: dict[str, Any] = {}
        errors: dict[str, list[str]] = {}
        for key in self.keys.values():
            value, problem = self._read(key, _given(key, config))
            parsed[key.name] = value
            if problem:
                errors.setdefault(key.name, []).append(problem)
        for check in (self._always, self._check if not errors else None):
            for name, problem in check(parsed) if check else ():
                errors.setdefault(name, []).append(problem)
        answers = [
            self._answer(key, config, errors.get(key.name, ()), shows_values=shows_values) for key in self.keys.values()
        ]
        hints = iter(range(HINTS_MAX))
        answers += [self._other(name, config, hints) for name in config if name not in self.keys]
        return answers

    def require_valid(self, config: Mapping[str, str]) -> None:
        """CdcError `config.invalid` that lists all problems, keys that are not known among them. No value is told: what a
        reference stood for may be a secret."""
        found = self._validated(config, shows_values=False)
        problems = [(value.name, error) for value in found for error in value.errors]
        if problems:
            raise invalid(problems)

    def parse(self, config: Mapping[str, str]) -> dict[str, Any]:
        """Typed values of every defined key; CdcError `config.invalid` lists all problems. A key that is not known has no
        value and is no problem: whether a config with such keys is taken was decided when it was submitted.

        Task configs are parsed with their references resolved. Where they are not yet (planning), a reference in a
        text key stays as it is, and one in a numeric key gives the default.
        """
        if self._more is not None:
            return self.of(config).parse(config)
        config = {name: text for name, text in config.items() if self._counts(name)}
        self.require_valid(config)
        return {name: self._read(key, _given(key, config))[0] for name, key in self.keys.items()}

    def mask(self, config: Mapping[str, str]) -> dict[str, str]:
        """The config as it may be shown: secrets masked, also those inside of values and names; references left. In the
        order in which it is given."""
        names = secret_names.names(config)
        return {names[name]: self.shown(name, value) for name, value in config.items()}

    def connects(self, name: str) -> bool | None:
        """Returns whether a key decides where the connector's secrets are sent; None for a key that is not known."""
        key = self.keys.get(name) or next((key for key in self.keys.values() if key.former == name), None)
        if key is not None:
            return bool(key.connects)
        return None if self.note_of(name) is None else False

    def notes(self, config: Mapping[str, str]) -> list[tuple[str, str]]:
        """(key, note) of every key that is accepted without effect or carries a remark."""
        return [(value.name, value.note) for value in self.validate(config) if value.note]

    def _read(self, key: ConfigKey, text: str | None) -> tuple[Any, str]:
        if text is None:
            return key.default, missing(key.name) if key.required else ""
        if not isinstance(text, str):
            return key.default, "expects a string"
        if "\0" in text:
            return key.default, "must not contain the character NUL"
        if has_reference(text):
            return (PARSERS[key.type](text) if key.type in _TEXT else key.default), ""
        try:
            value = PARSERS[key.type](text)
        except ValueError as exc:
            return key.default, Unreadable(exc)
        if key.type == "STRING":
            value = key.spelled(value)
        problem = (key.validator(value) or "") if key.validator else ""
        if key.required and not text.strip():
            return key.default, problem if isinstance(problem, Refusal | Sentence) else Refusal(
                "String must be non-empty"
            )
        return value, problem

    def _answer(
        self, key: ConfigKey, config: Mapping[str, str], errors: Iterable[str], *, shows_values: bool
    ) -> ConfigValue:
        given = key.name in config
        shown = self._quoted(key, config) if shows_values else None
        value = self.shown(key.name, config[key.name]) if given else default_text(key)
        return ConfigValue(
            secret_names.name(key.name),
            None if any(isinstance(error, Unreadable) for error in errors) else value,
            tuple(_told(key, error, shown) for error in errors),
            key.recommended,
            note=key.note if given else "",
        )

    def _quoted(self, key: ConfigKey, config: Mapping[str, str]) -> str | None:
        """Returns the value that was given as a sentence about it shows it."""
        text = _given(key, config)
        if not isinstance(text, str):
            return None
        shown = self.shown(key.name, text)
        return f"[{', '.join(parse_list(shown))}]" if key.type == "LIST" else shown

    def _other(self, name: str, config: Mapping[str, str], hints: Iterator[int]) -> ConfigValue:
        note = self.note_of(name)
        if note is not None:
            return ConfigValue(name, self.shown(name, config[name]), note=note)
        shown = secret_names.name(name)
        near = None
        if next(hints, None) is not None:
            near = nearest(name, [*self.keys, *(known for known in self.accepted if known[-1] not in ".*")])
        hint = f"; did you mean {near}?" if near else ""
        return ConfigValue(shown, None, (f"{shown} is not a known key{hint}",), nearest=near, known=False)

    def _counts(self, name: str) -> bool:
        """Whether a key says anything to a config that runs."""
        key = self.keys.get(name)
        return key.has_effect and key.of_task if key is not None else self.note_of(name) is not None

    def note_of(self, name: str) -> str | None:
        """Returns the note of a key that is accepted without effect, None for any other."""
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
        return secret_names.text(value) if isinstance(value, str) else value


def _told(key: ConfigKey, error: str, shown: str | None) -> str:
    name = secret_names.name(key.name)
    if isinstance(error, Refusal):
        return error.sentence(name, shown)
    return error if isinstance(error, Sentence) else f"{name} {error}"


def _given(key: ConfigKey, config: Mapping[str, str]) -> str | None:
    return config.get(key.name, config.get(key.former) if key.former else None)


def invalid(problems: Iterable[tuple[str, str]]) -> CdcError:
    """The one error for a config: every problem on a line of its own, the first key as its place."""
    found = list(problems)
    lines = "\n".join(_whole(name, text) for name, text in found)
    count = len(found)
    return CdcError(INVALID, f"{count} problem{'s' if count != 1 else ''}:\n{lines}", where={"key": found[0][0]})


def _whole(name: str, text: str) -> str:
    return text if isinstance(text, Sentence) or text.startswith(name) else f"{name} {text}"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.75) -> str | None:
    """Returns the known name that was probably meant; none for a name that is too long to be a slip."""
    if len(name) > HINT_CHARS_MAX:
        return None
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


_SECRET = re.compile(
    r"password|passwd|secret|token|credential|jaas|user\.info|private|api\.?key"
    r"|headers\.(?:additional|authorization)|truststore\.certificates|keystore\.(?:key|certificate\.chain)"
)


def _looks_secret(name: str) -> bool:
    """Keys without a definition: mask what a person would call a secret."""
    return _SECRET.search(name.lower()) is not None
