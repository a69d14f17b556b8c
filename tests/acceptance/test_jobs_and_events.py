"""What a training leaves behind, read with ``bso jobs`` and ``bso events``."""

import csv
import io
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pytest

from tests.acceptance.conftest import Command, command_in
from tests.servers import PATIENCE_S, eventually


@pytest.fixture(scope="session")
def trained_state(tmp_path_factory: pytest.TempPathFactory, training: list[str]) -> Path:
    """A state directory after three recurrences of job toy; the default batch size failed in the first."""
    folder = tmp_path_factory.mktemp("trained") / "state"
    command_in(folder).ok("recur", 1, "--", *training, "fails")
    shutil.copytree(folder, folder.with_name("once"))
    command_in(folder).ok("recur", 2, "--", *training, "goes")
    return folder


@pytest.fixture
def trained(bso: Command, state_dir: Path, trained_state: Path) -> Command:
    """The command, after those trainings."""
    shutil.copytree(trained_state, state_dir)
    return bso


def test_before_the_first_training_there_are_no_jobs(bso: Command) -> None:
    done = bso("jobs", "list", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert "no training has used" in done.stderr


def test_a_job_is_listed_shown_and_explained(trained: Command) -> None:
    [job] = trained.json("jobs", "list")
    assert (job["job_id"], job["trials"], job["spec"]["default_batch_size"]) == ("toy", 4, 16)

    shown = trained.json("jobs", "show", "toy")
    [kind] = shown["job"]["kinds"]
    assert [arm["batch_size"] for arm in kind["arms"]] == [8, 16, 32]
    assert [trial["trial_number"] for trial in shown["trials"]] == [1, 2, 3, 4]
    assert len(trained.json("jobs", "show", "toy", "--trials", 2)["trials"]) == 2

    words = trained.ok("jobs", "show", "toy")
    for part in ("toy", "batch size", "expected next", "not converged", "energy assumed", "Energy is assumed"):
        assert part in words


@pytest.mark.slow
def test_a_job_in_trouble_is_shown_with_its_reason_and_the_remedy(trained: Command, state_dir: Path) -> None:
    connection = sqlite3.connect(state_dir / "bso.sqlite")
    connection.execute(
        "INSERT INTO parked_job (job_id, parked_at, recovered_at, retry_at, reason) VALUES "
        "('toy', '2026-01-02 03:04:05.000000', NULL, '2026-01-02 03:05:05.000000', 'its row is [locked]')"
    )
    connection.execute("UPDATE job SET revision = revision + 1, state = '[' WHERE job_id = 'toy'")  # and cannot be read
    connection.commit()
    connection.close()
    [job] = trained.json("jobs", "list")
    assert (job["parked"]["reason"], job["kinds"]) == ("its row is [locked]", [])
    done = trained("jobs", "list")
    assert "in trouble" in done.stdout
    said = " ".join(done.stderr.split())
    assert "job toy is in trouble since 2026-01-02 03:04 UTC, and its commands wait: its row is [locked]" in said
    assert "bso replay rebuild toy" in said
    done = trained("jobs", "show", "toy")
    assert done.returncode == 1
    assert "Trials" in done.stdout, "what can be read is shown"
    said = " ".join(done.stderr.split())
    assert "its row is [locked]" in said
    assert "job toy cannot be read" in said
    database = f"sqlite:///{state_dir / 'bso.sqlite'}"
    findings = json.loads(trained("doctor", "--json", BSO_DATABASE_URL=database).stdout)["findings"]
    [trouble] = [finding for finding in findings if finding["topic"] == "jobs in trouble"]
    assert (trouble["health"], "its row is [locked]" in trouble["found"]) == ("broken", True)
    trained.ok("replay", "rebuild", "toy", "--yes")
    assert trained.json("jobs", "list")[0]["kinds"], "it can be read again"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE job SET state = NULL, created_at = 'noon'",
        "UPDATE trial SET started_at = '2026-13-45'",
        "UPDATE trial SET state = 7",
    ],
)
def test_a_job_that_cannot_be_read_is_listed_with_the_others_and_named_by_doctor(
    trained: Command, state_dir: Path, damage: str
) -> None:
    with closing(sqlite3.connect(state_dir / "bso.sqlite")) as connection:
        connection.execute(
            "INSERT INTO job SELECT 'other', last_seq, revision, owner, granted_to, is_deleted, "
            "version_number, version, policy, last_trial_number, spec, state, created_at, changed_at FROM job"
        )
        connection.execute(f"{damage} WHERE job_id = 'toy'")
        connection.commit()
    said = trained.ok("jobs", "list", COLUMNS="200")
    assert "cannot be read" in said
    assert "other" in said
    findings = json.loads(trained("doctor", "--json").stdout)["findings"]
    [found] = [one for one in findings if (one["topic"], one["health"]) == ("jobs", "broken")]
    assert "job toy cannot be read" in found["found"]
    assert "bso replay verify toy" in found["advice"]


