"""The properties of Iceberg's catalogs that connectors may set, by the kind of catalog, with the form of each value.

Iceberg, Hadoop and the drivers of databases load classes, read files and connect to hosts that properties name. So what is
not listed is refused, no listed property names a class, and each host and path in a value is judged before Iceberg gets it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcworker.connectors.config.definition import has_reference
from cdcworker.connectors.config.place_forms import (
    FILES,
    HOST_OR_HTTP,
    HTTP,
    HTTP_OR_PATH,
    PATH,
    PLACE,
    PlaceForm,
    bare,
    host_problem,
    one_of,
    text_of,
)
from cdcworker.connectors.warehouses.lake.catalog import catalog_tls, jdbc_uris
from cdcworker.connectors.warehouses.lake.catalog.jdbc_uris import BOOLEAN, NUMBER, TEXT, WORD
from cdcworker.connectors.warehouses.places import admit_places
from cdcworker.schemas.errors import CdcError, declare

PROPERTY_REFUSED: Final = declare(
    "config.catalog_property",
    "config",
    "A property of the lake's catalog is not one that connectors may set, or its value is not allowed",
    "Take the property out, or correct its value; the page on Iceberg lists the properties of each kind of catalog.",
)
CATALOGS: Final = ("hadoop", "hive", "rest", "jdbc", "nessie")
PATH_KEY: Final = "warehouse.path"
URI_KEY: Final = "warehouse.catalog.uri"
PROPERTIES_KEY: Final = "warehouse.catalog.properties"
SECRETS_KEY: Final = "warehouse.catalog.secrets"
_VARIABLE: Final = "env:"
_HADOOP: Final = "hadoop."
_REGION: Final = text_of(r"[a-z0-9-]{1,64}", "the name of a region")
_ACCOUNT: Final = r"[A-Za-z0-9.-]{1,253}"
_ODD_URI: Final = re.compile(r"(?i)file:|[a-z][a-z0-9+.-]*:/")
_PROXIES: Final = ("http-client.proxy-endpoint", "rest.client.proxy.hostname")
_METASTORES: Final = re.compile(rf"thrift://{PLACE}/?")
_AUTHENTICATION: Final = one_of("none", "basic", "oauth2", "sigv4", "google")


def _form(form: PlaceForm, *names: str) -> dict[str, PlaceForm]:
    return dict.fromkeys(names, form)


def _warehouse_problem(value: str) -> str | None:
    """Returns what is wrong with the place or the name of a warehouse, which a server may know by any name."""
    if _of_place(value):
        return FILES.problem(value)
    return "expects a name, an absolute path or the URI of a store" if _ODD_URI.match(value) else TEXT.problem(value)


def _of_place(value: str) -> bool:
    return value.startswith("/") or "://" in value


_WAREHOUSE: Final = PlaceForm(
    _warehouse_problem,
    FILES.hosts,
    FILES.services,
    lambda value: FILES.paths(value) if _of_place(value) else (),
)


def _metastores_problem(value: str) -> str | None:
    for text in value.split(","):
        found = _METASTORES.fullmatch(text.strip())
        problem = host_problem(found["host"]) if found else "expects thrift://host:port"
        if problem:
            return problem
    return None


def _metastore_hosts(value: str) -> Sequence[str]:
    found = (_METASTORES.fullmatch(text.strip()) for text in value.split(","))
    return [bare(one["host"]) for one in found if one]


METASTORES: Final = PlaceForm(_metastores_problem, _metastore_hosts)

TABLE_PROPERTIES: Final[Mapping[str, PlaceForm]] = {
    **_form(WORD, "write.format.default", "write.delete.format.default", "write.metadata.compression-codec"),
    **_form(WORD, "write.parquet.compression-codec", "write.avro.compression-codec", "write.orc.compression-codec"),
    **_form(NUMBER, "write.parquet.compression-level", "write.avro.compression-level"),
    **_form(
        NUMBER, "write.parquet.row-group-size-bytes", "write.parquet.page-size-bytes", "write.parquet.dict-size-bytes"
    ),
    **_form(NUMBER, "write.target-file-size-bytes", "write.delete.target-file-size-bytes"),
    **_form(NUMBER, "write.metadata.previous-versions-max", "write.metadata.metrics.max-inferred-column-defaults"),
    **_form(NUMBER, "commit.retry.num-retries", "commit.retry.min-wait-ms", "commit.retry.max-wait-ms"),
    **_form(NUMBER, "commit.retry.total-timeout-ms", "commit.status-check.num-retries"),
    **_form(NUMBER, "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"),
    **_form(NUMBER, "read.split.target-size"),
    **_form(BOOLEAN, "gc.enabled", "write.metadata.delete-after-commit.enabled", "write.object-storage.enabled"),
}
"""Properties of tables that name no place and no class; those by which a sink commits are not among them."""

_ANY_CATALOG: Final[Mapping[str, PlaceForm]] = {
    **_form(NUMBER, "clients", "cache.expiration-interval-ms", "client.pool.cache.eviction-interval-ms"),
    **_form(BOOLEAN, "cache.case-sensitive", "io.manifest.cache-enabled", "unique-table-location"),
    **_form(NUMBER, "io.manifest.cache.expiration-interval-ms", "io.manifest.cache.max-content-length"),
    **_form(NUMBER, "io.manifest.cache.max-total-bytes"),
    **_form(NUMBER, "lock.acquire-interval-ms", "lock.acquire-timeout-ms", "lock.heartbeat-interval-ms"),
    **_form(NUMBER, "lock.heartbeat-timeout-ms", "lock.heartbeat-threads"),
    **_form(WORD, "default-namespace", "client-pool-cache-keys", "app-id", "app-name"),
    **{f"table-{kind}.{name}": form for kind in ("default", "override") for name, form in TABLE_PROPERTIES.items()},
}
_S3: Final[Mapping[str, PlaceForm]] = {
    **_form(HTTP, "s3.endpoint"),
    **_form(_REGION, "s3.region", "client.region"),
    **_form(TEXT, "s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.sse.key", "s3.sse.md5"),
    **_form(one_of("none", "s3", "kms", "dsse-kms", "custom"), "s3.sse.type"),
    **_form(WORD, "s3.acl", "s3.write.storage-class"),
    **_form(BOOLEAN, "s3.path-style-access", "s3.checksum-enabled", "s3.chunked-encoding-enabled", "s3.delete-enabled"),
    **_form(BOOLEAN, "s3.use-arn-region-enabled", "s3.dualstack-enabled", "s3.cross-region-access-enabled"),
    **_form(BOOLEAN, "s3.acceleration-enabled", "s3.preload-client-enabled", "s3.remote-signing-enabled"),
    **_form(BOOLEAN, "s3.write.table-tag-enabled", "s3.write.namespace-tag-enabled", "s3.crt.enabled"),
    **_form(BOOLEAN, "s3.access-grants.enabled", "s3.access-grants.fallback-to-iam"),
    **_form(NUMBER, "s3.multipart.num-threads", "s3.multipart.part-size-bytes", "s3.delete.batch-size"),
    **_form(NUMBER, "s3.delete.num-threads", "s3.crt.max-concurrency", "s3.session-token-expires-at-ms"),
    **_form(NUMBER, "s3.retry.num-retries", "s3.retry.min-wait-ms", "s3.retry.max-wait-ms"),
    **_form(text_of(r"[0-9]{1,4}(\.[0-9]{1,6})?", "a number"), "s3.multipart.threshold"),
    **_form(PATH, "s3.staging-dir"),
    **_form(one_of("apache", "urlconnection"), "http-client.type"),
    **_form(HTTP, "http-client.proxy-endpoint"),
    **{
        f"http-client.{name}": NUMBER
        for name in (
            "urlconnection.connection-timeout-ms",
            "urlconnection.socket-timeout-ms",
            "apache.connection-timeout-ms",
            "apache.socket-timeout-ms",
            "apache.connection-acquisition-timeout-ms",
            "apache.connection-max-idle-time-ms",
            "apache.connection-time-to-live-ms",
            "apache.max-connections",
        )
    },
    **_form(BOOLEAN, "http-client.apache.tcp-keep-alive-enabled", "http-client.apache.expect-continue-enabled"),
}
_OTHER_STORES: Final[Mapping[str, PlaceForm]] = {
    **_form(HTTP, "gcs.service.host"),
    **_form(TEXT, "gcs.oauth2.token", "gcs.encryption-key", "gcs.decryption-key"),
    **_form(WORD, "gcs.project-id", "gcs.user-project", "gcs.client-lib-token"),
    **_form(NUMBER, "gcs.oauth2.token-expires-at", "gcs.channel.read.chunk-size-bytes", "gcs.delete.batch-size"),
    **_form(NUMBER, "gcs.channel.write.chunk-size-bytes", "adls.read.block-size-bytes", "adls.write.block-size-bytes"),
    **_form(BOOLEAN, "gcs.no-auth"),
    **_form(TEXT, "adls.auth.shared-key.account.key", "adls.token"),
    **_form(WORD, "adls.auth.shared-key.account.name"),
    **_form(HOST_OR_HTTP, "hadoop.fs.s3a.endpoint"),
    **_form(_REGION, "hadoop.fs.s3a.endpoint.region"),
    **_form(TEXT, "hadoop.fs.s3a.access.key", "hadoop.fs.s3a.secret.key", "hadoop.fs.s3a.session.token"),
    **_form(BOOLEAN, "hadoop.fs.s3a.path.style.access", "hadoop.fs.s3a.connection.ssl.enabled"),
    **_form(NUMBER, "hadoop.fs.s3a.connection.maximum", "hadoop.fs.s3a.attempts.maximum", "hadoop.fs.s3a.threads.max"),
    **_form(WORD, "hadoop.fs.gs.project.id"),
    **_form(BOOLEAN, "hadoop.dfs.client.use.datanode.hostname"),
}
_STORE_FAMILIES: Final = (
    (r"s3\.access-points\.[A-Za-z0-9._-]{1,128}", text_of(r"[A-Za-z0-9:._/-]{1,512}", "the name of an access point")),
    (r"s3\.(?:write|delete)\.tags\.[A-Za-z0-9._-]{1,128}", WORD),
    (rf"adls\.sas-token\.{_ACCOUNT}", TEXT),
    (rf"adls\.sas-token-expires-at-ms\.{_ACCOUNT}", NUMBER),
    (rf"adls\.connection-string\.{_ACCOUNT}", HOST_OR_HTTP),
    (rf"hadoop\.fs\.azure\.(?:account\.key|sas\.fixed\.token)\.{_ACCOUNT}", TEXT),
)
_REST: Final[Mapping[str, PlaceForm]] = {
    **_form(_WAREHOUSE, "warehouse"),
    **_form(TEXT, "credential", "token", "scope", "audience", "resource"),
    **_form(text_of(r"[A-Za-z0-9_.~/%-]{1,512}", "a path"), "prefix"),
    **_form(HTTP_OR_PATH, "oauth2-server-uri", "s3.signer.endpoint", "signer.endpoint", "rest.remote-signing.endpoint"),
    **_form(HTTP, "s3.signer.uri", "signer.uri"),
    **_form(NUMBER, "token-expires-in-ms", "auth.session-timeout-ms", "rest-page-size"),
    **_form(BOOLEAN, "token-refresh-enabled", "token-exchange-enabled", "rest.sigv4-enabled"),
    **_form(BOOLEAN, "view-endpoints-supported", "rest-metrics-reporting-enabled"),
    **_form(_AUTHENTICATION, "rest.auth.type", "rest.auth.sigv4.delegate-auth-type"),
    **_form(TEXT, "rest.auth.basic.username", "rest.auth.basic.password"),
    **_form(_REGION, "rest.signing-region"),
    **_form(WORD, "rest.signing-name"),
    **_form(TEXT, "rest.access-key-id", "rest.secret-access-key", "rest.session-token"),
    **_form(WORD, "snapshot-loading-mode", "scan-planning-mode"),
    **_form(text_of(r"[!-~]{1,16}", "a separator"), "namespace-separator"),
    **_form(TEXT, "rest.client.user-agent", "rest.client.proxy.username", "rest.client.proxy.password"),
    **_form(PlaceForm(host_problem, lambda value: [bare(value)]), "rest.client.proxy.hostname"),
    **_form(NUMBER, "rest.client.proxy.port", "rest.client.max-retries", "rest.client.max-connections"),
    **_form(NUMBER, "rest.client.connections-per-route", "rest.client.connection-timeout-ms"),
    **_form(NUMBER, "rest.client.socket-timeout-ms", "rest-table-cache.expire-after-write-ms"),
    **_form(NUMBER, "rest-table-cache.max-entries", "rest-scan-planning.poll-timeout-ms"),
    **_form(NUMBER, "rest-scan-planning.poll-num-retries"),
}
_HEADER: Final = (
    r"header\.(?!(?i:host|connection|content-length|transfer-encoding|upgrade|te|trailer)$)[A-Za-z0-9_-]{1,100}"
)
_TOKEN_TYPE: Final = r"urn:ietf:params:oauth:token-type:(?:access_token|refresh_token|id_token|saml1|saml2|jwt)"  # noqa: S105  a name of a kind of token
_HIVE: Final[Mapping[str, PlaceForm]] = {
    **_form(FILES, "warehouse"),
    **_form(BOOLEAN, "list-all-tables", "hadoop.hive.metastore.sasl.enabled", "hadoop.hive.metastore.use.SSL"),
    **_form(text_of(r"[A-Za-z0-9_./@-]{1,512}", "a principal"), "hadoop.hive.metastore.kerberos.principal"),
    **_form(text_of(r"[0-9]{1,9}(?:ms|s|m)?", "a time"), "hadoop.hive.metastore.client.socket.timeout"),
    **_form(WORD, "hadoop.metastore.catalog.default", "hadoop.hive.metastore.uris.selection"),
}
_JDBC: Final[Mapping[str, PlaceForm]] = {
    **_form(FILES, "warehouse"),
    **_form(one_of("V0", "V1"), "jdbc.schema-version"),
    **_form(BOOLEAN, "jdbc.init-catalog-tables", "jdbc.strict-mode"),
    **{f"jdbc.{name}": form for name, form in jdbc_uris.PARAMETERS.items()},
}
_NESSIE: Final[Mapping[str, PlaceForm]] = {
    **_form(FILES, "warehouse"),
    **_form(text_of(r"[A-Za-z0-9_./-]{1,512}", "the name of a reference"), "ref", "ref.hash"),
    **_form(one_of("1", "2"), "client-api-version"),
    **_form(one_of("NONE", "BASIC", "BEARER", "OAUTH2"), "authentication.type"),
    **_form(TEXT, "authentication.username", "authentication.password", "authentication.token"),
    **{
        f"authentication.oauth2.{name}": form
        for name, form in {
            **_form(HTTP, "issuer-url", "token-endpoint", "auth-endpoint", "device-auth-endpoint"),
            **_form(TEXT, "client-id", "client-secret", "client-scopes", "username", "password"),
            **_form(WORD, "grant-type", "default-access-token-lifespan", "default-refresh-token-lifespan"),
            **_form(WORD, "refresh-safety-window"),
        }.items()
    },
}
_CATALOG_ITSELF: Final[Mapping[str, Mapping[str, PlaceForm]]] = {
    "hadoop": _form(BOOLEAN, "suppress-permission-error"),
    "hive": _HIVE,
    "rest": _REST,
    "jdbc": _JDBC,
    "nessie": _NESSIE,
}
URIS: Final[Mapping[str, PlaceForm]] = {
    "hive": METASTORES,
    "rest": HTTP,
    "jdbc": jdbc_uris.URI,
    "nessie": HTTP,
}
"""The form of `warehouse.catalog.uri`. The hadoop catalog has no address."""

_FILE_CLIENTS: Final = (
    *("org.apache.iceberg.hadoop.HadoopFileIO", "org.apache.iceberg.io.ResolvingFileIO"),
    *("org.apache.iceberg.aws.s3.S3FileIO", "org.apache.iceberg.gcp.gcs.GCSFileIO"),
    "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
)
_SENT: Final[Mapping[str, PlaceForm]] = {
    **_form(HTTP, "uri"),
    **_form(one_of(*_FILE_CLIENTS), "io-impl"),
    **_form(HTTP_OR_PATH, "client.refresh-credentials-endpoint", "gcs.oauth2.refresh-credentials-endpoint"),
    **_form(HTTP_OR_PATH, "adls.refresh-credentials-endpoint"),
    **_form(BOOLEAN, "client.refresh-credentials-enabled", "gcs.oauth2.refresh-credentials-enabled"),
    **_form(BOOLEAN, "adls.refresh-credentials-enabled"),
}
"""What the server of a REST catalog may set besides what connectors may. No other client of files than these is loaded."""


def listed(catalog: str) -> Mapping[str, PlaceForm]:
    """Returns the properties that connectors may set for a kind of catalog, besides families such as `header.*`."""
    return {**_ANY_CATALOG, **_S3, **_OTHER_STORES, **_CATALOG_ITSELF.get(catalog, {})}


def families(catalog: str) -> Sequence[tuple[str, PlaceForm]]:
    """Returns patterns of names that connectors may set for a kind of catalog, each with the form of its values."""
    return (*_STORE_FAMILIES, (_HEADER, TEXT), (_TOKEN_TYPE, TEXT)) if catalog == "rest" else _STORE_FAMILIES


def form_of(catalog: str, name: str) -> PlaceForm | None:
    """Returns the form of a property's values; None for a property that connectors may not set."""
    found = listed(catalog).get(name)
    if found is not None:
        return found
    return next((form for pattern, form in families(catalog) if re.fullmatch(pattern, name)), None)


