"""The keys of transforms and predicates in a connector's config: how they are judged, and what they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from cdcworker.connectors.config.common_keys import delivery_checks
from cdcworker.connectors.config.converters import GROUP, NOT_AVAILABLE, SAME, SIDES, Side, flag, text_of
from cdcworker.connectors.config.definition import PARSERS, ConfigKey, Validator, nearest
from cdcworker.connectors.config.refusals import Refusal, Sentence
from cdcworker.connectors.converters.config import converter_keys, single_checks, wire_of
from cdcworker.connectors.formats.registry_keys import registry_checks
from cdcworker.connectors.transform_chain.chain import Stage, TransformChain
from cdcworker.connectors.transform_chain.plugin_transforms import plugin_transforms
from cdcworker.connectors.transform_chain.unwrap import (
    UNWRAP,
    check_added,
    flat_of,
    unwrap_keys,
)
from cdcworker.connectors.transforms import definitions
from cdcworker.connectors.transforms.debezium import definitions as debezium
from cdcworker.connectors.transforms.definitions import PREDICATES, ROUTER, short_name
from cdcworker.connectors.transforms.transform import Transform
from cdcworker.schemas import patterns
from cdcworker.schemas.record_format import RecordFormat, RegexRoute

Plural = Literal["transforms", "predicates"]
ALIASES_MAX: Final = 20
"""Names of transforms or predicates: each has keys of its own, which are judged and shown."""
EXAMPLE: Final = {
    "transforms": "unwrap,route",
    "transforms.unwrap.type": UNWRAP,
    "transforms.route.type": ROUTER,
}
"""Names the transforms that the encoder knows, so that their keys can be shown."""
PLUGINS: Final = plugin_transforms()
"""Those of other distributions that the operator allows."""
TRANSFORMS: Final = {**definitions.TRANSFORMS, **debezium.TRANSFORMS, **PLUGINS.definitions}
"""By class name; RegexRouter and ExtractNewRecordState, which the record's form may have, are not among them."""
TRANSFORM_CLASSES: Final = (UNWRAP, ROUTER, *TRANSFORMS)
KNOWN: Final[Mapping[Plural, Mapping[str, str]]] = {
    "transforms": {
        # Kafka Connect's classes come first: a short name that Debezium has too is theirs.
        **{short_name(name): name for name in reversed(TRANSFORM_CLASSES)},
        **{name: name for name in TRANSFORM_CLASSES},
        "io.debezium.transforms.UnwrapFromEnvelope": UNWRAP,
    },
    "predicates": {**{short_name(name): name for name in PREDICATES}, **{name: name for name in PREDICATES}},
}
"""Class names by what a config says."""
_EXTRACT: Final = "org.apache.kafka.connect.transforms.ExtractField$"
_SINGLING: Final = frozenset(("io.debezium.transforms.outbox.EventRouter",))
"""Transforms that leave single values as key and as value."""
_ELSEWHERE: Final = {
    "TimezoneConverter": "set the session's zone at the database; TimestampConverter writes moments in UTC",
}
"""Transforms that existing configs name and that there are not, by what to do instead."""


def _few(names: list[str], plural: Plural = "transforms") -> str | None:
    return f"names {len(names)} {plural}; at most {ALIASES_MAX} may be named" if len(names) > ALIASES_MAX else None


TRANSFORMS_KEY: Final = ConfigKey(
    "transforms", "LIST", [], group=GROUP, recommended=("unwrap",), validator=_few,
    doc="Names of transforms, in the order in which they are applied; `transforms.<name>.type` is a class of Kafka Connect's "
    "or of Debezium's.",
)  # fmt: skip
PREDICATES_KEY: Final = ConfigKey(
    "predicates", "LIST", [], group=GROUP, validator=lambda names: _few(names, "predicates"),
    doc="Names of conditions for transforms; `predicates.<name>.type` is a class of Kafka Connect's.",
)  # fmt: skip


# Keys


def transform_keys(config: Mapping[str, str]) -> Iterable[ConfigKey]:
    """Yields the keys that depend on the config: converters, and those of each transform and predicate, which begin with the
    name that it is given."""
    yield from converter_keys(config)
    yield from _keys(config, "transforms")
    yield from _keys(config, "predicates")


