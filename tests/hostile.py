"""Hostile inputs, as data: names, configs, paths and hosts that have done harm somewhere."""

from __future__ import annotations

import itertools

SQL = (
    '"', '""', "'", "''", "`", "]", "[", "\\", "\\\\", ";", "--", "/*", "*/", "$$", "$1", "%s", "%(a)s", "{}", "{0}",
    '"; drop table t; --', "'; drop table t; --", "`; drop table t; --", "]; drop table t; --", "x\" or \"1\"=\"1",
    "x' or '1'='1", "');--", '")--', "\\'", '\\"', "a\\", "U&\"\\0061\"", "E'\\047'", "1=1", "NULL", "null", "select",
    "user", "table", "order", "group", "from", "where", "public.t", '"public"."t"', "pg_catalog", "pg_temp",
    "current_user", "session_user", "information_schema", "t;select pg_sleep(9)", "a,b", "a b", "a.b", "a..b", ".a", "a.",
)  # fmt: skip
SHELL = (
    "$(id)", "`id`", "|id", "||id", "&id", "&&id", ";id", ">x", "<x", "*", "?", "~", "~root", "!", "#", "-rf", "--help",
    "-", "--", "=", "a=b", "%", "%0a", "%00", "%2e%2e%2f", "%252e", "$HOME", "${HOME}", "${env:PATH}", "${file:/etc/passwd}",
    "${dir:/etc:passwd}", "${jndi:ldap://x/a}", "${jndi:${lower:l}dap://x}", "#{7*7}", "{{7*7}}", "<%= 7*7 %>", "@x",
)  # fmt: skip
PATHS = (
    "/", "//", "..", ".", "../", "./", "../../etc/passwd", "/etc/passwd", "..\\..\\x", "C:\\x", "\\\\host\\share",
    "file:///etc/passwd", "a/../b", "a/./b", "a//b", "/proc/self/environ", "/dev/null", "con", "nul", "aux",
)  # fmt: skip
CONTROL = (
    "\n", "\r", "\r\n", "\t", "\x00", "\x01", "\x07", "\x08", "\x0b", "\x0c", "\x1b", "\x1b[2J", "\x1b]0;x\x07", "\x7f",
    "\x80", "\x85", "\x9b31m", "\u2028", "\u2029", "\u202e", "\u2066", "\u200b", "\ufeff", "\ufffd", "\ufffe", "\u0000a",
)  # fmt: skip
UNICODE = (
    "ä", "ß", "İ", "ı", "ﬀ", "ﷺ", "е", "аdmin", "ｓｅｌｅｃｔ", "＂", "＇", "；", "／", "．．", "﹣", "‐", "K", "Å", "é", "e\u0301",
    "日本", "🐘", "👨‍👩‍👧", "\U0001f600", "\u0301", "a\u0338", "׃", "٪", "١٢", "𝟏", "Ⅷ", "\u00a0", "\u3000", "\u2000",
)  # fmt: skip
HTTP = (
    "a\r\nX-A: b", "a\nSet-Cookie: x", "<script>", "<img src=x onerror=1>", "javascript:1", "a?b", "a#b", "a&b=c", "a;b",
    "a%3Bb", "a+b", "__proto__", "constructor", "toString", "true", "false", "0", "-1", "1e309", "NaN", "Infinity", "null",
    "undefined", "[]", '{"a":1}', "a\\u0000b", "\\x41", "&amp;", "]]>", "<!--", "<?xml?>", "<!ENTITY x>",
)  # fmt: skip
SEEDS = (*SQL, *SHELL, *PATHS, *CONTROL, *UNICODE, *HTTP)
LONG = tuple(c * n for c in ("a", "ä", "🐘", '"', ".") for n in (62, 63, 64, 127, 128, 249, 250, 255, 256, 1024))


def identifiers() -> list[str]:
    """More than five hundred: each seed alone, and inside of a name that is otherwise good."""
    around = itertools.chain.from_iterable((seed, f"shop{seed}", f"{seed}orders", f"a{seed}b") for seed in SEEDS)
    return list(dict.fromkeys((*around, *LONG)))


