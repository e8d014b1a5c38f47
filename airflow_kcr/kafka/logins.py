"""Logins of managed services, by name: `auth: msk_iam` and `auth: google` among the settings of a cluster.

Both are OAUTHBEARER with tokens that last for minutes, made by the vendor's own library: a Python one for librdkafka,
and a class for Kafka's Java client, in Spark. Each of the two logs in with the identity that its machine has, and
renews its tokens by itself. librdkafka asks for the next one when four fifths of a token's time are over, in a thread
of its own: also of a client that is idle, or waits for a batch, and is not polled.
"""

from __future__ import annotations

import logging
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from json import dumps
from typing import Any, Final, NamedTuple, TypeAlias

from confluent_kafka import KafkaError

from airflow_kcr.errors import BrokerUnavailable, ConfigurationError, CredentialsRefused, KcrError, ToolMissing
from airflow_kcr.settings import AUTH, AUTH_REGION, AUTH_ROLE

OnError: TypeAlias = Callable[[KafkaError], None]

NOT_GIVEN: Final = "gives this client no token"
"""What is said where the identity is refused; where its giver is away, it may heal."""

NOT_GOT: Final = "gets no token"

_RAISED: Final = "OAuth callback raised exception"
"""All that the client says of a callback that failed."""

_HERE: Final = "librdkafka, in this process,"
_SPARK: Final = "Kafka's Java client, in the JVM of Spark's driver or executors,"
_WITHIN: Final = 5.0
"""Seconds for one request to who gives tokens."""

_LONGEST: Final = 300
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a client logs in with."""

    value: str = field(repr=False)
    until: float
    """Seconds since the epoch."""

    principal: str


class Property(NamedTuple):
    """Something that is set for a Java process, by either name."""

    name: str
    variable: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One of the named logins."""

    name: str
    extra: str
    """Of this package, with the vendor's Python library."""

    package: str
    """Maven coordinate of the vendor's library for Java."""

    excludes: tuple[str, ...] = ()
    """What that library asks for, and no login needs, as `group:artifact`."""

    callback: str
    """The class of it that gets tokens."""

    grant: str
    """What an identity must be allowed to do, and what else makes brokers refuse its token."""

    token: Callable[[Mapping[str, str]], Token]
    """Gets one, given the cluster's settings; raises ImportError where the library isn't installed, or a KcrError."""

    jaas: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda _: {}
    """The options of the class."""

    java: Callable[[Mapping[str, str]], tuple[Property, ...]] = lambda _: ()
    """What the class reads from its surroundings."""


# -- Amazon MSK ------------------------------------------------------------------------------------------------------

_AMAZON: Final = re.compile(r"\.([a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.com")


def aws_region(settings: Mapping[str, str]) -> str:
    """Return the region of a cluster of MSK: as it is written, else that of its addresses.

    Raises:
        ConfigurationError: neither says it.
    """
    found = _AMAZON.search(settings.get("bootstrap.servers", ""))
    region = settings.get(AUTH_REGION) or (found[1] if found else "")
    if not region:
        raise ConfigurationError(
            f"Kafka settings: auth: msk_iam needs the cluster's AWS region, which bootstrap.servers doesn't name; "
            f"write {AUTH_REGION}, such as eu-west-1"
        )
    return region


def _msk_token(settings: Mapping[str, str]) -> Token:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as Signer
    from botocore import exceptions
    from botocore.credentials import CredentialProvider

    region, provider = aws_region(settings), CredentialProvider()
    provider.load = partial(_aws_identity, region, settings.get(AUTH_ROLE))
    try:
        value, until = Signer.generate_auth_token_from_credentials_provider(region, provider)
    except exceptions.ClientError as error:
        raise _of_aws(error.response) from None
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        raise BrokerUnavailable(f"AWS does not answer: {_short(error)}") from None
    except exceptions.BotoCoreError as error:
        raise CredentialsRefused(f"AWS {NOT_GIVEN}: {_short(error)}") from None
    return Token(value=value, until=until / 1000, principal="")


