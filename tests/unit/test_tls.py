"""The files of TLS: which can be used at all."""

import os
import re
import ssl
from pathlib import Path

import pytest

from bso.tls import TlsFailed, tls_context, tls_options, why_tls_failed


@pytest.mark.timeout(20)
@pytest.mark.parametrize("option", ["tls_ca", "tls_cert", "tls_key"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, option: str) -> None:
    pipe = tmp_path / "pipe.pem"
    os.mkfifo(pipe)
    query = {option: str(pipe)} | ({"tls_cert": str(__file__)} if option == "tls_key" else {})
    with pytest.raises(TlsFailed, match=f"{option}={pipe} in the address is no file"):
        tls_context(tls_options(query, host="db.example"))


def test_a_folder_is_no_file_of_authorities(tmp_path: Path) -> None:
    with pytest.raises(TlsFailed, match=f"tls_ca={tmp_path} in the address is no file"):
        tls_context(tls_options({"tls_ca": str(tmp_path)}, host="db.example"))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("TLSV1_ALERT_PROTOCOL_VERSION", "speaks no TLS of version 1.2 or newer"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "asks for a certificate.*or the two have no cipher in common"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "asks for a certificate.*has not expired$"),
        ("WRONG_VERSION_NUMBER", "does the server speak TLS on this port"),
    ],
)
def test_what_ends_a_handshake_is_not_taken_for_something_else(reason: str, words: str) -> None:
    error = ssl.SSLError(ssl.SSL_ERROR_SSL, f"[SSL: {reason}]")
    error.reason = reason
    assert re.search(words, why_tls_failed(error) or "")