HOSTS = (
    # This machine, the link, metadata services, nobody, everybody: in all the ways in which an address can be written.
    "169.254.169.254", "169.254.1.1", "0.0.0.0", "0.1.2.3", "255.255.255.255", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "100.100.100.200", "168.63.129.16", "192.0.0.192", "fe80::1", "fe80::1%eth0", "fe80::1%25eth0", "ff02::1", "::",
    "fd00:ec2::254", "fd20:ce::254", "fec0::1", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::169.254.169.254",
    "64:ff9b::169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "64:ff9b:1::a9fe:a9fe", "::ffff:0:0",
    "2852039166", "0xa9fea9fe", "0xA9FEA9FE", "025177524776", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "169.254.43518",
    "169.16689662", "0xa9.254.43518", "169.254.169.0xfe", "169.254.169.254.", "127.1", "127.0.1", "2130706433", "0x7f000001",
    "0x7f.1", "017700000001", "0177.0.0.1", "0", "00", "0x0", "1", "127.000.000.001", "１６９.254.169.254", "169。254。169。254",
    "①⑥⑨.254.169.254", "[::1]", "[fe80::1]", "http://169.254.169.254/", "//169.254.169.254", "user@169.254.169.254",
    "169.254.169.254:80", "169.254.169.254/latest", "169.254.169.254#x", "169.254.169.254?x", "db,169.254.169.254",
    "169.254.169.254,db", "db, 169.254.169.254", "db,,db", ",", "", " ", "-db", "db-", "db..example", ".db", "db/x",
    "/var/run/postgresql", "/tmp", "@abstract", "./x", "..", "db port=1", "db\tport=1", "db\nhost=x", "db'", "db\"", "db\\",
    "db;x", "db=x", "db%00", "db\x00", "postgresql://evil/", "postgres://evil", "a" * 64, "a." * 130 + "a", "db\u200b", "dḅ",
    "${env:HOST", "db host=169.254.169.254", "hostaddr=1.2.3.4", "db' host='x", "*", "*.example.com", "db:5432",
)  # fmt: skip
NAMES_THAT_LEAD_ASTRAY = {
    "metadata.google.internal": ["169.254.169.254"],
    "rebound.example.com": ["93.184.216.34", "169.254.169.254"],
    "six.example.com": ["fe80::1"],
    "mapped.example.com": ["::ffff:169.254.169.254"],
    "nat64.example.com": ["64:ff9b::a9fe:a9fe"],
    "tunnel.example.com": ["2002:a9fe:a9fe::"],
    "zero.example.com": ["0.0.0.0"],
    "broadcast.example.com": ["255.255.255.255"],
    "alibaba.example.com": ["100.100.100.200"],
    "azure.example.com": ["168.63.129.16"],
    "aws6.example.com": ["fd00:ec2::254"],
}
"""Names with what a look-up gives."""
THIS_MACHINE = (
    "127.0.0.1",
    "127.0.0.2",
    "127.255.255.254",
    "::1",
    "::ffff:127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
)

_UPS = (
    "../",
    "..%2f",
    "%2e%2e/",
    "%2e%2e%2f",
    "....//",
    "..\\",
    "..;/",
    "..%c0%af",
    "..%252f",
    "./../",
    ".././",
    "..//",
)
_GOALS = ("secret", "/secret", "etc/passwd", "proc/self/environ")


def paths(root: str, outside: str) -> list[str]:
    """More than a hundred ways out of a folder. `outside` is a file beside it that is there."""
    found = [f"{root}/{up * n}{goal}" for up in _UPS for n in (1, 2, 8) for goal in _GOALS]
    found += [
        outside, f"{root}/../secret", f"{root}/./../secret", f"{root}//../secret", f"{root}/a/../../secret", f"{root}/link",
        f"{root}/folder/secret", f"{root}/loop", f"{root}/fifo", f"{root}/", root, f"{root}/.", f"{root}/..", f"{root}x/secret",
        f"{root}-other/secret", f"/proc/self/root{outside}", f"/proc/self/cwd/{outside}", "/proc/self/environ",
        "/proc/1/environ", "/proc/self/fd/0", "/dev/stdin", "/dev/fd/0", "/etc/shadow", "/etc/passwd", "secret", "./secret",
        "../secret", "~/secret", "~root/secret", f"file://{outside}", f"//{outside}", f"{root}/\x00", f"{root}/pw\x00.txt",
        f"{root}/pw\n", f"{root}\\..\\secret", f"{root}/pw/../../secret", f"{root}/missing/../../secret",
        f"{root.upper()}/secret", f" {outside}", f"{outside} ", f"{root}/{'a/' * 2000}x", f"{root}/{'a' * 5000}", "", "/", ".",
        "..", f"{root}/\u2025/secret", f"{root}/．．/secret", f"{root}/..\u2215secret", f"{root}/%00", f"{root}/*", f"{root}/?w",
        f"{root}/$(cat pw)", f"{root}/`cat pw`",
    ]  # fmt: skip
    return list(dict.fromkeys(found))