@dataclass(frozen=True, slots=True)
class Property:
    """One property as a config gives it."""

    key: str
    """The key of the config."""
    shown: str
    """What errors call the property. It is a number in a list of secrets: a part of a secret that holds a comma looks like a
    name."""
    name: str
    value: str
    is_pair: bool


def properties_of(key: str, items: Iterable[str], *, secret: bool) -> list[Property]:
    """Returns the properties of a list of name=value."""
    found = []
    for number, item in enumerate((item.strip() for item in items if item.strip()), 1):
        name, sign, value = item.partition("=")
        name = name.strip()
        shown = f"property {number}" if secret else f"property {name[:100]}"
        found.append(Property(key, shown, name, value, bool(sign)))
    return found


def problem_of(catalog: str, given: Property) -> str | None:
    """Returns what is wrong with a property by its name and the form of its value, without the value; None: nothing.

    A value that is a reference still is judged when it is resolved.
    """
    if not given.is_pair:
        return None if has_reference(given.name) else f"expects name=value; {given.shown} has no value"
    form = form_of(catalog, given.name)
    if form is None:
        return f"does not take {given.shown} with warehouse.catalog={catalog}"
    if has_reference(given.value):
        return None
    problem = _value_problem(form, given)
    return f"{problem} in {given.shown}" if problem else None


