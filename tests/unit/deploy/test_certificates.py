"""The certificates that deploy/make-secrets makes, by bso's own options for TLS and OpenSSL's strictest rules."""

import contextlib
import os
import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from bso.tls import VERIFY, TlsOptions, tls_context, why_tls_failed

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "deploy/make-secrets"
CERTIFICATES = ("rabbitmq_tls/server.pem", "mysql_tls/server.pem", "gateway_tls/server.pem")


def make(folder: Path, *options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": path or os.environ["PATH"], "OPENSSL_CONF": "/dev/null"}
    command = [sys.executable, str(SCRIPT), str(folder), *options]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    assert make(folder).returncode == 0
    return folder


def handshake(certificate: Path, *, trusted: Path, host: str) -> None:
    """A client and a server in memory; raises SSLCertVerificationError."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    trusting = tls_context(TlsOptions(mode=VERIFY, ca=trusted))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT  # Python 3.13's default
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert client.version() == "TLSv1.3"


def loaded(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("certificate", CERTIFICATES)
def test_a_server_is_believed_under_the_names_of_the_stack_and_of_this_machine(secrets: Path, certificate: str) -> None:
    for host in (certificate.partition("_")[0], "localhost", "127.0.0.1", "::1"):
        handshake(secrets / certificate, trusted=secrets / "trusted/ca.pem", host=host)


@pytest.mark.parametrize("host", ["elsewhere.example", "127.0.0.2"])
@pytest.mark.parametrize("certificate", CERTIFICATES)
def test_it_is_believed_under_no_other_name(secrets: Path, certificate: str, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(secrets / certificate, trusted=secrets / "trusted/ca.pem", host=host)


def commands_of_the_page() -> str:
    """How docs/encryption.md makes an authority, and what it issues."""
    page = (ROOT / "docs/encryption.md").read_text(encoding="utf-8")
    return page.partition("## An authority of your own")[2].partition("```bash\n")[2].partition("```")[0]


def run(commands: str, folder: Path) -> None:
    subprocess.run(["bash", "-e", "-c", commands], cwd=folder, capture_output=True, check=True)


def test_an_authority_made_as_the_page_says_is_believed_by_every_python(tmp_path: Path) -> None:
    run(commands_of_the_page() + "cat server.pem server.key >both.pem", tmp_path)
    for host in ("database.example", "10.0.0.7"):
        handshake(tmp_path / "both.pem", trusted=tmp_path / "ca.pem", host=host)


def test_an_authority_that_new_pythons_refuse_is_known_by_its_words(tmp_path: Path) -> None:
    key_usage = "-addext keyUsage=critical,keyCertSign,cRLSign "
    commands = commands_of_the_page()
    assert key_usage in commands
    run(commands.replace(key_usage, "") + "cat server.pem server.key >both.pem", tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        handshake(tmp_path / "both.pem", trusted=tmp_path / "ca.pem", host="database.example")
    words = why_tls_failed(raised.value)
    assert words is not None
    assert "key usage extension; Python 3.13 and newer" in words


def test_another_installations_authority_is_not_trusted(secrets: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "other").returncode == 0
    for certificate in CERTIFICATES:
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(secrets / certificate, trusted=tmp_path / "other/trusted/ca.pem", host="localhost")


def test_certificates_are_valid_for_the_time_that_the_page_names(secrets: Path) -> None:
    page = (SCRIPT.parents[1] / "docs/platform-engineer.md").read_text(encoding="utf-8")
    assert "two years, the authority for ten" in page
    for certificate, days in ((secrets / CERTIFICATES[0], 730), (secrets / "trusted/ca.pem", 3650)):
        found = loaded(certificate)
        assert found.not_valid_after_utc - found.not_valid_before_utc == timedelta(days=days)
        assert found.not_valid_before_utc <= datetime.now(UTC)


def test_only_the_authority_signs(secrets: Path) -> None:
    for path, signs in ((secrets / "trusted/ca.pem", True), *((secrets / name, False) for name in CERTIFICATES)):
        constraints = loaded(path).extensions.get_extension_for_class(x509.BasicConstraints)
        usage = loaded(path).extensions.get_extension_for_class(x509.KeyUsage)
        assert (constraints.critical, constraints.value.ca, usage.value.key_cert_sign) == (True, signs, signs)


def test_no_other_user_and_no_container_reads_the_key_of_the_authority(secrets: Path) -> None:
    assert stat.S_IMODE((secrets / "authority.pem").stat().st_mode) == 0o400
    assert b"PRIVATE KEY" not in (secrets / "trusted/ca.pem").read_bytes()


def test_what_exists_stays_as_it_is(secrets: Path) -> None:
    before = contents(secrets)
    assert make(secrets).stdout == ""
    assert contents(secrets) == before


def test_renewed_certificates_have_new_keys_and_are_trusted_as_before(secrets: Path, tmp_path: Path) -> None:
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes((secrets / "trusted/ca.pem").read_bytes())
    before = contents(secrets)
    keys = [loaded(secrets / name).public_key() for name in CERTIFICATES]
    assert make(secrets, "--renew").returncode == 0
    changed = {path.relative_to(secrets) for path, content in contents(secrets).items() if content != before[path]}
    assert changed == set(map(Path, CERTIFICATES))
    for name in CERTIFICATES:
        assert loaded(secrets / name).public_key() not in keys
        handshake(secrets / name, trusted=trusted, host="localhost")


def test_a_further_host_stands_in_new_certificates_and_in_renewed_ones(secrets: Path) -> None:
    assert make(secrets, "--host", "broker.example", "--host", "192.0.2.7").returncode == 0
    for renew in ((), ("--renew",)):
        assert make(secrets, *renew).returncode == 0
        for name in CERTIFICATES:
            for host in ("broker.example", "192.0.2.7", "localhost"):
                handshake(secrets / name, trusted=secrets / "trusted/ca.pem", host=host)


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("broker.example", "broker.example"),
        ("2001:db8::7", "[2001:db8::7]"),
        ("*.example", "127.0.0.1"),
        (None, "127.0.0.1"),
    ],
)
def test_trainings_get_an_address_with_that_host_and_the_authority(
    tmp_path: Path, host: str | None, named: str
) -> None:
    assert make(tmp_path, *(() if host is None else ("--host", host))).returncode == 0
    for login in ("training", "operator"):
        text = (tmp_path / f"{login}_amqp_url").read_text().strip()
        assert text.startswith(f"amqps://bso-{login}:")
        assert text.endswith(f"@{named}:5671/bso?tls_ca={tmp_path}/trusted/ca.pem")


def test_a_new_authority_is_trusted_before_it_signs_and_the_former_one_until_it_is_taken_out(secrets: Path) -> None:
    former = (secrets / "trusted/ca.pem").read_text()
    assert make(secrets, "--new-authority").returncode == 0
    for name in CERTIFICATES:  # still those of the former one
        handshake(secrets / name, trusted=secrets / "trusted/ca.pem", host="localhost")
    assert make(secrets, "--renew").returncode == 0
    new = (secrets / "trusted/ca.pem").read_text().removesuffix(former)
    assert new.count("BEGIN CERTIFICATE") == 1
    (secrets / "trusted/ca.pem").unlink()
    (secrets / "trusted/ca.pem").write_text(new)
    for name in CERTIFICATES:
        handshake(secrets / name, trusted=secrets / "trusted/ca.pem", host="localhost")
    assert make(secrets).stdout == ""


def test_an_authority_whose_key_is_kept_elsewhere_is_asked_for_and_not_replaced(secrets: Path) -> None:
    (secrets / "authority.pem").unlink()
    before = contents(secrets)
    assert make(secrets).returncode == 0
    refused = make(secrets, "--renew")
    assert refused.returncode == 1
    assert "authority.pem is missing" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert contents(secrets) == before


def test_a_machine_without_openssl_is_named_with_the_remedy(tmp_path: Path) -> None:
    refused = make(tmp_path, path=str(tmp_path))
    assert refused.returncode == 1
    assert refused.stderr.startswith("make-secrets: this machine has no program openssl")
    assert "install" in refused.stderr
    assert make(tmp_path).returncode == 0  # goes on where it stopped
    handshake(tmp_path / CERTIFICATES[0], trusted=tmp_path / "trusted/ca.pem", host="localhost")


@pytest.mark.parametrize("host", ["broker.example:5671", "a b", "x, DNS:evil", ""])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    refused = make(tmp_path / "secrets", "--host", host)
    assert refused.returncode == 2
    assert "is no name or address of a host" in refused.stderr
    assert not (tmp_path / "secrets").exists()
