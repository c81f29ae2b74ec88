"""TLS credentials for a run: one certificate authority per run, one certificate per node; explains refused handshakes.

The launching process creates a `RunAuthority` when it starts a run over several machines, and sends each daemon its
`NodeCredentials` over the lifeline. The authority's key exists only in that process's memory and dies with it, so no
outside process can join a run, not even from another run of the same user.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rlinf_async.errors import AuthError, ConfigError

if TYPE_CHECKING:  # a slow import, needed only by runs over several machines
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

# A certificate that is not yet valid fails without explanation, so start its validity early to allow for slow clocks.
_CLOCK_SKEW = timedelta(days=2)
_LIFETIME = timedelta(days=365)  # a run lasts weeks at most, and its authority is discarded with it
_READ_ALERT_TIMEOUT_S = 1.0  # time for a server to reject this node's certificate
_UNKNOWN_ISSUER = (18, 19, 20, 21)  # OpenSSL's codes for a chain that does not end in the authority
_RUN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


def node_name(run: str, node: int) -> str:
    """Return the DNS name in a node's certificate, which callers use to dial the node.

    Raises:
        ConfigError: the run's id is not a DNS label of at most 32 characters, or the rank is negative.
    """
    if not _RUN.fullmatch(run):
        raise ConfigError(f"run id {run!r} cannot stand in a certificate: use 1 to 32 lower-case letters, digits, '-'")
    if node < 0:
        raise ConfigError(f"node rank {node} cannot stand in a certificate: ranks start at 0")
    return f"node-{node}.{run}.rlinf.internal"


@dataclass(frozen=True, repr=False)
class NodeCredentials:
    """The PEM texts with which a node proves its identity and verifies others; the private key is unencrypted."""

    ca: str
    cert: str
    key: str

    def __repr__(self) -> str:
        return "<secret>"

    def check(self) -> None:
        """Raise AuthError if the texts are not certificates and a key, or do not match."""
        _tls_context(self)


class RunAuthority:
    """The signer of a run's node certificates. Uses ECDSA P-256, because gRPC does not accept Ed25519."""

    def __init__(self, run_id: str) -> None:
        node_name(run_id, 0)
        self._run = run_id
        self._name = f"{run_id}.rlinf.internal"
        self._key = _new_key()
        self._certificate = _signed(self._name, self._key, self._name, self._key, is_authority=True)

    def __repr__(self) -> str:
        return f"RunAuthority(run={self._run!r}, key=<secret>)"

    def issue(self, node: int) -> NodeCredentials:
        """Return a new key and certificate for the node of this rank, valid for both ends of a connection.

        The certificate is valid from two days ago (because clocks differ) until a year from now.
        """
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = _new_key()
        certificate = _signed(node_name(self._run, node), key, self._name, self._key, is_authority=False)
        return NodeCredentials(
            ca=self._certificate.public_bytes(Encoding.PEM).decode(),
            cert=certificate.public_bytes(Encoding.PEM).decode(),
            key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        )


async def explain_refusal(
    host: str, port: int, name: str, credentials: NodeCredentials, timeout: float
) -> AuthError | None:
    """Repeat a failed TLS handshake to find its cause, which gRPC reports only as "socket closed".

    Return the error to raise, or None if authentication is not the cause: the port is closed, or the handshake now
    succeeds. Takes at most ``timeout`` seconds. The caller has already checked this node's own ``credentials``.
    """
    where = f"{host}:{port}, which should be {name},"
    try:
        async with asyncio.timeout(timeout):
            return await _handshake(host, port, name, where, credentials)
    except (OSError, TimeoutError):  # there is no connection or answer, so certificates are not the cause
        return None


async def _handshake(host: str, port: int, name: str, where: str, credentials: NodeCredentials) -> AuthError | None:
    context = _tls_context(credentials)
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    except ssl.SSLCertVerificationError as error:
        fault = "it is of another run" if error.verify_code in _UNKNOWN_ISSUER else error.verify_message
        return AuthError(f"{where} showed a certificate that this run does not accept: {fault}")
    except ssl.SSLError as error:
        return AuthError(f"{where} does not speak TLS as this run does: {_reason(error)}")
    except ConnectionResetError:
        return AuthError(f"{where} ended the connection during the TLS handshake: no node of this run")
    try:
        async with asyncio.timeout(_READ_ALERT_TIMEOUT_S):
            # A server that accepts this node's certificate sends HTTP/2 settings immediately.
            accepted = await reader.read(1)
    except TimeoutError:
        return None
    except (ssl.SSLError, ConnectionResetError):
        accepted = b""
    finally:
        writer.transport.abort()
    if accepted:
        return None
    return AuthError(f"{where} ended the connection on seeing this node's certificate, which {_fault(credentials)}")


def _tls_context(credentials: NodeCredentials) -> ssl.SSLContext:
    descriptor = os.memfd_create("credentials")  # ssl reads keys only from files; this file has no name
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=credentials.ca)
        context.set_alpn_protocols(["h2"])
        os.write(descriptor, f"{credentials.cert}\n{credentials.key}".encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except (ssl.SSLError, ValueError) as error:
        raise AuthError(f"this node's own credentials cannot be used: {_reason(error)}") from None
    finally:
        os.close(descriptor)
    return context


def _fault(credentials: NodeCredentials) -> str:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    authority = x509.load_pem_x509_certificate(credentials.ca.encode())
    certificate = x509.load_pem_x509_certificate(credentials.cert.encode())
    since, until, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, _now()
    if now > until:
        return f"has expired: it was valid until {until:%Y-%m-%d %H:%M} UTC"
    if now < since:
        return f"is not valid yet: it will be from {since:%Y-%m-%d %H:%M} UTC, and here it is {now:%Y-%m-%d %H:%M} UTC"
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return "is not signed by the authority of this run"
    return (
        f"is in order here: that machine belongs to another run, or its clock is not "
        f"between {since:%Y-%m-%d %H:%M} and {until:%Y-%m-%d %H:%M} UTC"
    )


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else str(error)


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _signed(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    """Return a certificate valid only for signing others, or only for the ends of a connection."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = _now()
    usage = x509.KeyUsage(
        digital_signature=not is_authority, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=is_authority, crl_sign=is_authority,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    draft = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
    )
    if not is_authority:
        both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        draft = draft.add_extension(x509.ExtendedKeyUsage(both_ends), critical=False)
        draft = draft.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return draft.sign(issuer_key, hashes.SHA256())


def _now() -> datetime:
    return datetime.now(UTC)
