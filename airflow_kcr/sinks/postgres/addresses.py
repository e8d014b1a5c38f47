"""How a sink's database is reached: by libpq from this process, and by Postgres's JDBC driver from executors.

libpq takes its parameters from the URL, a service file, the environment and a password file, of this machine alone.
Executors have none of them, and a driver that knows other words. So every parameter is looked up here, and is then
either one of the driver's or refused by its name: what one side does and the other ignores would be found by the first
batch, or never.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Final
from urllib.parse import quote

import psycopg
from psycopg import conninfo, pq

from airflow_kcr.errors import ConfigurationError

# What libpq would do


def parameters(url: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return libpq's parameters, as it would take them from the URL, the service file and the environment.

    Args:
        url: of libpq, or of SQLAlchemy with the driver psycopg.
        environ: the process's.

    Raises:
        ConfigurationError: the URL can't be read, or the service is not there.
    """
    try:
        read = conninfo.conninfo_to_dict(url.replace("postgresql+psycopg://", "postgresql://", 1))
    except psycopg.Error:
        read = None  # from nothing: the error would quote the URL
    if read is None:
        raise ConfigurationError("its URL can't be read; write postgresql://USER:PASSWORD@HOST/DATABASE")
    known = {option.keyword.decode(): option for option in pq.Conninfo.get_defaults()}
    variables = {word: option.envvar.decode() for word, option in known.items() if option.envvar}
    given = {word: str(value) for word, value in read.items()}
    named = {**{word: environ[name] for word, name in variables.items() if name in environ}, **given}
    if service := named.get("service"):
        file = named.get("servicefile") or environ.get("PGSERVICEFILE")
        given = {**_of_service(service, file, environ), **given}
    if environ.get("PGREQUIRESSL", "").startswith("1"):
        given.setdefault("sslmode", "require")
    found = {**named, **given}
    if "hostaddr" not in found:
        # Without one libpq takes a socket, which executors can't.
        found.setdefault("host", "localhost")
    if "user" not in found and (own := known["user"].val):
        found["user"] = own.decode()
    return {word: value for word, value in found.items() if word not in _OF_FILES}


_OF_FILES: Final = frozenset({"service", "servicefile"})