_CLASSES = (
    "com.sun.security.auth.module.JndiLoginModule required user.provider.url=\"ldap://x/a\";",
    "com.sun.security.auth.module.LdapLoginModule required;",
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
    "file:///etc/passwd", "http://169.254.169.254/latest/meta-data/", "http://localhost:8080/", "jar:http://x/a.jar!/",
    "ldap://x/a", "rmi://x/a", "gopher://x/", "/etc/passwd", "os.system", "builtins.eval", "java.lang.Runtime",
    "cdcworker.worker.cli.main:main", "subprocess:Popen", "${jndi:ldap://x}", "../../x.so", "\\\\x\\y", "a\nb=c",
)  # fmt: skip
REFUSED_KEYS = (
    "producer.override.sasl.jaas.config", "consumer.override.sasl.jaas.config", "admin.override.sasl.jaas.config",
    "producer.override.sasl.oauthbearer.token.endpoint.url", "producer.override.sasl.oauthbearer.jwks.endpoint.url",
    "producer.override.bootstrap.servers", "producer.override.ssl.keystore.location", "producer.override.interceptor.classes",
    "producer.override.metric.reporters", "producer.override.key.serializer", "producer.override.partitioner.class",
    "producer.override.ssl.engine.factory.class", "producer.override.sasl.login.callback.handler.class",
    "consumer.override.group.id", "producer.override.transactional.id", "producer.override.plugin.library.paths",
    "driver.socketFactory", "driver.socketFactoryArg", "driver.sslfactory", "driver.loggerFile", "driver.autosave",
    "database.options", "database.passfile", "database.service", "database.hostaddr", "database.url", "database.jdbc.url",
    "database.connection.url", "connection.url", "spark.jars", "spark.driver.extraJavaOptions", "spark.submit.pyFiles",
    "spark.driver.extraClassPath", "plugin.path", "java.class.path", "PYTHONPATH", "__class__", "config.providers",
    "config.providers.file.class", "config.providers.env.param.allowlist.pattern", "file.connector.paths",
    "connector.hosts.allowed", "rest.auth.file", "transforms", "predicates", "converters", "post.processors",
    "database.initial.statements", "slot.stream.params", "snapshot.select.statement.overrides", "snapshot.custom.class",
)  # fmt: skip
TEXT_KEYS = ("database.user", "database.password", "database.dbname")
"""Whatever they hold is data: it must arrive as it is, and change nothing else."""
INJECTIONS = (
    "x host=evil", "x' host='evil", "x\\' host=evil", "x options=-cfoo=bar", "x' options='-c foo=bar", "x passfile=/etc/passwd",
    "x service=evil", "x sslkey=/x", "x hostaddr=1.2.3.4", "host=evil", "postgresql://evil/x?options=-c", "postgres://evil",
    "x sslmode=disable", "x' sslmode='disable", "x krbsrvname=a", "x requirepeer=a", "x gssencmode=disable", "x replication=1",
    "x\thost=evil", "x\nhost=evil", "x\\", "'", "\\'", "x''", "=", "==", "x = y", " host=evil ", "x;host=evil", "x&host=evil",
)  # fmt: skip


def configs() -> list[tuple[str, str, str]]:
    """More than five hundred (kind, key, value) that are put into a config that is otherwise good."""
    found = [("refused", key, value) for key in REFUSED_KEYS for value in _CLASSES[:8]]
    found += [("refused", "database.hostname", host) for host in HOSTS]
    found += [("refused", "connector.class", value) for value in (*_CLASSES, "", " ", "Postgres", "../postgres")]
    found += [("data", key, value) for key in TEXT_KEYS for value in INJECTIONS]
    return found
