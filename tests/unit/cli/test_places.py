"""Where a command looks for the optimizer and its database."""

from pathlib import Path

import pytest

from bso.domain.errors import Misconfigured
from bso_cli.settings import NoDatabase, places


def test_without_anything_it_is_a_file_in_the_state_directory(tmp_path: Path) -> None:
    found = places({"BSO_STATE_DIR": str(tmp_path)})
    assert found.optimizer_url.startswith(f"sqlite:///{tmp_path}")
    assert found.is_embedded
    assert found.database("bso jobs") == found.optimizer_url


def test_options_beat_the_environment(tmp_path: Path) -> None:
    environ = {"BSO_URL": "amqp://nobody@nowhere/", "BSO_STATE_DIR": "/nowhere", "BSO_DATABASE_URL": "mysql://x/y"}
    found = places(environ, url="sqlite:////a/b", database_url="mysql://u@h/d", state_dir=tmp_path)
    assert (found.url, found.database_url, found.state_dir) == ("sqlite:////a/b", "mysql://u@h/d", tmp_path)


def test_the_database_of_the_workers_comes_first() -> None:
    found = places({"BSO_URL": "sqlite:////a/b", "BSO_DATABASE_URL": "mysql://u@h/d"})
    assert found.database("bso jobs") == "mysql://u@h/d"


def test_with_a_broker_alone_it_says_which_setting_is_missing() -> None:
    found = places({"BSO_URL": "amqp://u@h/"})
    assert not found.has_database
    with pytest.raises(NoDatabase, match=r"`bso jobs list` reads the database.*BSO_DATABASE_URL"):
        found.database("bso jobs list")


def test_a_gateway_is_not_called_a_broker() -> None:
    with pytest.raises(NoDatabase, match="BSO_URL names only a gateway"):
        places({"BSO_URL": "http://bso.example"}).database("bso tokens")


@pytest.mark.parametrize("url", ["ftp://h/", "mysql://u@h/d", "sqlite://", "amqp:///", "bso.sqlite"])
def test_a_wrong_address_is_refused_with_what_was_expected(url: str) -> None:
    with pytest.raises(Misconfigured, match="expected sqlite:////path"):
        places({"BSO_URL": url})
