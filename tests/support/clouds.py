"""What stands for AWS and Google where their logins are tried: who gives tokens, and a broker that asks it for each.

The vendors' own libraries make the tokens, with credentials that mean nothing elsewhere. A token of MSK is checked as
AWS would: its signature is made again with the secret key. One of Google holds an access token of here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import subprocess
import zipfile
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_urlsafe
from typing import Final
from urllib.parse import parse_qs, parse_qsl, quote, urlsplit

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from airflow_kcr.embedded.jars import KAFKA_BROKER, JarSet, java, resolve, shipped
from airflow_kcr.kafka.logins import MECHANISMS
from tests.support.endpoint import Answer, Endpoint, Request
from tests.support.kafka import KafkaSet
from tests.support.kafka_cluster import start_cluster

REGION: Final = "eu-west-1"
KEY: Final = "AKIAFLIGHTS"
SECRET: Final = "a-secret-of-aws"
SESSION: Final = "a-session-of-aws"
ROLE, OTHER_ROLE = "arn:aws:iam::1:role/flights", "arn:aws:iam::1:role/other"
ACCOUNT: Final = "flights@project.iam.gserviceaccount.com"
ASSUMED: Final = "ASIAFLIGHTS"
AUTHS: Final = tuple(MECHANISMS)

_SOURCE: Final = Path(__file__).parent / "java" / "TokenValidator.java"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"


class Refused(Exception):
    """Why a token or an identity is not good."""


@dataclass(slots=True, kw_only=True)
class Clouds:
    """Who gives tokens, what it was asked, and what it refuses."""

    address: str
    folder: Path
    """Where the key of a service account is."""

    lifetime: int
    """Seconds, of Google's tokens. Those of AWS live for 15 minutes: its libraries say so."""

    clock: timedelta = timedelta()
    """How far its clock, and the brokers', is ahead."""

    denied: set[str] = field(default_factory=set)
    """Principals that may not connect."""

    given: dict[str, datetime] = field(default_factory=dict)
    """Access tokens of Google, and when they end."""

    logins: list[tuple[str, str]] = field(default_factory=list)
    """Who logged in to a broker, and the program that made the token, as far as it says so."""

    _key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    @property
    def key_file(self) -> Path:
        """The file that GOOGLE_APPLICATION_CREDENTIALS names."""
        return self.folder / "service-account.json"

    def environment(self) -> dict[str, str]:
        """Return what a machine has that may log in."""
        key = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        account = {
            "type": "service_account",
            "project_id": "project",
            "private_key_id": "1",
            "private_key": key,
            "client_email": ACCOUNT,
            "client_id": "1",
            "token_uri": f"{self.address}/token",
        }
        self.key_file.write_text(json.dumps(account))
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL_STS": f"{self.address}/sts",
            "AWS_EC2_METADATA_DISABLED": "true",
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.key_file),
            "NO_GCE_CHECK": "true",
        }

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may show."""
        return (SECRET, SESSION, "PRIVATE KEY", "X-Amz-Signature", *self.given)

    @property
    def now(self) -> datetime:
        """The time by its clock."""
        return datetime.now(UTC) + self.clock

    def answer(self, path: str, body: str) -> tuple[int, str]:
        """Return the status and the text of an answer: to AWS's library, to Google's, or to a broker."""
        asked = parse_qs(body)
        try:
            if path.startswith("/sts"):
                return 200, self._assumed(asked["RoleArn"][0])
            if path == "/token":
                token = self.access_token(asked["assertion"][0])
                return 200, json.dumps({"access_token": token, "expires_in": self.lifetime, "token_type": "Bearer"})
            who, until = self.check(body)
            return 200, f"{who} {int((until - self.clock).timestamp() * 1000)}"
        except Refused as why:
            if path.startswith("/sts"):
                error = f"<Error><Code>AccessDenied</Code><Message>{why}</Message></Error>"
                return 403, f"<ErrorResponse>{error}</ErrorResponse>"
            if path == "/token":
                return 400, json.dumps({"error": "invalid_grant", "error_description": str(why)})
            return 403, str(why)

    def _assumed(self, role: str) -> str:
        given = "".join(f"<{name}>{value}</{name}>" for name, value in self.assume(role).items())
        until = f"<Expiration>{self.now + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}</Expiration>"
        return (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>'
            f"<Credentials>{given}{until}</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )

    def assume(self, role: str) -> dict[str, str]:
        """Return the credentials of a role, as STS does."""
        if role != ROLE:
            raise Refused(f"User: arn:aws:iam::1:user/flights is not authorized to perform: sts:AssumeRole on {role}")
        return {"AccessKeyId": ASSUMED, "SecretAccessKey": SECRET, "SessionToken": SESSION}

    def access_token(self, assertion: str) -> str:
        """Return an access token for what a service account has signed, as Google does."""
        head, body, signature = assertion.split(".")
        try:
            public = self._key.public_key()
            public.verify(_decoded(signature), f"{head}.{body}".encode(), padding.PKCS1v15(), SHA256())
        except InvalidSignature:
            raise Refused("Invalid JWT Signature.") from None
        if not abs(datetime.fromtimestamp(json.loads(_decoded(body))["iat"], UTC) - self.now) < timedelta(minutes=5):
            raise Refused("Invalid JWT: Token must be a short-lived token and in a reasonable timeframe.")
        token = token_urlsafe(32)
        self.given[token] = self.now + timedelta(seconds=self.lifetime)
        return token

    def check(self, token: str) -> tuple[str, datetime]:
        """Return whose token a broker was shown, and when it ends."""
        who, maker, until = self._of_google(token) if token.count(".") == 2 else self._of_aws(token)
        if until <= self.now or who in self.denied:
            raise Refused("[1b2c]: Access denied")
        self.logins.append((who, maker))
        return who, until

    def _of_google(self, token: str) -> tuple[str, str, datetime]:
        head, claims, access = (_decoded(part).decode() for part in token.split("."))
        if json.loads(head)["alg"] != "GOOG_OAUTH2_TOKEN" or access not in self.given:
            raise Refused("[1b2c]: Access denied")
        return json.loads(claims)["sub"], "", self.given[access]

    def _of_aws(self, token: str) -> tuple[str, str, datetime]:
        url = urlsplit(_decoded(token).decode())
        told = dict(parse_qsl(url.query))
        who = told["X-Amz-Credential"].partition("/")[0]
        signed_at = datetime.strptime(told["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        is_sound = (
            url.netloc == f"kafka.{REGION}.amazonaws.com"
            and told["Action"] == "kafka-cluster:Connect"
            and hmac.compare_digest(told["X-Amz-Signature"], _signature(url.netloc, told))
            and (who != ASSUMED or told.get("X-Amz-Security-Token") == SESSION)
            and signed_at < self.now + timedelta(minutes=5)
        )
        if not is_sound:
            raise Refused("[1b2c]: Access denied")
        return who, told.get("User-Agent", ""), signed_at + timedelta(seconds=int(told["X-Amz-Expires"]))


def settings(auth: str, servers: str) -> dict[str, str]:
    """Return the settings of a cluster with a named login."""
    region = {"auth.region": REGION} if auth == "msk_iam" else {}
    return {"bootstrap.servers": servers, "security.protocol": "SASL_PLAINTEXT", "auth": auth, **region}


def java_libraries(auth: str) -> JarSet:
    """Return the library that Spark's client logs in with, without what Spark or its connector has already."""
    mechanism = MECHANISMS[auth]
    without = {coordinate.partition(":")[2] for coordinate in mechanism.excludes} | {"kafka-clients"}
    return JarSet(
        name=mechanism.extra,
        coordinates=mechanism.package,
        variable=f"KCR_{mechanism.extra.upper()}_JARS",
        without=shipped() | without,
    )