def _keys(config: Mapping[str, str], plural: Plural) -> Iterator[ConfigKey]:
    names = _aliases(config, plural)
    unwraps: list[str] = []
    for number, name in enumerate(names):
        at = f"{plural}.{name}."
        kind = KNOWN[plural].get(text_of(config, f"{at}type"))
        problem = ""
        if kind == UNWRAP:
            problem = _unwrap_problem(config, names[:number], unwraps)
            unwraps.append(name)
        yield _type_key(config, plural, name, problem)
        if kind is not None and not problem:
            yield from own_keys(plural, kind, at, f"{plural.capitalize()}: {name}")
        else:  # its type is the problem, not its settings
            yield from (ConfigKey(key) for key in config if key.startswith(at) and key != f"{at}type")
    named = tuple(f"{plural}.{name}." for name in names)
    if named or not text_of(config, plural):
        singular = plural.removesuffix("s")
        for key in config:
            if key.startswith(f"{plural}.") and not key.startswith(named):
                text = f"belongs to no {singular} that the key {plural} names"
                yield ConfigKey(key, group=NOT_AVAILABLE, validator=_always(text))


def _always(text: str) -> Validator:
    return lambda _: text


def _unwrap_problem(config: Mapping[str, str], before: Sequence[str], unwraps: Sequence[str]) -> str:
    """Returns why ExtractNewRecordState cannot stand where it does; empty: it can."""
    if unwraps:
        return f"is the same as that of transforms.{unwraps[0]}: one of a kind is applied"
    for name in before:
        at = f"transforms.{name}."
        if KNOWN["transforms"].get(text_of(config, f"{at}type")) != ROUTER or text_of(config, f"{at}predicate"):
            return f"comes after transforms.{name}: only a RegexRouter without a predicate may stand before it"
    return ""


def _type_key(config: Mapping[str, str], plural: Plural, name: str, problem: str) -> ConfigKey:
    noun = "transformation" if plural == "transforms" else "predicate"
    classes = TRANSFORM_CLASSES if plural == "transforms" else tuple(PREDICATES)
    at = f"{plural}.{name}."

    def check(value: str) -> str | None:
        if plural == "transforms" and f"{at}negate" in config and f"{at}predicate" not in config:
            return Sentence(
                f"Config '{at}negate' was provided but there is no config '{at}predicate' defining a predicate to be negated."
            )
        if value in KNOWN[plural]:
            return problem or None
        near = nearest(value, KNOWN[plural], SAME)
        hint = _ELSEWHERE.get(short_name(value)) or (
            f"did you mean {near}?"
            if near
            else f"it is no {noun} of Kafka Connect's own or of Debezium's; transform where the topic is read"
        )
        return Refusal(f"Class could not be found: {hint}")

    return ConfigKey(
        f"{at}type", "CLASS", required=True, importance="HIGH", group=f"{plural.capitalize()}: {name}", validator=check,
        recommended=classes, doc=f"Class for the '{name}' {noun}.", width="LONG", order=1,
        display_name=f"{'Transformation' if plural == 'transforms' else 'Predicate'} type for {name}",
    )  # fmt: skip


def own_keys(plural: Plural, kind: str, at: str, group: str) -> Iterator[ConfigKey]:
    """Yields the keys of a class, behind `at`."""
    if plural == "predicates":
        yield from definitions.under(PREDICATES[kind].keys, at, group)
        return
    if kind == UNWRAP:
        yield from unwrap_keys(at, group)
        return
    yield ConfigKey(
        f"{at}predicate", group=group, doc="Name of the predicate that decides whether the transform is applied."
    )
    yield ConfigKey(
        f"{at}negate", "BOOLEAN", False, group=group, doc="Whether it is applied where the predicate is not met."
    )
    if kind == ROUTER:
        yield from definitions.router_keys(at, group)
    else:
        yield from definitions.under(TRANSFORMS[kind].keys, at, group)


def _aliases(config: Mapping[str, str], plural: Plural) -> Sequence[str]:
    """Returns the names that are judged: none where there are too many."""
    names = PARSERS["LIST"](text_of(config, plural))
    return [] if len(names) > ALIASES_MAX else list(dict.fromkeys(names))


# Checks of several keys


