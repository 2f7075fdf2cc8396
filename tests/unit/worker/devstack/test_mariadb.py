"""A MariaDB whose program for the system tables fails now and then."""

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.mariadb import INSTALLS_MAX, EmbeddedMariaDb

SCRIPT = """
echo once >> {folder}/calls
[ -e {data}/left ] && exit 7
touch {data}/left
[ $(wc -l < {folder}/calls) -ge {succeeds_at} ]
"""


def server(folder, succeeds_at):
    database = EmbeddedMariaDb(folder / "programs", folder / "mariadb")
    (folder / "programs" / "scripts").mkdir(parents=True)
    script = SCRIPT.format(folder=folder, data=folder / "mariadb" / "data", succeeds_at=succeeds_at)
    (folder / "programs" / "scripts" / "mariadb-install-db").write_text(script)
    return database


def test_system_tables_are_made_anew_where_the_program_failed(tmp_path):
    database = server(tmp_path, INSTALLS_MAX)
    database._prepare()
    assert database.port
    assert (tmp_path / "calls").read_text().count("once") == INSTALLS_MAX
    assert not (tmp_path / "mariadb" / "account.sql").exists()


def test_a_program_that_always_fails_is_told(tmp_path):
    with pytest.raises(CdcError, match="mariadb-install-db failed"):
        server(tmp_path, INSTALLS_MAX + 1)._prepare()
    assert (tmp_path / "calls").read_text().count("once") == INSTALLS_MAX
