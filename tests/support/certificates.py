"""Certificates for a broker that speaks TLS and asks its clients for theirs: an authority, a server, a client."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM."""

    certificate: str
    key: str
    """PKCS #8, as Java wants it."""

    def key_store(self, password: str) -> bytes:
        """Return both as a key store of type PKCS12."""
        key = load_pem_private_key(self.key.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        own = x509.load_pem_x509_certificate(self.certificate.encode())
        return pkcs12.serialize_key_and_certificates(b"own", key, own, None, BestAvailableEncryption(password.encode()))


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates."""

    own: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        """The certificate to trust."""
        return _pem(self.own)

    def sign(self, name: str, *hosts: str, organization: str = "") -> Certificate:
        """Return a certificate of that name, good for a server at these addresses and names, or at 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.SubjectAlternativeName([_host(host) for host in hosts or ("127.0.0.1",)])
        signed = (
            _drawn_up(_named(name, organization), key.public_key(), self.own.subject)
            .add_extension(address, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return Certificate(certificate=_pem(signed), key=text)


def authority(name: str) -> Authority:
    """Make an authority that no client trusts yet."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = (
        _drawn_up(_named(name), key.public_key(), _named(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(own=own, key=key)


def broker_settings(folder: Path, trusted: Authority) -> dict[str, str]:
    """Write what a broker needs into `folder`, and return the settings that make its second listener speak TLS.

    Its clients have to show a certificate of `trusted`, beside their password.
    """
    folder.mkdir(parents=True)
    own = trusted.sign("broker")
    (folder / "broker.pem").write_text(own.key + own.certificate)
    (folder / "trusted.pem").write_text(trusted.pem)
    return {
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL",
        "listener.name.sasl.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "trusted.pem"),
    }


def _host(text: str) -> x509.GeneralName:
    return x509.IPAddress(ip_address(text)) if text.replace(".", "").isdigit() else x509.DNSName(text)


def _named(name: str, organization: str = "") -> x509.Name:
    within = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([*within, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _drawn_up(name: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
