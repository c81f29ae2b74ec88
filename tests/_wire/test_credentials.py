from __future__ import annotations

import asyncio
import pickle
import socket
import ssl
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rlinf_async._wire import credentials as module
from rlinf_async._wire.credentials import NodeCredentials, RunAuthority, explain_refusal, node_name
from rlinf_async.errors import AuthError, ConfigError

RUN = "0a1b2c3d"


def certificate_of(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text.encode())


def test_a_certificate_names_one_node_of_one_run_and_nothing_else():
    certificate = certificate_of(RunAuthority(RUN).issue(3).cert)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName(f"node-3.{RUN}.rlinf.internal")]
    assert certificate.subject.rfc4514_string() == f"CN=node-3.{RUN}.rlinf.internal"
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert not constraints.value.ca


def test_who_does_not_know_the_limits_of_a_certificate_must_not_accept_it():
    issued = RunAuthority(RUN).issue(3)
    for text in (issued.ca, issued.cert):
        critical = {type(each.value) for each in certificate_of(text).extensions if each.critical}
        assert critical == {x509.BasicConstraints, x509.KeyUsage}


def test_certificates_allow_for_clocks_that_are_two_days_slow_and_runs_of_a_year():
    issued = RunAuthority(RUN).issue(0)
    now = datetime.now(UTC)
    for text in (issued.ca, issued.cert):
        certificate = certificate_of(text)
        assert abs(now - timedelta(days=2) - certificate.not_valid_before_utc) < timedelta(minutes=1)
        assert abs(now + timedelta(days=365) - certificate.not_valid_after_utc) < timedelta(minutes=1)


def test_keys_are_p256_and_new_for_every_node():
    authority = RunAuthority(RUN)
    keys = [serialization.load_pem_private_key(authority.issue(node).key.encode(), password=None) for node in (0, 1)]
    assert all(isinstance(key, ec.EllipticCurvePrivateKey) for key in keys)
    assert all(isinstance(key.curve, ec.SECP256R1) for key in keys)  # type: ignore[union-attr]
    assert keys[0].private_numbers() != keys[1].private_numbers()  # type: ignore[union-attr]


def test_no_way_of_showing_credentials_shows_the_key():
    authority = RunAuthority(RUN)
    issued = authority.issue(0)
    for shown in (repr(issued), str(issued), f"{issued}", f"{[issued]}"):
        assert "<secret>" in shown
        assert "PRIVATE" not in shown
    assert repr(authority) == f"RunAuthority(run='{RUN}', key=<secret>)"
    with pytest.raises(TypeError):
        pickle.dumps(authority)


def test_credentials_that_do_not_belong_together_are_found_before_they_are_used():
    one, other = RunAuthority(RUN).issue(0), RunAuthority(RUN).issue(0)
    one.check()
    for wrong in (replace(one, key=other.key), replace(one, cert="none"), replace(one, ca="none")):
        with pytest.raises(AuthError, match="own credentials"):
            wrong.check()


@pytest.mark.parametrize(("run", "node"), [("", 0), ("UPPER", 0), ("a.b", 0), ("x" * 33, 0), ("a*", 0), (RUN, -1)])
def test_what_could_not_be_told_apart_in_a_certificate_is_refused(run: str, node: int):
    with pytest.raises(ConfigError):
        node_name(run, node)


def test_a_daemon_does_not_wait_for_a_library_that_it_does_not_need():
    script = (
        "import sys, rlinf_async._wire.credentials as module; module.NodeCredentials('', '', '');"
        "sys.exit('cryptography' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=True)


async def _tls_server(issued: NodeCredentials, folder: Path) -> asyncio.Server:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=issued.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    (folder / "pem").write_text(issued.cert + issued.key)
    context.load_cert_chain(folder / "pem")

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"settings")
        await writer.drain()
        writer.close()

    return await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)


async def _explain(server: RunAuthority, client: NodeCredentials, folder: Path, name: str) -> AuthError | None:
    async with await _tls_server(server.issue(1), folder) as listening:
        port = listening.sockets[0].getsockname()[1]
        return await explain_refusal("127.0.0.1", port, name, client, 5)


async def test_two_nodes_of_a_run_accept_each_other(tmp_path: Path):
    authority = RunAuthority(RUN)
    assert await _explain(authority, authority.issue(0), tmp_path, node_name(RUN, 1)) is None


async def test_a_run_with_the_same_id_has_another_authority(tmp_path: Path):
    error = await _explain(RunAuthority(RUN), RunAuthority(RUN).issue(0), tmp_path, node_name(RUN, 1))
    assert isinstance(error, AuthError)
    assert "does not accept" in str(error)


async def test_a_server_that_is_another_node_is_named(tmp_path: Path):
    authority = RunAuthority(RUN)
    error = await _explain(authority, authority.issue(0), tmp_path, node_name(RUN, 2))
    assert isinstance(error, AuthError)
    assert f"node-2.{RUN}" in str(error)
    assert "mismatch" in str(error)


async def test_a_client_whose_certificate_another_authority_signed_is_told_so(tmp_path: Path):
    authority = RunAuthority(RUN)
    stranger = RunAuthority(RUN).issue(0)
    mixed = NodeCredentials(authority.issue(0).ca, stranger.cert, stranger.key)
    error = await _explain(authority, mixed, tmp_path, node_name(RUN, 1))
    assert isinstance(error, AuthError)
    assert "this node's certificate, which is not signed by the authority of this run" in str(error)


@pytest.mark.parametrize(("days", "fault"), [(-400, "has expired"), (+40, "is not valid yet")])
async def test_a_client_whose_certificate_is_out_of_date_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, fault: str
):
    authority = RunAuthority(RUN)
    with monkeypatch.context() as elsewhen:
        elsewhen.setattr(module, "_now", lambda: datetime.now(UTC) + timedelta(days=days))
        outdated = authority.issue(0)
    error = await _explain(authority, outdated, tmp_path, node_name(RUN, 1))
    assert isinstance(error, AuthError)
    assert f"this node's certificate, which {fault}" in str(error)


async def test_an_expired_certificate_is_called_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    authority = RunAuthority(RUN)
    client = authority.issue(0)
    monkeypatch.setattr(module, "_now", lambda: datetime.now(UTC) - timedelta(days=400))
    error = await _explain(authority, client, tmp_path, node_name(RUN, 1))
    assert isinstance(error, AuthError)
    assert "expired" in str(error)


async def test_where_nobody_answers_certificates_are_not_to_blame():
    issued = RunAuthority(RUN).issue(0)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound but not listening: refuses
        port = bound.getsockname()[1]
        assert await explain_refusal("127.0.0.1", port, node_name(RUN, 1), issued, 5) is None
        bound.listen()  # listening, but nobody there
        assert await explain_refusal("127.0.0.1", port, node_name(RUN, 1), issued, 0.1) is None


async def test_the_diagnosis_writes_no_key_to_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loaded: list[str] = []
    load = ssl.SSLContext.load_cert_chain
    monkeypatch.setattr(
        ssl.SSLContext, "load_cert_chain", lambda self, path: (loaded.append(str(path)), load(self, path))[1]
    )
    module._tls_context(RunAuthority(RUN).issue(0))
    assert len(loaded) == 1
    assert loaded[0].startswith("/proc/self/fd/")
