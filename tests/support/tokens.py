"""An OAuth token endpoint over HTTP, and a broker that takes its tokens, and passwords by SCRAM."""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from tests.support.endpoint import Answer, Endpoint, Request
from tests.support.kafka import WITHIN, KafkaSet
from tests.support.kafka_cluster import start_cluster

CLIENT, SECRET = "flights", "correct-horse"
ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""The Java property without which Kafka's client from 4.0 on asks no address for tokens or keys."""

_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_VALIDATOR: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_KEY_ID: Final = "1"

SCRAM: Final = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
MECHANISMS: Final = (*SCRAM, "OAUTHBEARER")


@dataclass(slots=True, kw_only=True)
class Tokens:
    """The endpoint: how long its tokens live, and what it was asked."""

    address: str
    key: rsa.RSAPrivateKey
    lifetime: float
    """Seconds. A broker lets no client renew a login that is less than a second old, and clients ask for another token
    when four fifths of the last one's time are over: below 10 s, connections break for that."""

    asked: list[str] = field(default_factory=list)
    """The user agents that were given a token, in order."""

    @property
    def url(self) -> str:
        """Where tokens are."""
        return f"{self.address}/token"

    @property
    def keys_url(self) -> str:
        """Where the keys are that a broker checks tokens with."""
        return f"{self.address}/keys"

    def settings(self, secret: str = SECRET) -> dict[str, str]:
        """Return how a client gets in, but for the servers."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.token.endpoint.url": self.url,
        }

    def broker_settings(self) -> dict[str, str]:
        """Return the settings of a broker that takes SCRAM and these tokens, for no longer than they live."""
        listener = "listener.name.sasl.oauthbearer"
        return {
            "sasl.enabled.mechanisms": ",".join(["PLAIN", *MECHANISMS]),
            **{f"listener.name.sasl.{name.lower()}.sasl.jaas.config": f"{_SCRAM_MODULE} required;" for name in SCRAM},
            f"{listener}.sasl.jaas.config": f"{_MODULE} required;",
            f"{listener}.sasl.server.callback.handler.class": _VALIDATOR,
            f"{listener}.sasl.oauthbearer.jwks.endpoint.url": self.keys_url,
            f"{listener}.sasl.oauthbearer.expected.audience": "kafka",
            f"{listener}.connections.max.reauth.ms": "3600000",
            # Java's client is refused a token that begins a moment later than its own clock.
            f"{listener}.sasl.oauthbearer.clock.skew.seconds": "5",
        }

    def token(self) -> str:
        """Return a token that begins now."""
        now = int(datetime.now(UTC).timestamp())
        head = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        claims = {"sub": CLIENT, "aud": "kafka", "iat": now, "exp": now + int(self.lifetime)}
        text = f"{_encoded(json.dumps(head).encode())}.{_encoded(json.dumps(claims).encode())}"
        return f"{text}.{_encoded(self.key.sign(text.encode(), padding.PKCS1v15(), SHA256()))}"

    def keys(self) -> dict[str, Any]:
        """Return the public key, as a set of JSON web keys."""
        public = self.key.public_key().public_numbers()
        own = {
            "kty": "RSA",
            "alg": "RS256",
            "use": "sig",
            "kid": _KEY_ID,
            "n": _number(public.n),
            "e": _number(public.e),
        }
        return {"keys": [own]}


@contextmanager
def token_endpoint(lifetime: float = 300.0) -> Iterator[Tokens]:
    """Serve tokens for as long as the context lasts."""

    def answer(request: Request) -> Answer:
        if request.method == "GET":
            return _json(200, tokens.keys())
        sent = b64decode(request.headers.get("Authorization", "Basic ").removeprefix("Basic ")).decode()
        if sent != f"{CLIENT}:{SECRET}":
            return _json(401, {"error": "invalid_client", "error_description": "no such client and secret"})
        tokens.asked.append(request.headers.get("User-Agent", ""))
        return _json(200, {"access_token": tokens.token(), "token_type": "Bearer", "expires_in": int(lifetime)})

    with Endpoint(answer) as server:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        tokens = Tokens(address=server.url, key=key, lifetime=lifetime)
        yield tokens


@contextmanager
def guarded_broker(folder: Path, tokens: Tokens, users: Mapping[str, str]) -> Iterator[KafkaSet]:
    """Lend a broker whose second listener takes tokens, and the users' passwords by SCRAM and PLAIN."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-D{ALLOWED_URLS}={tokens.url},{tokens.keys_url}")
        cluster = start_cluster(folder, settings=tokens.broker_settings(), sasl_users=users)
    with KafkaSet(cluster) as kafka:
        for user, password in users.items():
            for mechanism in SCRAM.values():
                added = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
                for done in kafka.admin.alter_user_scram_credentials([added]).values():
                    done.result(WITHIN)
        yield kafka


def login(kafka: KafkaSet, tokens: Tokens, mechanism: str, user: str, secret: str) -> dict[str, str]:
    """Return the settings of a client that logs in by one of `MECHANISMS`.

    Args:
        kafka: a guarded broker.
        tokens: the endpoint that it takes tokens of.
        mechanism: by which the client logs in.
        user: whose password; a token is that of `CLIENT`.
        secret: the user's password, or the secret of `CLIENT`.
    """
    own = tokens.settings(secret)
    if mechanism in SCRAM:
        own = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": user}
        own["sasl.password"] = secret
    return {"bootstrap.servers": kafka.sasl_bootstrap_servers, **own}


def _json(status: int, document: dict[str, Any]) -> Answer:
    return Answer(status, json.dumps(document).encode())


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))