def _value_problem(form: PlaceForm, given: Property) -> str | None:
    """Returns what is wrong with a value. Iceberg puts a variable of Java's process in the place of one that begins with `env:`,
    and Hadoop variables and settings in the place of `${…}`."""
    if given.value.startswith(_VARIABLE):
        return f"takes no value that begins with {_VARIABLE}"
    if given.name.startswith(_HADOOP) and "${" in given.value:
        return "takes no value with ${"
    return form.problem(given.value)


def uri_problem(catalog: str, uri: str) -> str | None:
    """Returns what is wrong with the address of a catalog by its form."""
    form = URIS.get(catalog)
    return form.problem(uri) if form and uri and not has_reference(uri) else None


def admit(catalog: str, given: Property, roots: Sequence[str]) -> None:
    """Judges one property with its resolved value, and the hosts and paths that it names.

    CdcError `config.catalog_property`, `config.host_not_allowed` or `file.path_not_allowed`, with the key.
    """
    form = form_of(catalog, given.name) if given.is_pair else None
    problem = _value_problem(form, given) if form else f"is not taken with warehouse.catalog={catalog}"
    if form is None or problem:
        raise CdcError(PROPERTY_REFUSED, f"{given.key}: {given.shown} {problem}", where={"key": given.key})
    admit_places(form, given.value, given.key, roots, is_proxy=given.name in _PROXIES)


