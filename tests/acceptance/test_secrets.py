"""Passwords in what the command prints, and in what others see of its processes."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.conftest import BSO, Command
from tests.integration.workers.processes import WorkerProcess
from tests.servers import eventually
from tests.servers.leaks import leaks_in_arguments
from tools.private_servers import UNMISTAKABLE, MariaDB, RabbitMQ

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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "plain" else [pytest.mark.slow]) for name in ADDRESSES]
)
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
        ["--debug", "dead-letters", "counts", "--url", "URL"],
        ["doctor", "--url=URL?tls_ca=/nothing"],
    ],
)
@pytest.mark.parametrize("name", ["plain", "unescaped"])
def test_no_command_prints_a_password_of_its_arguments(bso: Command, words: Sequence[str], name: str) -> None:
    url = ADDRESSES[name].format(scheme="postgresql" if "database" in "".join(words) else "amqp")
    said = _silent(bso, *(word.replace("URL", url) for word in words), TERMINAL_WIDTH="24")
    assert said.count("a password stands in an option") == 1


def test_a_drift_is_not_taken_for_a_password(bso: Command) -> None:
    for drift in ("epochs:x1.5@50", "epoch-cost:+1%,optimum@50", "epochs:+1%@20", "epochs:x2@-1"):
        assert "stands in an option" not in bso("simulate", "single", "nowhere", "--drift", drift).stderr


def test_a_password_in_a_file_is_not_warned_of_and_not_printed(bso: Command, tmp_path: Path) -> None:
    secret = tmp_path / "amqp_url"
    secret.write_text(ADDRESSES["encoded"].format(scheme="amqp") + "\n")
    assert "stands in an option" not in _silent(bso, "doctor", BSO_URL_FILE=str(secret))
    (tmp_path / "other_url").write_text("Zq9winter7Kp\n")
    _silent(bso, "doctor", BSO_URL_FILE=str(tmp_path / "other_url"))


WORD = "Zq9winter7Kp"
"""A password that is also part of what a program says: nothing but the net below all output can hide it."""


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_a_password_passes_no_output_whatever_says_it(bso: Command, state_dir: Path, debug: Sequence[str]) -> None:
    place = {"BSO_STATE_DIR": str(state_dir / WORD), "BSO_AMQP_URL": f"amqp://user:{WORD}@127.0.0.1:1/bso"}
    said = _silent(bso, *debug, "jobs", "show", "toy", **place)
    assert "***/bso.sqlite" in said
    shown = bso("doctor", "--json", **place)
    assert f"{state_dir}/***" in shown.stdout
    assert WORD not in shown.stdout + shown.stderr


@pytest.mark.slow
def test_what_programs_read_is_whole_though_a_password_is_a_number_or_a_word_of_it(
    bso: Command, training: list[str]
) -> None:
    bso.ok("recur", 1, "--", *training, "goes")
    job = bso.lines("jobs", "list", "--json")[0][0]["job_id"]
    written = [["jobs", "list", "--json"], ["jobs", "show", job, "--json"], ["jobs", "export", job]]
    written += [["jobs", "export", job, "--format", "csv"], ["migrate", "--sql"]]
    exact = [bso.ok(*words) for words in written]
    digits = str(bso.lines("jobs", "export", job)[0]["time_s"])[2:7]
    assert "converged" in exact[3]
    shown = bso.ok(*written[3], BSO_AMQP_URL="amqp://me:converged@host/")
    assert (shown.count("\n"), "converged" in shown) == (exact[3].count("\n"), False)
    passwords = enumerate((digits, "trial_id", "batch_size", "table"))
    known = {f"BSO_{number}_URL": f"amqp://me:{password}@host/" for number, password in passwords}
    assert [bso.ok(*words, **known) for words in written] == exact


@pytest.mark.parametrize("program", [[str(BSO), "worker"], ["-m", "bso_workers"]])
def test_neither_the_log_nor_the_health_page_of_a_worker_holds_its_password(
    amqp_url: str, mariadb_server: MariaDB, tmp_path: Path, program: Sequence[str]
) -> None:
    mariadb_server.execute(f"CREATE OR REPLACE USER alone IDENTIFIED BY '{WORD}'")
    database = f"mysql://alone:{WORD}@127.0.0.1:{mariadb_server.port}/{WORD}"  # which the server then names
    environ = {"BSO_AMQP_URL": amqp_url, "BSO_DATABASE_URL": database, "BSO_HEALTH_PORT": "0", "BSO_LOG_FORMAT": "json"}
    worker = WorkerProcess(tmp_path / "worker.log", environ, program=program)
    try:
        worker.started().until(lambda: "database '***'" in worker.reasons().get("database", ""))
        worker.until(lambda: "database '***'" in worker.log.read_text())
        assert WORD not in worker.page("readyz")[1] + worker.page("metrics")[1] + worker.log.read_text()
    finally:
        worker.kill()


def test_neither_recur_nor_its_children_have_a_password_in_their_arguments(
    bso: Command, training: list[str], rabbitmq_server: RabbitMQ, tmp_path: Path
) -> None:
    amqp_url = rabbitmq_server.start().create_vhost()
    assert UNMISTAKABLE.rstrip("/") in str(urlsplit(amqp_url).password)
    begun = tmp_path / "begun"
    script = tmp_path / "train.py"
    script.write_text(f"open({str(begun)!r}, 'w').close(); input()")
    bso.start("recur", 1, "--", training[0], script, BSO_URL=amqp_url)
    eventually(begun.exists, what="a training")
    assert list(leaks_in_arguments()) == []


@pytest.mark.slow
def test_doctor_names_state_that_others_may_read(bso: Command, training: list[str], state_dir: Path) -> None:
    bso.ok("recur", 1, "--", *training, "goes")
    assert "rights of files" not in bso("doctor").stdout
    (state_dir / "bso.sqlite").chmod(0o644)
    said = bso("doctor", COLUMNS="1000").stdout
    assert f"chmod 600 {state_dir}/bso.sqlite" in said
