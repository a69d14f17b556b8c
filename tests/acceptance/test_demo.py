"""The demonstration, as a stranger runs it first."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Command, command_in
from tests.servers import PATIENCE_S
from tests.servers.leaks import leaks_in_arguments, printed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KEYS = {"job_id", "recurrences", "default_batch_size", "best_batch_size", "saving", "plot"}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Two runs of the demo in one directory: three recurrences for people, then two more for a program."""

    out: Path
    words: str
    progress: str
    fields: dict[str, Any]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    out = tmp_path_factory.mktemp("demo")
    bso = command_in(out / "state")
    first = bso("demo", "--recurrences", 3, "--out", out)
    assert first.returncode == 0, first.stderr
    fields = json.loads(bso.ok("demo", "--recurrences", 2, "--out", out, "--json"))
    return Shown(out=out, words=first.stdout, progress=first.stderr, fields=fields)


def test_people_see_a_table_what_is_saved_and_where_to_look_further(shown: Shown, bso: Command) -> None:
    for words in (
        "expected next",
        "estimated",
        "a recurrence cost",
        "Pictures:",
        "bso jobs why demo-digits",
        "bso dashboard",
    ):
        assert words in shown.words
    # Which one is best depends on what this machine's trainings cost; after few of them it may be the default.
    assert ("Best batch size: " in shown.words) != ("The default is the best one known" in shown.words)
    assert "256 is the default" in shown.progress
    (line,) = [one for one in shown.words.splitlines() if "jobs why" in one]
    hint = line.rpartition(": ")[2]  # BSO_URL=... bso jobs why demo-digits
    explanation = bso.ok("jobs", "why", "demo-digits", BSO_URL=hint.split()[0].removeprefix("BSO_URL="))
    assert "256 is the default" in explanation


def test_programs_see_one_object(shown: Shown) -> None:
    assert shown.fields.keys() >= KEYS
    assert (shown.fields["job_id"], shown.fields["default_batch_size"]) == ("demo-digits", 256)
    plot = Path(shown.fields["plot"])
    assert (plot.parent, plot.read_text(encoding="utf-8").count("<svg")) == (shown.out, 3)


def test_run_again_it_goes_on_with_the_same_job(shown: Shown, bso: Command) -> None:
    """Which batch sizes it tries depends on what this machine's trainings cost; that it goes on does not."""
    assert (shown.fields["recurrences"], shown.fields["recurrences_now"]) == (5, 2)
    trials = list(bso.lines("jobs", "export", "demo-digits", BSO_URL=f"sqlite:///{shown.out / 'bso.sqlite'}"))
    assert [one["trial_number"] for one in trials] == list(range(1, len(trials) + 1))
    assert len({one["recurrence_id"] for one in trials}) == 5
    assert len({one["batch_size"] for one in trials}) >= 3
    assert shown.fields["trials"] == len(trials)


def test_the_saving_is_that_of_real_recurrences(shown: Shown, bso: Command) -> None:
    url = f"sqlite:///{shown.out / 'bso.sqlite'}"
    own, control = (list(bso.lines("jobs", "export", f"demo-digits{tail}", BSO_URL=url)) for tail in ("", "-control"))
    costs = [one["cost"] for one in [*own, *control] if (one["batch_size"], one["outcome"]) == (256, "converged")]
    recurrences = len({one["recurrence_id"] for one in own})
    share = 1 - sum(one["cost"] for one in own) / recurrences / (sum(costs) / len(costs))
    assert len(control) == 5
    assert shown.fields["saving"] == pytest.approx(share)
    best = shown.fields["best_batch_size"]
    of_best = [one["cost"] for one in own if (one["batch_size"], one["outcome"]) == (best, "converged")]
    assert shown.fields["best_saving"] == pytest.approx(1 - sum(of_best) / len(of_best) / (sum(costs) / len(costs)))
    assert "estimated" in shown.fields["energy_method"]


def test_through_a_broker_it_needs_the_database_to_make_its_table(bso: Command) -> None:
    assert "BSO_DATABASE_URL" in bso.refused("demo", code=2, BSO_URL="amqp://guest:guest@127.0.0.1:1/")


@pytest.mark.usefixtures("rabbitmq_server", "mariadb_server")  # skips where the servers are not installed
def test_the_same_goes_through_servers_and_workers_of_its_own(bso: Command, tmp_path: Path) -> None:
    words = ["--recurrences", "3", "--out", str(tmp_path), "--json"]
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tools.demo_queue", *words]
    with subprocess.Popen(command, cwd=ROOT, env=bso.environment, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        said, seen = list[str](), list[str]()
        for line in process.stderr:
            said.append(line)
            seen += leaks_in_arguments()
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert seen == []
    assert "in the queue" in "".join(said)
    printed(output, *said)
    fields = json.loads(output)
    assert (fields["recurrences"], fields["trials"] >= 3) == (3, True)
    assert Path(fields["plot"]).read_text(encoding="utf-8").count("<svg") == 3
