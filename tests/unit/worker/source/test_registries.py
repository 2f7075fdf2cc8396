"""Which registry gives the ids of a source's schemas."""

from __future__ import annotations

from typing import Any

import pytest
from cdcworker.connectors.formats.registry_keys import RegistrySettings
from cdcworker.schemas.log import Registration, RegistrationMeta
from cdcworker.worker.source.registries import RoutedRegistrar, external_of, routed

ORDER = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}


class Own:
    """The cluster's own registry: ids from a million on."""

    def __init__(self, *subjects: str) -> None:
        self.known = list(subjects)
        self.paths = {name: tuple(name.rpartition("-")[0].split(".")[1:]) for name in subjects}
        self.calls: list[list[str]] = []
        self.closed = 0

    def __call__(self, registrations: Any) -> list[int]:
        names = [registration.subject for registration in registrations]
        self.calls.append(names)
        self.known += names
        return [1_000_000 + number for number in range(len(names))]

    def subjects(self) -> dict[str, set[tuple[str, ...]]]:
        return {name: {self.paths.get(name, ())} for name in self.known}

    def close_idle(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        self.closed += 1


class External:
    """A registry at a url: ids from one on."""

    def __init__(self, ids: str = "kept") -> None:
        self.settings = RegistrySettings("value.converter.schema.registry.url", ("http://r",), ids)
        self.topics: list[str] = []

    def id_of(self, topic: str, registration: Registration) -> int:
        self.topics.append(topic)
        return len(self.topics)

    def close(self) -> None: ...


def registrations(*subjects: str) -> list[Registration]:
    return [Registration(subject, ORDER, RegistrationMeta()) for subject in subjects]


def chosen(config: dict[str, str]) -> Any:
    return external_of(config, lambda _doing, _allow_s: None)


def made(own: Own, **external: External) -> RoutedRegistrar:
    return RoutedRegistrar(own, external, "shop")  # type: ignore[arg-type]


def test_a_new_connector_has_the_ids_of_the_registry_at_the_url():
    own, external = Own("other.t-value", "shopping.t-value"), External()
    registrar = made(own, value=external, key=External())
    assert registrar(registrations("shop.a-b-key", "shop.a-b-value")) == [1, 1]
    assert registrar(registrations("shop.c-value")) == [2]
    assert external.topics == ["shop.a-b", "shop.c"]
    assert own.calls == []


def test_a_connector_whose_topics_have_own_ids_keeps_them_for_new_tables_too():
    own, external = Own("shop.a-value"), External()
    registrar = made(own, value=external)
    assert registrar(registrations("shop.a-key", "shop.a-value", "shop.new-value")) == [1_000_000, 1_000_001, 1_000_002]
    assert external.topics == []


def test_own_ids_under_a_prefix_that_begins_with_this_one_are_anothers():
    own, external = Own("shop.eu.public.a-value"), External()
    own.paths["shop.eu.public.a-value"] = ("public", "a")
    registrar = made(own, value=external)
    assert registrar(registrations("shop.public.a-value")) == [1]


def test_what_a_dropped_session_has_registered_is_known_to_the_next_one(monkeypatch):
    steps: list[str] = []
    config = {"value.converter.schema.registry.url": "http://r:1"}
    external = external_of(config, lambda doing, allow_s: steps.append(doing))
    asked: list[str] = []
    monkeypatch.setattr(
        "cdcworker.connectors.external_registry.client.RegistryClient.register",
        lambda self, subject, schema: asked.append(subject) or len(asked),
    )
    for _ in range(2):
        registrar = routed(Own(), external, "shop")
        assert registrar(registrations("shop.a-value")) == [1]
        registrar.close()
    assert asked == ["shop.a-value"]


def test_a_topic_with_another_name_keeps_its_own_ids():
    own, external = Own("orders-value"), External()
    registrar = made(own, value=external)
    assert registrar(registrations("orders-value", "items-value")) == [1_000_000, 1]


def test_own_ids_of_keys_say_nothing_of_values():
    own, external = Own(), External()
    registrar = made(own, value=external)
    for _ in range(2):
        registrar = made(own, value=external)
        assert registrar(registrations("shop.a-key", "shop.a-value"))[0] == 1_000_000
    assert external.topics == ["shop.a", "shop.a"]


def test_the_config_may_say_that_all_ids_are_those_of_the_url():
    own, external = Own("shop.a-value"), External("url")
    assert made(own, value=external)(registrations("shop.a-value")) == [1]


def test_without_a_url_nothing_stands_before_the_own_registry():
    own = Own()
    assert routed(own, chosen({"value.converter": "avro"}), "shop") is own
    config = {"value.converter.schema.registry.url": "http://r:1", "value.converter.schema.registry.ids": "own"}
    assert routed(own, chosen(config), "shop") is own
    registrar = routed(own, chosen({"value.converter.schema.registry.url": "http://r:1"}), "shop")
    assert isinstance(registrar, RoutedRegistrar)
    registrar.close()
    assert own.closed == 1


@pytest.mark.parametrize("subject", ["shop.a-value", "shop.a-key"])
def test_a_side_without_a_url_is_the_own_registrys(subject):
    own = Own()
    side = "key" if subject.endswith("value") else "value"
    assert made(own, **{side: External()})(registrations(subject)) == [1_000_000]
