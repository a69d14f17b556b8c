"""Addresses of databases, and where SQLite files may lie."""

import sys
from pathlib import Path

import pytest

from bso.domain.errors import Misconfigured
from bso.storage import open_store
from bso.storage.filesystems import file_system_of, require_local
from bso.storage.urls import database_url, shown, sqlite_path, tls_of

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:26 / /home rw,relatime - nfs4 server:/home rw,vers=4.2
31 30 254:1 / /home/local rw,relatime - xfs /dev/vdb rw
32 22 0:40 / /mnt/with\\040space rw - fuse.sshfs user@host:/ rw
33 22 0:41 / /scratch rw master:1 - lustre mds@tcp:/scratch rw
34 22 0:42 / /gone rw - tmpfs tmpfs rw
35 22 0:43 / /gone rw - beegfs beegfs rw
short line
"""


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("mysql://me:secret@db/bso", "mysql+asyncmy://me:secret@db/bso"),
        ("mariadb://me@db:3307/bso", "mysql+asyncmy://me@db:3307/bso"),
        ("mysql+asyncmy://me@db/bso", "mysql+asyncmy://me@db/bso"),
        ("postgres://me@db/bso", "postgresql+asyncpg://me@db/bso"),
        ("postgresql://me@db/bso", "postgresql+asyncpg://me@db/bso"),
        ("sqlite:////var/lib/bso.sqlite", "sqlite+aiosqlite:////var/lib/bso.sqlite"),
    ],
)
def test_short_addresses_get_their_driver(given: str, meant: str) -> None:
    assert database_url(given).render_as_string(hide_password=False) == meant


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("", "not the address of a database"),
        ("db.example.org", "not the address of a database"),
        ("mysql://me:secret@db:port/bso", "not the address of a database"),
        ("oracle://me:secret@db/bso", "not a database that bso knows"),
        ("amqp://me:secret@broker/", "not a database that bso knows"),
        ("mysql+pymysql://me:secret@db/bso", r"through mysql\+asyncmy://"),
        ("mysql:///bso", "names no host"),
        ("mysql://me:secret@db", "names no database"),
        ("postgresql://me:secret@db/", "names no database"),
        ("mysql://me:secret@db..example/bso", "names a host that cannot be one"),
        (f"postgresql://me:secret@{64 * 'a'}.example/bso", "names a host that cannot be one"),
        ("sqlite:////var/lib/bso.sqlite?tls=verify", "options, of which it has none"),
        ("mysql://me@db/bso?tls_ca=~nobody-of-this-name/ca.pem", "tls_ca=~nobody-of-this-name/ca.pem .* names no file"),
        ("mysql://me@db/bso?tls_ca=%00", "tls_ca in the address names no file"),
        ("mysql://me@127.0.0.1/bso?tls_ca=", "option without a value: tls_ca"),
        ("postgresql://me@db/bso?tls=&ssl_mode=", "option without a value: tls, ssl_mode"),
        ("mysql://me@db/bso?ssl_ca=secret", "option ssl_ca; known are tls, tls_ca, tls_cert, tls_key, unix_socket"),
        ("postgresql://me@db/bso?zzz=secret", "option zzz; known are tls, tls_ca, tls_cert, tls_key, host"),
        ("mysql://me@db/bso?tls=off&tls=verify", "option tls more than once"),
        ("mysql://me@db/bso?tls=on", "tls=on is not a way .* expected one of verify, verify-ca, off"),
        ("postgresql://me@db/bso?tls=off&tls_ca=ca.pem", "tls_ca in the address needs TLS"),
        ("mysql://me@db/bso?tls_key=key.pem", "add tls_cert=FILE"),
        ("mysql://me@/bso?unix_socket=/s&tls=verify", "never encrypted: take tls out"),
        ("postgresql://me@/bso?host=/run&tls_ca=ca.pem", "never encrypted: take tls_ca out"),
        ("postgresql://me@/bso?host=db.example", "host=db.example is no socket"),
        ("postgresql://me@/bso?host=/run:5432,db.example:5432", "host=/run:5432,db.example:5432 is no socket"),
        ("postgresql://me@/bso?host=/run&host=/tmp", "option host more than once"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "must name a file"),
        ("sqlite://server/file.sqlite", "four slashes"),
    ],
)
def test_a_wrong_address_is_explained_without_its_password(given: str, complaint: str) -> None:
    with pytest.raises(Misconfigured, match=complaint) as raised:
        database_url(given)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "mode"),
    [
        ("mysql://me@db/bso", "verify"),
        ("mariadb://me@192.0.2.7/bso", "verify"),
        ("postgresql://me@[2001:db8::7]/bso", "verify"),
        ("postgresql://me@localhost.example/bso", "verify"),
        ("mysql://me@127.0.0.1.example/bso", "verify"),
        ("mysql://me@127.0.0.1%25.example/bso", "verify"),
        ("mysql://me@127.0.0.1%eth.example/bso", "verify"),
        ("mysql://me@LocalHost/bso", "off"),
        ("mysql://me@db/bso?tls=off", "off"),
        ("mysql://me@db/bso?tls=verify-ca", "verify-ca"),
        ("mysql://me@localhost/bso", "off"),
        ("mysql://me@127.0.0.2:3307/bso", "off"),
        ("postgresql://me@[::1]/bso", "off"),
        ("postgresql://me@localhost/bso?tls=verify", "verify"),
        ("mysql://me@127.0.0.1/bso?tls_ca=/etc/ca.pem", "verify"),
        ("mysql://me@db/bso?unix_socket=/run/mysqld.sock", "off"),
        ("postgresql://me@db/bso?host=/run/postgresql", "off"),
    ],
)
def test_beyond_this_machine_connections_are_encrypted_and_verified(address: str, mode: str) -> None:
    assert tls_of(database_url(address)).mode == mode


def test_a_missing_driver_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncmy", None)
    with pytest.raises(Misconfigured, match=r"pip install 'bso-optimizer\[mysql\]'"):
        open_store("mysql://me@db/bso")


def test_relative_files_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert sqlite_path(database_url("sqlite:///data/bso.sqlite")) == tmp_path / "data/bso.sqlite"
    assert sqlite_path(database_url("sqlite:///~/bso.sqlite")) == tmp_path / "home/bso.sqlite"


def test_passwords_are_not_shown() -> None:
    assert shown(database_url("mysql://me:secret@db/bso")) == "mysql+asyncmy://me:***@db/bso"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/bso.sqlite", "ext4"),
        ("/home/me/bso.sqlite", "nfs4"),
        ("/home/local/bso.sqlite", "xfs"),
        ("/home/localized/bso.sqlite", "nfs4"),
        ("/mnt/with space/bso.sqlite", "fuse.sshfs"),
        ("/scratch/bso.sqlite", "lustre"),
        ("/gone/bso.sqlite", "beegfs"),
    ],
)
def test_the_mount_that_holds_a_file_is_the_deepest_and_last(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    """A file that tells of network file systems."""
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    return file


def test_a_network_file_system_is_refused_by_naming_bso_url(mounts: Path) -> None:
    require_local(Path("/var/lib/bso.sqlite"), mounts=mounts)
    with pytest.raises(Misconfigured, match=r"network file system \(nfs4\).*BSO_URL"):
        require_local(Path("/home/me/bso.sqlite"), mounts=mounts)


def test_a_link_to_a_network_file_system_is_followed(tmp_path: Path, mounts: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/scratch")
    with pytest.raises(Misconfigured, match="lustre"):
        require_local(link / "bso.sqlite", mounts=mounts)


def test_this_machine_is_local(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'bso.sqlite'}")
    assert store.engine.url.database == str(tmp_path / "bso.sqlite")


def test_where_mounts_are_not_told_everything_passes(mounts: Path) -> None:
    place = Path("/home/me/bso.sqlite")
    with pytest.raises(Misconfigured):
        require_local(place, mounts=mounts)
    mounts.unlink()
    require_local(place, mounts=mounts)
