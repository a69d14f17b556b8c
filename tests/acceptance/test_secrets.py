"""Passwords in what the command prints, and in what others see of its processes."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.conftest import Command
from tests.servers import eventually
from tests.servers.leaks import leaks_in_arguments
from tools.private_servers import UNMISTAKABLE

PIECES = ("Zq9win", "ter7Kp")
ADDRESSES = {
    "plain": "{scheme}://user:Zq9win-ter7Kp@127.0.0.1:1/bso",
    "encoded": "{scheme}://user:Zq9win%40ter7Kp@127.0.0.1:1/bso",
    "unescaped": "{scheme}://user:Zq9win/@#ter7Kp@127.0.0.1:1/bso",
    "option": "{scheme}://user@127.0.0.1:1/bso?Password=Zq9winter7Kp",
    "no_address": "{scheme}//Zq9winter7Kp",
}
COMMANDS = ("doctor --json", "migrate --wait 0.1", "worker --log-level debug", "--debug dead-letters counts")


def _silent(bso: Command, *words: str, **environment: str) -> str:
    done = bso(*words, **environment)
    said = done.stdout + done.stderr
    assert not any(piece in said for piece in PIECES), said
    assert done.returncode != 0
    return said


@pytest.mark.parametrize("name", ADDRESSES)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_a_password_of_its_environment(bso: Command, name: str, command: str) -> None:
    broker, database = (
        ADDRESSES[name].format(scheme=scheme) for scheme in ("amqps" if name == "plain" else "amqp", "mysql")
    )
    if command.startswith("worker") and name in ("plain", "encoded"):
        database = ADDRESSES["option"].format(scheme="mysql")  # with others it would wait for its servers
    _silent(bso, *command.split(), BSO_URL=broker, BSO_DATABASE_URL=database)


@pytest.mark.parametrize(
    "words",
    [
        ["doctor", "--url", "URL"],
        ["jobs", "list", "--database-url=URL"],
        ["doctor", "URL"],
        ["URL"],
        ["jobs", "list", "--limit", "URL"],
        ["--debug", "jobs", "list", "--url", "URL"],
    ],
)
@pytest.mark.parametrize("name", ["plain", "unescaped"])
def test_no_command_prints_a_password_of_its_arguments(bso: Command, words: Sequence[str], name: str) -> None:
    url = ADDRESSES[name].format(scheme="postgresql" if "database" in "".join(words) else "amqp")
    said = _silent(bso, *(word.replace("URL", url) for word in words), COLUMNS="40")
    assert said.count("a password stands in an option") == 1


def test_a_password_in_a_file_is_not_warned_of_and_not_printed(bso: Command, tmp_path: Path) -> None:
    secret = tmp_path / "amqp_url"
    secret.write_text(ADDRESSES["encoded"].format(scheme="amqp") + "\n")
    assert "stands in an option" not in _silent(bso, "doctor", BSO_URL_FILE=str(secret))
    (tmp_path / "other_url").write_text("Zq9winter7Kp\n")
    _silent(bso, "doctor", BSO_URL_FILE=str(tmp_path / "other_url"))


def test_neither_recur_nor_its_children_have_a_password_in_their_arguments(
    bso: Command, training: list[str], amqp_url: str, tmp_path: Path
) -> None:
    assert UNMISTAKABLE.rstrip("/") in str(urlsplit(amqp_url).password)
    begun = tmp_path / "begun"
    script = tmp_path / "train.py"
    script.write_text(f"open({str(begun)!r}, 'w').close(); input()")
    bso.start("recur", 1, "--", training[0], script, BSO_URL=amqp_url)
    eventually(begun.exists, what="a training")
    assert list(leaks_in_arguments()) == []


def test_doctor_names_state_that_others_may_read(bso: Command, training: list[str], state_dir: Path) -> None:
    bso.ok("recur", 1, "--", *training, "goes")
    assert "rights of files" not in bso("doctor").stdout
    (state_dir / "bso.sqlite").chmod(0o644)
    said = bso("doctor", COLUMNS="1000").stdout
    assert f"chmod 600 {state_dir}/bso.sqlite" in said