def _aws_identity(region: str, role: str | None) -> Any:  # noqa: ANN401 - the library has no types
    """Return the credentials of this machine, or of a role that they may assume.

    By the cluster's own region: the library's own way to a role is another, which a private network doesn't reach.
    """
    from botocore.config import Config
    from botocore.credentials import Credentials
    from botocore.session import Session

    session = Session()
    found = session.get_credentials()
    if found is None:
        raise CredentialsRefused(
            f"AWS {NOT_GIVEN}: this machine has no AWS credentials; give it a role, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment"
        )
    if role is None:
        return found.get_frozen_credentials()
    patience = Config(connect_timeout=_WITHIN, read_timeout=_WITHIN, retries={"total_max_attempts": 2})
    tokens = session.create_client("sts", region_name=region, config=patience)
    given = tokens.assume_role(RoleArn=role, RoleSessionName="airflow-kcr")["Credentials"]
    return Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])


def _of_aws(answer: Mapping[str, Any]) -> KcrError:
    """Return the error for an answer of AWS; only its status and code say whether it may heal."""
    error, status = answer.get("Error", {}), answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    why = f"{error.get('Code', 'an error')}: {_short(error.get('Message', ''))}"
    if status in {400, 401, 403} and "Throttl" not in why:
        return CredentialsRefused(f"AWS {NOT_GIVEN}: {why}")
    return BrokerUnavailable(f"AWS does not answer: {why}")


def _msk_jaas(settings: Mapping[str, str]) -> dict[str, str]:
    role = settings.get(AUTH_ROLE)
    return {"awsRoleArn": role, "awsStsRegion": aws_region(settings)} if role else {}


# -- Google Cloud Managed Service for Apache Kafka -------------------------------------------------------------------

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_GOOGLE_HEAD: Final = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}


