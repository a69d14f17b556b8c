"""The files of TLS: which can be used at all."""

import os
from pathlib import Path

import pytest

from bso.tls import TlsFailed, tls_context, tls_options


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