def admit_uri(catalog: str, uri: str, roots: Sequence[str], properties: Mapping[str, str]) -> None:
    """Judges the resolved address of a catalog as `admit` judges a property. `properties` are those of the catalog."""
    form = URIS.get(catalog)
    if form is None:
        return
    if problem := form.problem(uri):
        raise CdcError(PROPERTY_REFUSED, f"{URI_KEY} {problem}", where={"key": URI_KEY})
    admit_places(form, uri, URI_KEY, roots)
    catalog_tls.check_uri(catalog, URI_KEY, uri, form.hosts(uri), properties)


def judged_properties(sent: Mapping[str, str], roots: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns those of a REST catalog's properties that its server may set, each judged as a connector's is, and the names of
    the others. CdcError as `admit` raises it: to go on without a property whose value is refused would be to write elsewhere."""
    judged, left_out = {}, []
    for name, value in sent.items():
        form = _SENT.get(name) or form_of("rest", name)
        if form is None:
            left_out.append(name[:100])
            continue
        if problem := form.problem(value):
            text = f"the catalog's server sends a property that {problem}"
            raise CdcError(PROPERTY_REFUSED, text, where={"key": URI_KEY, "property": name})
        admit_places(form, value, URI_KEY, roots, is_proxy=name in _PROXIES)
        judged[name] = value
    return judged, left_out


def admit_place(place: str, roots: Sequence[str]) -> None:
    """Judges a place of files that a catalog's server, or a table, names. CdcError as `admit` raises it."""
    path = re.sub(r"^file:(?://(?=/))?(?=/)", "", place)
    if problem := FILES.problem(path):
        raise CdcError(PROPERTY_REFUSED, f"a table's files lie at a place that {problem}", where={"key": PATH_KEY})
    admit_places(FILES, path, PATH_KEY, roots)