def _google_token(_settings: Mapping[str, str]) -> Token:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
    from google.auth.transport.requests import Request

    try:
        credentials: Any = google.auth.default(scopes=[_SCOPE])[0]
        credentials.refresh(partial(Request(), timeout=_WITHIN))
    except DefaultCredentialsError as error:
        raise CredentialsRefused(
            f"Google {NOT_GIVEN}: {_short(error)} Give the machine a service account, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to the file of its key"
        ) from None
    except TransportError as error:
        raise BrokerUnavailable(f"Google does not answer: {_short(error)}") from None
    except GoogleAuthError as error:
        kind, does = (BrokerUnavailable, "does not answer") if error.retryable else (CredentialsRefused, NOT_GIVEN)
        raise kind(f"Google {does}: {_short(error)}") from None
    who = getattr(credentials, "service_account_email", None)
    if not who:
        raise CredentialsRefused(f"Google {NOT_GIVEN}: the credentials are no service account's; use one")
    until = credentials.expiry if credentials.expiry.tzinfo else credentials.expiry.replace(tzinfo=UTC)
    claims = {"exp": int(until.timestamp()), "iat": int(datetime.now(UTC).timestamp()), "scope": "kafka", "sub": who}
    parts = (dumps(_GOOGLE_HEAD), dumps(claims), credentials.token)
    value = ".".join(urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
    return Token(value=value, until=until.timestamp(), principal=who)


def _short(error: object) -> str:
    """Return what a library says, as one line: its first argument, where others hold whole answers."""
    told = error.args[0] if isinstance(error, Exception) and error.args else error
    return " ".join(str(told).split())[:_LONGEST]


MECHANISMS: Final[Mapping[str, Mechanism]] = {
    one.name: one
    for one in (
        Mechanism(
            name="msk_iam",
            extra="msk",
            package="software.amazon.msk:aws-msk-iam-auth:2.3.6",
            callback="software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler",
            grant="allow its IAM role kafka-cluster:Connect to this cluster, and compare the machine's clock: brokers "
            "refuse a token that was signed too long ago, or begins later than now",
            token=_msk_token,
            jaas=_msk_jaas,
            java=lambda settings: (Property("aws.region", "AWS_REGION", aws_region(settings)),),
        ),
        Mechanism(
            name="google",
            extra="google",
            package="com.google.cloud.hosted.kafka:managed-kafka-auth-login-handler:1.0.6",
            excludes=("io.confluent:kafka-schema-registry-client",),
            callback="com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler",
            grant="grant its service account roles/managedkafka.client in the cluster's project, and compare the "
            "machine's clock",
            token=_google_token,
        ),
    )
}


def mechanism_of(settings: Mapping[str, str]) -> Mechanism | None:
    """Return the named login of a cluster; None: it has none."""
    return MECHANISMS.get(settings.get(AUTH, ""))


# -- librdkafka's side -----------------------------------------------------------------------------------------------


class Login:
    """Gets the tokens of one client, and keeps why there was none: the client says only that there was none.

    Args:
        mechanism: the cluster's.
        settings: of the cluster.

    Raises:
        ToolMissing: the vendor's library is not installed.
        CredentialsRefused: the identity gets no token.
        BrokerUnavailable: who gives tokens does not answer.
        ConfigurationError: something is missing in the settings.
    """

    def __init__(self, mechanism: Mechanism, settings: Mapping[str, str]) -> None:
        self._mechanism, self._settings = mechanism, dict(settings)
        self._why = ""
        self._first: Token | None = self._get()

    def __call__(self, _config: str) -> tuple[str, float, str]:
        """Return a token, the seconds since the epoch when it ends, and whose it is; called by the client's thread."""
        try:
            token, self._first = self._first or self._get(), None
        except KcrError as error:
            self._why = error.message
            _log.warning("%s", error.message)
            raise
        return token.value, token.until, token.principal

    def explained(self, error: KafkaError) -> KafkaError:
        """Return an error with the reason for which there was no token."""
        if _RAISED not in error.str():
            return error
        return KafkaError(error.code(), error.str().replace(_RAISED, self._why))

    def _get(self) -> Token:
        name = self._mechanism.name
        try:
            return self._mechanism.token(self._settings)
        except ImportError as missing:
            raise ToolMissing(
                f"auth: {name} needs {missing.name or missing}, for {_HERE} on every machine that connects to Kafka: "
                f"pip install 'airflow-kcr[{self._mechanism.extra}]'"
            ) from None
        except (CredentialsRefused, BrokerUnavailable) as error:
            raise type(error)(f"auth: {name}: {_HERE} {NOT_GOT}: {error.message}") from None
        except KcrError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a library raises, its words may repeat a key
            kind = type(error).__name__
            raise CredentialsRefused(f"auth: {name}: {_HERE} {NOT_GOT} ({kind}); check the identity's files") from None


def client_settings(settings: Mapping[str, str], on_error: OnError) -> dict[str, object]:
    """Return what a client of librdkafka is made with: its first token is there, the named login is in its own words.

    Args:
        settings: the cluster's, and the client's own.
        on_error: hears of connections and authentication.

    Raises:
        KcrError: there is no token; see `Login`.
    """
    mechanism = mechanism_of(settings)
    if mechanism is None:
        return {**settings, "error_cb": on_error}
    login = Login(mechanism, settings)
    own = {name: value for name, value in settings.items() if name != AUTH and not name.startswith(f"{AUTH}.")}
    return {
        "security.protocol": "SASL_SSL",
        **own,
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": login,
        "error_cb": lambda error: on_error(login.explained(error)),
    }


def advice(settings: Mapping[str, str], *, in_spark: bool = False) -> str:
    """Return what to do where brokers don't let a client in: librdkafka, or the one in Spark."""
    mechanism = mechanism_of(settings)
    if mechanism is None:
        return "check security.protocol and the sasl and ssl settings"
    who = _SPARK if in_spark else _HERE
    return f"auth: {mechanism.name}, by {who} with the identity of its machine: {mechanism.grant}"