def transform_checks(source_fields: Iterable[str] | None) -> Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]]:
    """Returns the check that looks at several keys together: fields that are not there, groups that the pattern does not have,
    predicates that nobody defines, and what Kafka Connect says when it configures a transform. None: of a sink, which learns
    only from records which fields there are."""
    known = None if source_fields is None else frozenset(source_fields)

    def check(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        yield from registry_checks(config)
        if known is not None:
            yield from delivery_checks(config)
            yield from single_checks(config, _singled(config))
        for name in config["transforms"]:
            at = f"transforms.{name}."
            kind = KNOWN["transforms"].get(str(config.get(f"{at}type")))
            if kind == UNWRAP:
                for key in ("add.fields", "add.headers"):
                    if known is not None:
                        yield from check_added(at + key, config[at + key], known)
            elif kind == ROUTER:
                yield from definitions.check_route(f"{at}regex", config[f"{at}regex"], config[f"{at}replacement"])
            elif kind is not None:
                definition = TRANSFORMS[kind]
                own = {each.name: config[at + each.name] for each in definition.keys}
                yield from ((at + key, problem) for key, problem in definition.check(own))
            predicate = config.get(f"{at}predicate")
            if predicate and predicate not in config["predicates"]:
                yield f"{at}predicate", "names no predicate of the key predicates"

    return check


def _singled(config: Mapping[str, Any]) -> frozenset[Side]:
    """Returns the sides of which a transform may leave a single value: by its class, since what it makes of a row is only known
    once there is one."""
    found: set[Side] = set()
    for name in config["transforms"]:
        kind = KNOWN["transforms"].get(str(config.get(f"transforms.{name}.type")), "")
        if kind in PLUGINS.definitions or kind in _SINGLING:
            found.update(SIDES)
        elif kind.startswith(_EXTRACT):
            found.add("key" if kind.endswith("$Key") else "value")
    return frozenset(found)


# What a validated config asks for


def _is_of_format(config: Mapping[str, str]) -> bool:
    """Returns whether the encoder knows all transforms: their names have no condition, and no other is among them."""
    for name in _aliases(config, "transforms"):
        at = f"transforms.{name}."
        kind = KNOWN["transforms"].get(text_of(config, f"{at}type"))
        if kind not in (UNWRAP, ROUTER, None) or text_of(config, f"{at}predicate"):
            return False
    return True


def format_of(config: Mapping[str, str]) -> RecordFormat:
    """Returns the form of a validated config's records; what is not known, or another source's, leaves the default. Routes
    are part of it where no other transform could come between."""
    flat, routes = None, []
    tombstones = flag(config, "tombstones.on.delete", True)
    has_chain = not _is_of_format(config)
    for name in _aliases(config, "transforms"):
        at = f"transforms.{name}."
        kind = KNOWN["transforms"].get(text_of(config, at + "type"))
        if kind == UNWRAP:
            flat = flat_of(config, at, tombstones=tombstones)
        elif kind == ROUTER and not has_chain:
            routes.append(
                RegexRoute(patterns.required(config[at + "regex"].strip()), config[at + "replacement"].strip())
            )
    skipped = {name.lower() for name in PARSERS["LIST"](text_of(config, "skipped.operations"))}
    # A truncate of one table would empty what readers have of all tables of the topic.
    is_shared = (bool(routes) or has_chain) and "t" in skipped
    return RecordFormat(wire_of(config, "key"), wire_of(config, "value"), flat, tuple(routes), shared=is_shared)


def chain_of(config: Mapping[str, str]) -> TransformChain:
    """Returns the transforms of a validated config that the record's form does not have; empty: there are none."""
    return TransformChain(() if _is_of_format(config) else tuple(_stages(config, None)))


def whole_chain_of(config: Mapping[str, str], unwrap: Callable[[str], Transform]) -> TransformChain:
    """Returns all transforms of a validated config, for records that somebody has written already. `unwrap` makes
    ExtractNewRecordState of the keys that begin as it is told."""
    return TransformChain(tuple(_stages(config, unwrap)))


def _stages(config: Mapping[str, str], unwrap: Callable[[str], Transform] | None) -> Iterator[Stage]:
    for name in _aliases(config, "transforms"):
        at = f"transforms.{name}."
        kind = KNOWN["transforms"].get(text_of(config, at + "type"))
        if kind is None or (kind == UNWRAP and unwrap is None):
            continue
        if kind == UNWRAP and unwrap is not None:
            yield Stage(name, unwrap(at))
            continue
        predicate = text_of(config, f"{at}predicate")
        yield Stage(
            name,
            _transform(kind, config, at),
            _predicate(config, f"predicates.{predicate}.") if predicate else None,
            flag(config, f"{at}negate", False),
        )


def _transform(kind: str, config: Mapping[str, str], at: str) -> Transform:
    if kind == ROUTER:
        return definitions.regex_router({key: config[at + key] for key in ("regex", "replacement")})
    return TRANSFORMS[kind].make(_parsed(TRANSFORMS[kind].keys, config, at))


def _predicate(config: Mapping[str, str], at: str) -> Any:
    definition = PREDICATES[KNOWN["predicates"][text_of(config, f"{at}type")]]
    return definition.make(_parsed(definition.keys, config, at))


def _parsed(keys: Iterable[ConfigKey], config: Mapping[str, str], at: str) -> dict[str, Any]:
    """Returns the values of one transform's keys."""
    return {key.name: _value(key, config[at + key.name]) if at + key.name in config else key.default for key in keys}


def _value(key: ConfigKey, text: str) -> Any:
    """Returns a value as it was judged. A text of the user's own is as it is given: spaces count."""
    if key.type != "STRING":
        return PARSERS[key.type](text)
    return key.spelled(text.strip()) if key.recommended else text
