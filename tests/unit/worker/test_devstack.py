"""The embedded stack's own logic: what is chosen, what is trusted, what dies with us."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack import ivy, jars
from cdcworker.worker.devstack.java import feature_version, find_java
from cdcworker.worker.devstack.ports import accepts, free_ports, is_free
from cdcworker.worker.devstack.postgres import find_programs
from cdcworker.worker.devstack.process import Child, log_tail
from cdcworker.worker.devstack.scratch import scratch_folder, sweep
from cdcworker.worker.devstack.stack import worker_environment, write_endpoints


def java_at(home: Path, version: str) -> Path:
    """A folder that looks like a Java runtime."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return program


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


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
    monkeypatch.setattr("cdcworker.worker.devstack.java.importlib.util.find_spec", lambda _: None)
    java_at(tmp_path, "11.0.2")
    with pytest.raises(CdcError) as caught:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert caught.value.code == "devstack.java_missing"
    assert "version 11" in caught.value.message


def test_the_named_folder_is_the_only_place_for_postgres_programs(tmp_path):
    with pytest.raises(CdcError, match="postgres_missing"):
        find_programs({"CDC_PG_BIN": str(tmp_path), "PATH": "/usr/bin"})
    for name in ("postgres", "initdb"):
        (tmp_path / name).touch(mode=0o755)
    assert find_programs({"CDC_PG_BIN": str(tmp_path)}) == tmp_path


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


def test_ports_are_distinct_and_free():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)
    assert not accepts(ports[0])


def test_a_child_dies_when_its_parent_is_killed(tmp_path, until):
    code = (
        "import sys, time; from pathlib import Path; from cdcworker.worker.devstack.process import Child\n"
        f"child = Child('sleeper', ['sleep', '60'], Path({str(tmp_path)!r}) / 'log')\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"))
        parent.kill()
    until(lambda: gone(pid))


def test_a_child_that_ignores_the_request_is_killed_at_the_deadline(tmp_path):
    child = Child("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"], tmp_path / "log")
    child.wait_until(lambda: "ready" in log_tail(tmp_path / "log"), 10)
    assert child.stop(timeout_s=0.2) == -signal.SIGKILL
    assert not child.alive()
    assert child.stop() == -signal.SIGKILL


def test_a_child_that_ends_early_says_why_with_its_last_lines(tmp_path):
    child = Child("broken", ["sh", "-c", "echo no such thing; exit 3"], tmp_path / "log")
    with pytest.raises(CdcError) as caught:
        child.wait_until(lambda: False, 10)
    assert caught.value.message == "broken ended with exit code 3:\nno such thing"


def test_scratch_is_removed_with_everything_in_it(tmp_path):
    with scratch_folder(tmp_path / "data") as folder:
        (folder / "file").write_text("x")
    assert not folder.exists()


def test_a_folder_with_content_is_not_used_as_scratch(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(CdcError, match="folder_used"), scratch_folder(tmp_path):
        pass
    assert (tmp_path / "mine").exists()


def test_only_scratch_whose_owner_is_gone_is_swept(tmp_path):
    (tmp_path / "x-old").mkdir()
    (tmp_path / "x-old" / ".owner").touch()
    (tmp_path / "x-foreign").mkdir()
    with scratch_folder(tmp_path / "x-live"):
        sweep(tmp_path, "x-")
        assert {path.name for path in tmp_path.iterdir()} == {"x-live", "x-foreign"}


def test_endpoints_are_written_whole_and_for_us_alone(tmp_path):
    path = tmp_path / "endpoints.json"
    write_endpoints(path, {"workers": ["http://127.0.0.1:1"]})
    assert json.loads(path.read_text()) == {"workers": ["http://127.0.0.1:1"]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["endpoints.json"]


def test_workers_do_not_inherit_settings_meant_for_others(monkeypatch):
    monkeypatch.setenv("CDC_GROUP_ID", "production")
    monkeypatch.setenv("CONNECT_GROUP_ID", "production")
    monkeypatch.setenv("CDC_CACHE_DIR", "/c")
    environment = worker_environment({"SHOP_PASSWORD": "s"})
    assert "CDC_GROUP_ID" not in environment
    assert "CONNECT_GROUP_ID" not in environment
    assert (environment["CDC_CACHE_DIR"], environment["SHOP_PASSWORD"]) == ("/c", "s")
    assert environment["PATH"] == os.environ["PATH"]
