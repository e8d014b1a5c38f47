"""Every word of libpq's is one of the JDBC driver's, or refused by name; wherever it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from psycopg import pq

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.sinks.postgres.addresses import jdbc, parameters

TRANSLATED: Mapping[str, tuple[str, dict[str, str]]] = {
    "user": ("u", {"user": "u"}),
    "password": ("p", {"password": "p"}),
    "connect_timeout": ("7", {"connectTimeout": "7"}),
    "options": ("-c geqo=off", {"options": "-c geqo=off"}),
    "keepalives": ("0", {"tcpKeepAlive": "false"}),
    "channel_binding": ("require", {"channelBinding": "require"}),
    "sslmode": ("verify-full", {"sslmode": "verify-full"}),
    "sslnegotiation": ("direct", {"sslNegotiation": "direct"}),
    "sslcert": ("c.crt", {"sslcert": "c.crt"}),
    "sslkey": ("c.der", {"sslkey": "c.der"}),
    "sslpassword": ("p", {"sslpassword": "p"}),
    "sslrootcert": ("root.crt", {"sslrootcert": "root.crt"}),
    "gssencmode": ("disable", {"gssEncMode": "disable"}),
    "gsslib": ("gssapi", {"gsslib": "gssapi"}),
    "krbsrvname": ("pg", {"kerberosServerName": "pg"}),
    "target_session_attrs": ("read-write", {"targetServerType": "primary"}),
    "load_balance_hosts": ("random", {"loadBalanceHosts": "true"}),
    "host": ("a,b", {"url": "jdbc:postgresql://a:5432,b:5432/d"}),
    "hostaddr": ("10.0.0.1", {"url": "jdbc:postgresql://10.0.0.1:5432/d"}),
    "port": ("5433", {"url": "jdbc:postgresql://h:5433/d"}),
    "dbname": ("a%b/c", {"url": "jdbc:postgresql://h:5432/a%25b%2Fc"}),
}
OURS = {"application_name", "fallback_application_name", "client_encoding"}
LOOKED_UP = {"service", "servicefile", "passfile"}
REFUSED = {
    "keepalives_idle": "30",
    "keepalives_interval": "30",
    "keepalives_count": "3",
    "tcp_user_timeout": "1000",
    "sslcompression": "1",
    "sslcertmode": "require",
    "sslcrl": "x.crl",
    "sslcrldir": "crls",
    "sslsni": "0",
    "sslkeylogfile": "keys",
    "requirepeer": "postgres",
    "require_auth": "scram-sha-256",
    "min_protocol_version": "3.2",
    "max_protocol_version": "3.2",
    "ssl_min_protocol_version": "TLSv1.3",
    "ssl_max_protocol_version": "TLSv1.2",
    "gssdelegation": "1",
    "replication": "database",
    "scram_client_key": "key",
    "scram_server_key": "key",
    "oauth_issuer": "https://one",
    "oauth_client_id": "id",
    "oauth_client_secret": "hidden",
    "oauth_scope": "all",
}
GIVEN = {"host": "h", "dbname": "d", "user": "u", "password": "p"}
WORDS = sorted(option.keyword.decode() for option in pq.Conninfo.get_defaults())


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def of(url: str, **environ: str) -> dict[str, str]:
    return jdbc(parameters(url, environ))


@pytest.mark.parametrize("word", WORDS)
class TestEveryWordOfLibpq:
    def test_is_translated_or_refused(self, word: str) -> None:
        assert (word in TRANSLATED) + (word in REFUSED) + (word in OURS) + (word in LOOKED_UP) == 1

    def test_does_what_it_says(self, word: str) -> None:
        if word in TRANSLATED:
            value, expected = TRANSLATED[word]
            assert jdbc({**GIVEN, word: value}).items() >= expected.items()
        elif word in REFUSED:
            with pytest.raises(
                ConfigurationError, match=rf"URL, service file or environment asks for: {word} \("
            ) as it:
                jdbc({**GIVEN, word: REFUSED[word]})
            assert "hidden" not in str(it.value)
        else:
            assert jdbc({**GIVEN, word: "x"}) == jdbc(GIVEN)

    def test_is_known_of_the_environment(self, word: str) -> None:
        variable = {o.keyword.decode(): o.envvar.decode() for o in pq.Conninfo.get_defaults() if o.envvar}.get(word)
        if variable is None or word in LOOKED_UP:
            return
        value = {**{w: v for w, (v, _) in TRANSLATED.items()}, **REFUSED}.get(word, "x")
        assert parameters("postgresql://", {variable: value})[word] == value


class TestWords:
    def test_that_no_libpq_of_today_knows_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"brand_new \(the driver has nothing like it\)"):
            jdbc({**GIVEN, "brand_new": "1"})

    def test_are_refused_all_at_once(self) -> None:
        with pytest.raises(ConfigurationError, match=r"require_auth .*; sslcrl "):
            of("postgresql://h/d?sslcrl=x", PGREQUIREAUTH="scram-sha-256")

    @pytest.mark.parametrize("value", ["standby", "read-only", "prefer-standby"])
    def test_that_look_for_a_server_that_does_not_write_are_refused(self, value: str) -> None:
        with pytest.raises(ConfigurationError, match=r"target_session_attrs \(a sink writes; read-write finds"):
            of(f"postgresql://a,b/d?target_session_attrs={value}")

    def test_that_say_what_is_so_anyway_are_left_out(self) -> None:
        more = "sslcompression=0&sslsni=1&gssdelegation=0&replication=off&ssl_min_protocol_version=TLSv1.2&sslcrl="
        assert of(f"postgresql://u:p@h/d?{more}") == of("postgresql://u:p@h/d")


class TestAddresses:
    def test_have_each_host_with_its_port(self) -> None:
        assert of("postgresql://a:1,b:2/d")["url"] == "jdbc:postgresql://a:1,b:2/d"
        assert of("postgresql://a,[::1]/d?port=7")["url"] == "jdbc:postgresql://a:7,[::1]:7/d"
        assert of("postgresql:///d")["url"] == "jdbc:postgresql://localhost:5432/d"

    def test_take_an_address_for_its_name(self) -> None:
        url = "postgresql://a,b/d?hostaddr=10.0.0.1,10.0.0.2"
        assert of(url)["url"] == "jdbc:postgresql://10.0.0.1:5432,10.0.0.2:5432/d"
        with pytest.raises(ConfigurationError, match=r"hostaddr .*check the certificate for the address"):
            of(f"{url}&sslmode=verify-full")

    @pytest.mark.parametrize("host", ["/run/postgresql", "@here", "a,/run/postgresql"])
    def test_of_sockets_are_refused(self, host: str) -> None:
        with pytest.raises(ConfigurationError, match="write a host name"):
            of(f"postgresql:///d?host={host}")


class TestEncryption:
    def test_with_a_root_certificate_checks_it(self) -> None:
        assert of("postgresql://h/d?sslmode=require")["sslmode"] == "require"
        assert of("postgresql://h/d?sslmode=require&sslrootcert=r.crt")["sslmode"] == "verify-ca"

    def test_by_the_system_s_certificates_is_by_java_s(self) -> None:
        made = of("postgresql://h/d?sslrootcert=system&sslmode=verify-full")
        assert (made["sslfactory"], made["sslmode"]) == ("org.postgresql.ssl.DefaultJavaSSLFactory", "verify-full")
        assert "sslrootcert" not in made
        with pytest.raises(ConfigurationError, match=r"sslcert .*name a file of certificates"):
            of("postgresql://h/d?sslrootcert=system&sslcert=c.crt&sslmode=verify-full")

    def test_with_a_key_that_only_libpq_can_read_is_refused(self, tmp_path: Path) -> None:
        key = tmp_path / "key"
        key.write_text("-----BEGIN PRIVATE KEY-----\nsecret")
        with pytest.raises(ConfigurationError, match=r"sslkey .*openssl pkcs8") as raised:
            of(f"postgresql://h/d?sslkey={key}")
        assert "secret" not in str(raised.value)

    def test_of_old_is_required_by_its_variable(self) -> None:
        assert of("postgresql://h/d", PGREQUIRESSL="1")["sslmode"] == "require"


class TestServices:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        made = tmp_path / ".pg_service.conf"
        made.write_text(
            "# ours\n[air]\nhost=a\nport=6\nport=7\nuser=etl\n\n[other]\nhost=o\ntarget_session_attrs=any\n"
        )
        return made

    def test_are_looked_up(self, file: Path) -> None:
        assert (
            of("postgresql://?service=air&dbname=d").items()
            >= {
                "url": "jdbc:postgresql://a:6/d",
                "user": "etl",
            }.items()
        )

    def test_come_after_the_url_and_before_the_environment(self, file: Path) -> None:
        found = parameters(
            "postgresql://me@/d", {"PGSERVICE": "air", "PGHOST": "e", "PGPORT": "1", "PGSSLMODE": "allow"}
        )
        assert found.items() >= {"user": "me", "host": "a", "port": "6", "sslmode": "allow"}.items()
        assert "service" not in found

    def test_are_found_where_they_are_said_to_be(self, file: Path, tmp_path: Path) -> None:
        moved = file.rename(tmp_path / "pg_service.conf")
        assert of("postgresql://?service=other", PGSYSCONFDIR=str(tmp_path))["targetServerType"] == "any"
        assert of("postgresql://?service=other", PGSERVICEFILE=str(moved))["targetServerType"] == "any"

    def test_that_are_not_there_are_told(self, file: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"no service gone in .*\.pg_service\.conf"):
            parameters("postgresql://?service=gone")

    def test_of_nothing_but_parameters_are_told_without_what_they_hold(self, file: Path) -> None:
        file.write_text("[air]\nldap://server/secret\n")
        with pytest.raises(ConfigurationError, match="which is no parameter"):
            parameters("postgresql://?service=air")


class TestPasswordFiles:
    def file(self, path: Path, text: str, mode: int = 0o600) -> str:
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def test_are_read_as_libpq_reads_them(self, tmp_path: Path) -> None:
        self.file(tmp_path / ".pgpass", "# h:*:*:*:no\nother:*:*:*:no\nh:5433:d:u:no\nh:*:*:u:a\\:b\\\\c\n*:*:*:*:no\n")
        assert of("postgresql://u@h/d")["password"] == "a:b\\c"
        assert of("postgresql://u:own@h/d")["password"] == "own"

    def test_are_found_by_their_names(self, tmp_path: Path) -> None:
        named = self.file(tmp_path / "named", "*:*:*:*:p")
        assert of(f"postgresql://h/d?passfile={named}")["password"] == "p"
        assert of("postgresql://h/d", PGPASSFILE=named)["password"] == "p"

    def test_that_others_can_read_are_not_read(self, tmp_path: Path) -> None:
        self.file(tmp_path / ".pgpass", "*:*:*:*:p", 0o644)
        assert "password" not in of("postgresql://h/d")

    def test_with_several_passwords_for_one_driver_are_refused(self, tmp_path: Path) -> None:
        self.file(tmp_path / ".pgpass", "a:*:*:*:one\nb:*:*:*:two\n")
        with pytest.raises(ConfigurationError, match=r"passfile .*several passwords") as raised:
            of("postgresql://a,b/d")
        assert "one" not in str(raised.value).partition("passfile")[0]
        assert "two" not in str(raised.value)