@contextmanager
def clouds(folder: Path, lifetime: int = 3600) -> Iterator[Clouds]:
    """Serve tokens for as long as the context lasts."""

    def answer(request: Request) -> Answer:
        status, text = found.answer(request.path, request.body.decode())
        return Answer(status, text.encode(), "application/json" if request.path == "/token" else "text/xml")

    with Endpoint(answer) as server:
        found = Clouds(address=server.url, folder=folder, lifetime=lifetime)
        yield found


@contextmanager
def managed_broker(folder: Path, giver: Clouds) -> Iterator[KafkaSet]:
    """Lend a broker whose second listener takes tokens that `giver` finds good."""
    listener = "listener.name.sasl.oauthbearer"
    own = {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        f"{listener}.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        f"{listener}.sasl.server.callback.handler.class": _SOURCE.stem,
        f"{listener}.connections.max.reauth.ms": "3600000",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-javaagent:{_agent(folder)} -Dtoken.validator={giver.address}/check")
        cluster = start_cluster(folder / "kafka", settings=own, sasl_users={"flights": "unused"})
    with KafkaSet(cluster) as kafka:
        yield kafka


def _agent(folder: Path) -> Path:
    """Return the jar with the broker's validator, compiled into a folder."""
    compiler = shutil.which("javac", path=f"{java().parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if compiler is None:
        raise FileNotFoundError("these tests compile a class: install a JDK, which has javac")
    jars = os.pathsep.join(str(jar) for jar in resolve(KAFKA_BROKER))
    classes = folder / "classes"
    subprocess.run([compiler, "-cp", jars, "-d", str(classes), str(_SOURCE)], check=True, capture_output=True)
    agent = folder / "validator.jar"
    with zipfile.ZipFile(agent, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\nPremain-Class: {_SOURCE.stem}\n")
        for file in classes.iterdir():
            jar.write(file, file.name)
    return agent


def _signature(host: str, told: dict[str, str]) -> str:
    """Sign a request again: Signature Version 4, in a query."""
    _, day, region, service, end = told["X-Amz-Credential"].split("/")
    signed = {name: value for name, value in told.items() if name not in {"X-Amz-Signature", "User-Agent"}}
    query = "&".join(f"{quote(name, '')}={quote(value, '')}" for name, value in sorted(signed.items()))
    empty = hashlib.sha256(b"").hexdigest()
    request = "\n".join(("GET", "/", query, f"host:{host}\n", "host", empty))
    scope = f"{day}/{region}/{service}/{end}"
    text = "\n".join((_ALGORITHM, told["X-Amz-Date"], scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{SECRET}".encode()
    for part in (day, region, service, end, text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
