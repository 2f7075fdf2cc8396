"""Java and its libraries: which runtime is chosen, and which jars are trusted."""

from __future__ import annotations

from pathlib import Path

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.java import ivy, jars
from cdcworker.worker.java.runtime import feature_version, find_java


def java_at(home: Path, version: str) -> Path:
    """A folder that looks like a Java runtime."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return program


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25-ea", 25), ("x", None)]
)
def test_a_java_version_is_read_in_both_of_its_spellings(text, version):
    assert feature_version(text) == version


def test_java_home_comes_before_path_when_its_version_fits(tmp_path):
    home = java_at(tmp_path / "home", "21.0.1")
    path = java_at(tmp_path / "path", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)})
    assert (found.program, found.version, found.origin) == (home, 21, "JAVA_HOME")


@pytest.mark.parametrize("version", ["11.0.2", "25.0.1"])
def test_a_java_that_is_too_old_or_too_new_is_passed_over(tmp_path, version):
    java_at(tmp_path / "home", version)
    path = java_at(tmp_path / "path", "17.0.1")
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}).program == path


def test_without_a_fitting_java_every_one_looked_at_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("cdcworker.worker.java.runtime.importlib.util.find_spec", lambda _: None)
    java_at(tmp_path, "11.0.2")
    with pytest.raises(CdcError) as caught:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert caught.value.code == "devstack.java_missing"
    assert "version 11" in caught.value.message


def test_every_locked_jar_has_coordinates_and_a_sha256():
    for name, section in jars.lock().items():
        assert section, name
        for jar in section:
            assert all((jar.organisation, jar.name, jar.revision))
            assert len(jar.sha256) == 64
            int(jar.sha256, 16)
        assert len({jar.file_name for jar in section}) == len(section)


def test_an_unknown_section_is_refused_with_those_that_exist():
    with pytest.raises(CdcError, match=r"no section nope; known: kafka"):
        jars.section("nope")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A cache and a lock of one library with an accepted alternative; what the repository has is in `offered`."""
    content = {"2.0": b"new", "1.0": b"old"}
    import hashlib

    def jar(revision: str, *others: jars.Jar) -> jars.Jar:
        return jars.Jar("org.x", "lib", revision, hashlib.sha256(content[revision]).hexdigest(), others)

    offered = dict(content)

    def retrieve(java, ivy_jar, artifacts, work, progress):
        (work / "out").mkdir(exist_ok=True)
        absent = {str(one) for one in artifacts if one.revision not in offered}
        if not absent:
            for one in artifacts:
                (work / "out" / one.file_name).write_bytes(offered[one.revision])
        return absent

    monkeypatch.setenv("CDC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jars, "lock", lambda: {"s": (jar("2.0", jar("1.0")),)})
    monkeypatch.setattr(ivy, "retrieve", retrieve)
    monkeypatch.setattr(jars, "_ivy_jar", lambda: Path("ivy.jar"))
    return offered


def test_a_fetched_jar_is_kept_and_not_fetched_again(store, tmp_path):
    assert jars.ensure("s") == [tmp_path / "jars" / "s" / "lib-2.0.jar"]
    store.clear()
    assert [path.read_bytes() for path in jars.ensure("s")] == [b"new"]
    assert [finding.state for finding in jars.verify("s")] == ["ok"]


def test_an_accepted_alternative_stands_in_for_what_the_repository_lacks(store):
    del store["2.0"]
    assert [path.name for path in jars.ensure("s")] == ["lib-1.0.jar"]
    assert str(jars.verify("s")[0].jar) == "org.x:lib:1.0"


def test_a_jar_with_another_content_is_never_installed(store):
    store["2.0"] = b"evil"
    with pytest.raises(CdcError, match="jar_mismatch"):
        jars.ensure("s")
    assert [finding.state for finding in jars.verify("s")] == ["missing"]


def test_a_jar_that_changed_in_the_cache_is_found_and_fetched_again(store):
    (path,) = jars.ensure("s")
    path.write_bytes(b"changed")
    assert [finding.state for finding in jars.verify("s")] == ["mismatch"]
    assert [again.read_bytes() for again in jars.ensure("s")] == [b"new"]


def test_a_jar_no_repository_has_is_named(store):
    store.clear()
    with pytest.raises(CdcError, match=r"no repository has org\.x:lib:2\.0"):
        jars.ensure("s")


SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>
<mirror><id>b</id><mirrorOf>external:http:*</mirrorOf><url>http://0.0.0.0/</url><blocked>true</blocked></mirror>
<mirror><id>other</id><mirrorOf>spring</mirrorOf><url>https://other.example/m</url></mirror>
<mirror><id>all</id><mirrorOf>*,!local</mirrorOf><url>https://mirror.example/m</url></mirror>
</mirrors></settings>"""


def test_the_mirror_for_the_central_repository_is_taken_from_maven_settings(tmp_path):
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(SETTINGS)
    assert ivy.mirrors({}, tmp_path) == ["https://mirror.example/m/"]
    assert ivy.mirrors({"CDC_MAVEN_MIRRORS": "file:///a, file:///b/"}, tmp_path) == ["file:///a/", "file:///b/"]
    assert ivy.mirrors({}, tmp_path / "elsewhere") == []


def test_settings_name_no_host_of_their_own_and_quote_what_they_are_given():
    assert "root=" not in ivy.settings_xml([])
    assert 'root="https://a/?x=1&amp;y"' in ivy.settings_xml(["https://a/?x=1&y"])


def test_proxies_become_jvm_properties_without_their_credentials():
    options = ivy.proxy_options({"https_proxy": "http://user:pw@proxy:3128", "NO_PROXY": "localhost,.corp"})
    assert options == ["-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=3128", "-Dhttp.nonProxyHosts=localhost|*.corp"]
    assert ivy.proxy_options({}) == []


def test_what_no_repository_has_is_read_from_the_fetchers_report():
    lines = ["\t\t:: org.slf4j#slf4j-nope;1.7.36: not found", ":: a#b;1!b.jar", "\t[SUCCESSFUL ] c#d;1!d.jar (5ms)"]
    assert ivy.not_found(lines) == {"org.slf4j:slf4j-nope:1.7.36"}