def test_the_list_says_what_the_best_batch_size_is_expected_to_save(trained_state: Path) -> None:
    once = command_in(trained_state.with_name("once"))
    [job] = once.json("jobs", "list")
    assert job["expected_saving"] is None, "the default batch size has failed: there is nothing to compare with"
    assert "saves" in once.ok("jobs", "list", COLUMNS="200")


def test_the_pictures_of_a_job_are_written_as_files(trained: Command, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    done = trained("jobs", "show", "toy", "--plot", folder)
    assert done.returncode == 0, done.stderr
    written = {path.name: ET.fromstring(path.read_text()) for path in folder.iterdir()}
    assert written.keys() == {"choices.svg", "costs.svg", "recurrences.svg"}
    assert {root.tag for root in written.values()} == {"{http://www.w3.org/2000/svg}svg"}
    assert all(f"wrote {folder / name}" in " ".join(done.stderr.split()) for name in written)


def test_pictures_that_cannot_be_written_are_said(trained: Command, tmp_path: Path) -> None:
    taken = tmp_path / "a-file"
    taken.touch()
    done = trained("jobs", "show", "toy", "--plot", taken)
    assert done.returncode != 0
    assert "pictures cannot be written to" in done.stderr


def test_why_shows_the_recorded_reasons_in_order(trained: Command) -> None:
    noted = trained.json("jobs", "why", "toy")
    assert [one["seq"] for one in noted] == sorted(one["seq"] for one in noted)
    assert [one["trial_number"] for one in noted if one["type"] == "trial_started"] == [1, 2, 3, 4]
    reason = "nothing has converged yet; 16 is the default"
    assert f"trial 1 began with batch size 16: {reason}" in trained.ok("jobs", "why", "toy")

    second = trained.json("jobs", "why", "toy", 2)
    assert {one["trial_number"] for one in second["decisions"]} == {2}


@pytest.mark.slow
def test_why_shows_what_was_known_when_a_trial_began(trained: Command) -> None:
    seen = [trained.json("jobs", "why", "toy", number)["known"] for number in (2, 4)]
    converged = [sum(arm["convergences"] for arm in each["known"]["arms"]) for each in seen]
    rows = {row["trial_number"]: row for row in trained.lines("jobs", "export", "toy")}
    assert converged == [sum(rows[n]["outcome"] == "converged" for n in range(1, end)) for end in (2, 4)]
    assert [each["started"]["batch_size"] for each in seen] == [rows[2]["batch_size"], rows[4]["batch_size"]]
    words = " ".join(trained.ok("jobs", "why", "toy", 2).split())
    for part in (
        "When trial 2 began",
        f"batch size {rows[2]['batch_size']} was chosen",
        "expected next",
        "No other trial was running",
    ):
        assert part in words
    assert "nothing was known on" in " ".join(trained.ok("jobs", "why", "toy", 1).split())
    assert "nothing is recorded of trial 9" in trained.refused("jobs", "why", "toy", 9)


def test_trials_are_exported_as_json_lines_and_as_csv(trained: Command, tmp_path: Path) -> None:
    rows = trained.lines("jobs", "export", "toy")
    assert [row["trial_number"] for row in rows] == [1, 2, 3, 4]
    assert rows[0]["hardware_energy_method"] == "assumed"

    trained.ok("jobs", "export", "toy", "--format", "csv", "--output", tmp_path / "trials.csv")
    table = list(csv.DictReader(io.StringIO((tmp_path / "trials.csv").read_text())))
    assert [float(row["cost"]) for row in table] == [row["cost"] for row in rows]
    assert [row["outcome"] for row in table] == [row["outcome"] for row in rows]


def test_events_are_exported_as_json_lines_and_as_csv(trained: Command) -> None:
    rows = trained.lines("jobs", "export", "toy", "--what", "events")
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    table = list(
        csv.DictReader(io.StringIO(trained.ok("jobs", "export", "toy", "--what", "events", "--format", "csv")))
    )
    assert [json.loads(row["payload"]) for row in table] == [row["payload"] for row in rows]


@pytest.mark.slow
def test_history_can_be_narrowed_and_continued(trained: Command) -> None:
    everything = trained.lines("events", "history", "--json")
    ends = trained.lines("events", "history", "toy", "--type", "trial_ended", "--json")
    assert len(ends) == 4
    assert ends == [event for event in everything if event["type"] == "trial_ended"]
    rest = trained.lines("events", "history", "--after", everything[4]["event_id"], "--json")
    assert rest == everything[5:]
    assert len(trained.lines("events", "history", "--limit", 3, "--json")) == 3
    assert trained("events", "history", "--type", "nonsense").returncode == 2


def test_a_live_tail_shows_what_happens_from_now_on(trained: Command, training: list[str]) -> None:
    tail = trained.start("events", "tail", "toy", "--type", "trial_started", "--type", "trial_ended", "--json")
    assert tail.stdout is not None
    assert tail.stderr is not None
    tail.stderr.readline()  # it says when it has begun
    trained.ok("recur", 1, "--", *training, "goes")
    event = json.loads(tail.stdout.readline())
    assert (event["type"], event["payload"]["trial_number"]) == ("trial_started", 5)
    tail.send_signal(signal.SIGINT)
    assert tail.wait(PATIENCE_S) == 130


@pytest.mark.slow
def test_a_training_whose_process_has_ended_is_shown_as_such(bso: Command, training: list[str]) -> None:
    """Also before the next one begins, which suspends its trial."""
    dead = "The process of trial 1 of job toy has ended"
    waiting = bso.environment["BSO_STATE_DIR"] + "-waits"
    with subprocess.Popen([*training, "waits", waiting], env=bso.environment) as process:
        eventually(Path(waiting).exists)
        assert dead not in bso("jobs", "list").stderr + bso.ok("jobs", "show", "toy")
        process.kill()
    for _ in range(2):  # looking changes nothing
        assert dead in bso("jobs", "list").stderr
        assert dead in bso.ok("jobs", "show", "toy")
    bso.ok("recur", 1, "--", *training, "goes")
    assert dead not in bso("jobs", "list").stderr + bso.ok("jobs", "show", "toy")
    assert bso.json("jobs", "show", "toy")["trials"][0]["state"] == "suspended"


@pytest.mark.slow
def test_a_batch_size_may_be_allowed_again(trained: Command) -> None:
    assert trained.json("jobs", "allow", "toy", 16)["hardware_keys"]
    assert "batch sizes of job toy are 8, 16, 32" in trained.refused("jobs", "allow", "toy", 64)
    assert trained.lines("events", "history", "toy", "--json")[-1]["type"] == "batch_size_allowed"


@pytest.mark.slow
def test_a_reader_of_a_deleted_job_is_led_to_its_history(trained: Command) -> None:
    trained.ok("jobs", "delete", "toy", "--yes")
    said = trained.refused("jobs", "show", "toy")
    assert said == (
        "bso: The job is unknown: job toy was deleted; its history is still there: `bso events history toy`, "
        "`bso jobs list --deleted`"
    )
    assert "job_deleted" in [event["type"] for event in trained.lines("events", "history", "toy", "--json")]
    assert "toy" in trained.ok("jobs", "list", "--deleted")


@pytest.mark.slow
def test_a_deleted_job_is_gone_after_its_purge(trained: Command) -> None:
    assert trained("jobs", "delete", "toy").returncode == 1  # nobody there to say yes
    assert trained.json("jobs", "delete", "toy", "--yes")["job_id"] == "toy"
    assert trained.json("jobs", "list") == []
    assert len(trained.json("jobs", "list", "--deleted")) == 1
    assert trained.json("jobs", "purge", "--yes")["purged"] == []  # deleted less than 30 days ago
    assert trained.json("jobs", "purge", "--before", "0h", "--yes")["purged"] == ["toy"]
    assert trained.json("jobs", "list", "--deleted") == []


@pytest.mark.slow
def test_pruned_events_are_in_the_export_and_the_job_goes_on(
    trained: Command, training: list[str], tmp_path: Path
) -> None:
    before = trained.json("jobs", "show", "toy")["job"]
    events = trained.lines("events", "history", "--json")
    export = tmp_path / "old.jsonl"
    pruned = trained.json("events", "prune", "--before", "0h", "--export", export, "--yes")
    assert pruned == {"jobs": 1, "events": len(events), "unreadable": {}}
    assert [json.loads(line) for line in export.read_text().splitlines()] == events
    assert trained.json("jobs", "show", "toy")["job"] == before
    trained.ok("recur", 1, "--", *training, "goes")


@pytest.mark.parametrize(
    "command", [["show"], ["why"], ["export"], ["export", "--what", "profiles"], ["allow", "8"]], ids=" ".join
)
def test_an_unknown_job_is_said_to_be_unknown(trained: Command, command: list[str]) -> None:
    name, *rest = command
    said = trained.refused("jobs", name, "nonsense", *rest)
    assert "job nonsense" in said
    assert "`bso jobs list`" in said


_PROFILING = """
from bso.domain.commands import PowerMeasurement
from bso.domain.learning_rate import LearningRate
from bso_client import BatchSizeOptimizer, JobSpec

spec = JobSpec(job_id="profiled", batch_sizes=[8], default_batch_size=8, target_metric=0.9)
rate = LearningRate(0.1, reference_batch_size=32)
with BatchSizeOptimizer(spec, learning_rate=rate, constant_power=100.0) as bso:
    for trial in bso.trials():
        with trial:
            trial.mark_profiling()
            trial.report_power_profile([
                PowerMeasurement(power_limit_w=200.0, average_power_w=190.0, samples_per_s=200.0),
                PowerMeasurement(power_limit_w=300.0, average_power_w=290.0, samples_per_s=300.0),
            ])
            trial.on_evaluate(0.5)
            trial.on_evaluate(0.95)
"""


@pytest.mark.slow
def test_power_profiles_and_learning_rates_are_shown_and_exported(bso: Command) -> None:
    subprocess.run([sys.executable, "-c", _PROFILING], env=bso.environment, check=True, timeout=PATIENCE_S)
    shown = bso.json("jobs", "show", "profiled")
    [profile] = shown["power_profiles"]
    assert (profile["batch_size"], len(profile["measurements"])) == (8, 2)
    assert shown["job"]["learning_rate"] == {"value": 0.1, "reference_batch_size": 32, "rule": "linear"}
    words = bso.ok("jobs", "show", "profiled")
    for part in (
        "Power limits profiled on 1 x",
        "300 W",
        "learning rate 0.1 at batch size 32, linear scaling",
        "0.025",
    ):
        assert part in words
    assert "learning rate 0.025 (0.1 at batch size 32, linear scaling)" in bso.ok("jobs", "why", "profiled")

    profiles = bso.lines("jobs", "export", "profiled", "--what", "profiles")
    assert [row["power_limit_w"] for row in profiles] == [300.0, 200.0]
    assert profiles[0]["hardware_energy_method"] == "assumed"
    [row] = csv.DictReader(io.StringIO(bso.ok("jobs", "export", "profiled", "--format", "csv")))
    assert (row["learning_rate"], row["learning_rate_rule"], row["profiled_epochs"]) == ("0.025", "linear", "1.0")


def test_a_database_without_tables_names_the_command_that_makes_them(bso: Command, mysql_url: str) -> None:
    assert "bso migrate" in bso.refused("jobs", "list", BSO_DATABASE_URL=mysql_url)


@pytest.mark.parametrize("command", ["jobs list", "events history", "migrate", "migrate --check"])
def test_a_file_that_is_no_database_is_named_with_what_to_do(bso: Command, tmp_path: Path, command: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("to whom it may concern, " * 100)
    said = bso.refused(*command.split(), BSO_URL=f"sqlite:///{path}")
    assert f"{path}: the database file cannot be used: file is not a database; repair or remove the file" in said


def test_a_database_that_is_away_is_said_to_be_away(bso: Command) -> None:
    said = bso.refused("jobs", "list", BSO_DATABASE_URL="mysql://root:secret@127.0.0.1:1/bso")
    assert "127.0.0.1" in said
    assert "again" in said
    assert "secret" not in said


@pytest.mark.parametrize("url", ["ftp://h/", "sqlite://", "mysql://u@h/d"])
def test_a_wrong_address_is_refused_with_what_was_expected(bso: Command, url: str) -> None:
    done = bso("jobs", "list", BSO_URL=url)
    assert done.returncode == 2
    assert "sqlite:////path/to/file.db, amqp(s)://user:password@host" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_job_id_stays_on_one_line_in_80_columns(bso: Command, training: list[str]) -> None:
    name = "vision-resnet50-nightly-production"
    bso.ok("recur", 1, "--", *training, "goes", BSO_JOB_ID=name)
    assert name in bso.ok("jobs", "list", COLUMNS="80")


@pytest.mark.parametrize("command", [("jobs", "list"), ("jobs", "allow", "toy", "32")], ids=" ".join)
def test_a_broker_that_refuses_the_login_is_complained_of_once(
    bso: Command, amqp_url: str, command: tuple[str, ...]
) -> None:
    host = urlsplit(amqp_url).netloc.rpartition("@")[2]
    said = bso.refused(*command, BSO_URL=f"amqp://guest:secret@{host}/")
    assert said.count("user name and password") == 1
    assert said.startswith("bso: ")