def _of_service(service: str, file: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a service file says of a service; of the user's own, else of the machine's."""
    files = [Path(file) if file else Path.home() / ".pg_service.conf"]
    if folder := environ.get("PGSYSCONFDIR"):
        files.append(Path(folder) / "pg_service.conf")
    for one in files:
        lines = [line.strip() for line in one.read_text().splitlines()] if one.is_file() else []
        if f"[{service}]" in lines:
            rest = lines[lines.index(f"[{service}]") + 1 :]
            end = next((n for n, line in enumerate(rest) if line.startswith("[")), len(rest))
            pairs = [line.partition("=") for line in rest[:end] if line and not line.startswith("#")]
            wrong = [word for word, sign, _ in pairs if not sign or word in _OF_FILES]
            if wrong:
                # Its name alone: what follows may be a secret.
                raise ConfigurationError(f"service {service} of {one} has {wrong[0][:20]!r}, which is no parameter")
            # The first one counts, as in libpq.
            return {word: value for word, _, value in reversed(pairs)}
    raise ConfigurationError(f"no service {service} in {' or '.join(map(str, files))}; write it there, or name another")


# The same for JDBC

_NAMES: Final[Mapping[str, str]] = {
    "user": "user",
    "password": "password",
    "options": "options",
    "connect_timeout": "connectTimeout",
    "channel_binding": "channelBinding",
    "sslmode": "sslmode",
    "sslnegotiation": "sslNegotiation",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslpassword": "sslpassword",
    "gssencmode": "gssEncMode",
    "gsslib": "gsslib",
    "krbsrvname": "kerberosServerName",
}
"""Words whose values the driver takes as they are, with its names."""

_VALUES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    # Its primary is a server that takes writes.
    "target_session_attrs": ("targetServerType", {"any": "any", "read-write": "primary", "primary": "primary"}),
    "load_balance_hosts": ("loadBalanceHosts", {"disable": "false", "random": "true"}),
    "keepalives": ("tcpKeepAlive", {"1": "true", "0": "false"}),
}
"""Words with values that the driver has other words for."""

_ADDRESS: Final = frozenset({"host", "hostaddr", "port", "dbname"})
_DONE: Final = frozenset({*_OF_FILES, "passfile"})
"""What they lead to is looked up here."""

_OURS: Final = frozenset({"application_name", "fallback_application_name", "client_encoding"})
"""The sink is named by its own name, and the driver always speaks UTF-8."""

_NOTHING: Final[Mapping[str, frozenset[str]]] = {
    "sslcompression": frozenset({"0"}),
    "sslsni": frozenset({"1"}),
    "sslcertmode": frozenset({"allow"}),
    "ssl_min_protocol_version": frozenset({"TLSv1.2"}),
    "min_protocol_version": frozenset({"3.0"}),
    "max_protocol_version": frozenset({"3.0"}),
    "gssdelegation": frozenset({"0"}),
    "tcp_user_timeout": frozenset({"0"}),
    "replication": frozenset({"false", "off", "no", "0"}),
}
"""Values that say what is so anyway; with any other, the word is refused."""

_WITHOUT: Final = "the driver has nothing like it"
_OF_SYSTEM: Final = "set it for the machines of the executors (sysctl net.ipv4.tcp_keepalive_…)"
_REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"), _OF_SYSTEM),
    **dict.fromkeys(("sslcrl", "sslcrldir", "sslcertmode", "sslsni", "sslcompression", "sslkeylogfile"), _WITHOUT),
    **dict.fromkeys(
        ("ssl_min_protocol_version", "ssl_max_protocol_version"),
        "set jdk.tls.client.protocols for the executors' JVM",
    ),
    **dict.fromkeys(("min_protocol_version", "max_protocol_version"), "the driver speaks 3.0"),
    **dict.fromkeys(("require_auth", "gssdelegation"), _WITHOUT),
    **dict.fromkeys(("scram_client_key", "scram_server_key"), "the driver needs the password"),
    **dict.fromkeys(("oauth_issuer", "oauth_client_id", "oauth_client_secret", "oauth_scope"), _WITHOUT),
    "target_session_attrs": "a sink writes; read-write finds the server that lets it",
    "load_balance_hosts": "disable or random are known",
    "keepalives": "0 or 1 are known",
    "requirepeer": "it is for sockets, and executors use none",
    "replication": "a sink writes rows",
}
"""Why a word can't be had; for `target_session_attrs` and the like, with a value that is not known above."""


def jdbc(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the driver that do what libpq does with these parameters.

    The password is among them; where it is a password file's, it is read now.

    Args:
        given: as `parameters` returns them.

    Raises:
        ConfigurationError: executors can't reach the database so; with each word that is in the way, and no value.
    """
    wrong = dict(_in_the_way(given))
    if wrong:
        told = "; ".join(f"{word} ({why})" for word, why in sorted(wrong.items()))
        raise ConfigurationError(
            f"executors, which write by JDBC, can't do what its URL, service file or environment asks for: {told}"
        )
    set_ = {word: value for word, value in given.items() if value}
    made = {name: set_[word] for word, name in _NAMES.items() if word in set_}
    made |= {name: values[set_[word]] for word, (name, values) in _VALUES.items() if word in set_}
    if set_.get("sslrootcert") == _SYSTEM:
        made |= {"sslfactory": "org.postgresql.ssl.DefaultJavaSSLFactory", "sslmode": "verify-full"}
        del made["sslrootcert"]
    elif "sslrootcert" in set_ and made.get("sslmode") == "require":
        made["sslmode"] = "verify-ca"  # as libpq has it
    if "password" not in made and (found := _of_password_file(set_)):
        made["password"] = found[0]
    addresses = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for _, host, port in _hosts(set_))
    return {**made, "url": f"jdbc:postgresql://{addresses}/{quote(_database(set_), safe='')}"}


_SYSTEM: Final = "system"


def _in_the_way(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each word that executors can't heed, with the reason."""
    for word, value in given.items():
        is_known = word in _NAMES or word in _ADDRESS or word in _DONE or word in _OURS
        is_known = is_known or value in _VALUES.get(word, ("", {}))[1] or value in _NOTHING.get(word, ())
        if value and not is_known:
            yield word, _REFUSED.get(word, _WITHOUT)
    hosts = list(_hosts(given))
    if any(address.startswith(("/", "@")) or not address for _, address, _ in hosts):
        yield "host", "it names a socket of this machine, and executors write by TCP; write a host name"
    if any(name != address for name, address, _ in hosts) and given.get("sslmode") == "verify-full":
        yield "hostaddr", "with sslmode=verify-full the driver would check the certificate for the address"
    if given.get("sslrootcert") == _SYSTEM and given.get("sslcert"):
        yield "sslcert", "with sslrootcert=system the driver shows none; name a file of certificates"
    if _is_pem(given.get("sslkey")):
        yield "sslkey", "the driver reads PKCS-8 in DER, as libpq does too: openssl pkcs8 -topk8 -nocrypt -outform DER"
    if not given.get("password") and len(set(_of_password_file(given))) > 1:
        yield "passfile", "it has several passwords for the hosts, and the driver takes one; give them one"


def _hosts(given: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return the name, the address and the port of each host."""
    names, addresses = (given[word].split(",") if given.get(word) else [] for word in ("host", "hostaddr"))
    count = max(len(names), len(addresses))
    ports = (given.get("port") or "").split(",")
    ports = ports * count if len(ports) == 1 else ports
    found = []
    for number in range(count):
        name = names[number] if number < len(names) else ""
        address = (addresses[number] if number < len(addresses) else "") or name
        port = ports[number] if number < len(ports) else ""
        found.append((name or address, address, port or "5432"))
    return found


def _database(given: Mapping[str, str]) -> str:
    return given.get("dbname") or given.get("user", "")


def _is_pem(file: str | None) -> bool:
    path = Path(file) if file else None
    return path is not None and path.is_file() and path.read_bytes().lstrip().startswith(b"-----BEGIN")


_FIELD: Final = re.compile(r"((?:\\.|[^:\\])*)(?::|$)")


def _of_password_file(given: Mapping[str, str]) -> list[str]:
    """Return the password of each host that the password file has one for; it is read as libpq does."""
    file = Path(given.get("passfile") or Path.home() / ".pgpass")
    try:
        mode = file.stat().st_mode
        lines = file.read_text().splitlines() if S_ISREG(mode) and not mode & 0o077 else []
    except OSError:
        return []
    entries = [
        [re.sub(r"\\(.)", r"\1", part) for part in _FIELD.findall(line)[:5]] for line in lines if line[:1] != "#"
    ]
    found = []
    for name, _, port in _hosts(given):
        wanted = (name, port, _database(given), given.get("user", ""))
        fitting = (
            entry[4]
            for entry in entries
            if len(entry) == 5 and all(there in ("*", here) for there, here in zip(entry, wanted, strict=False))
        )
        found += list(fitting)[:1]
    return found
