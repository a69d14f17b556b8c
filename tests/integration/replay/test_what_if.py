"""``bso replay what-if`` on a database and on an export, in this process: what it prints, and how it ends."""

import asyncio
import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bso.domain.commands import RegisterJob, ReportEpoch, Request
from bso.domain.replies import Problem as Refusal
from bso.service.engine import Engine
from bso.storage import open_store
from bso_migrations import upgrade
from tests.integration.replay.test_commands import Bso
from tests.unit.replay.recurring_job import JOB, recurring, spec_of
from tests.unit.simulator.problems import make

WORLD = make({32: (5, 6, 7, 14), 64: (7, 8, 9), 128: (30, 31)})
QUICK = ("--seeds", 3, "-n", 5, "--processes", 1)
YOUNG, NEW, UNMETERED = "young", "new", "unmetered"


async def train(engine: Engine, job_id: str, *, recurrences: int, is_metered: bool = True, **changes: Any) -> None:
    """Let a job recur, its energy being measured or not."""
    story = recurring(WORLD, spec_of(WORLD, **changes), recurrences=recurrences, seed=2)
    command = next(story)
    while True:
        if isinstance(command, ReportEpoch) and not is_metered:
            command = replace(command, energy_j=None)
        [answer] = await engine.execute([Request(command_id=str(uuid.uuid4()), job_id=job_id, command=command)])
        assert not isinstance(answer.reply, Refusal), answer.reply
        assert answer.reply is not None, answer
        try:
            command = story.send(answer.reply)
        except StopIteration:
            return


@pytest.fixture(scope="module")
def bso(tmp_path_factory: pytest.TempPathFactory) -> Bso:
    """Commands on a database with two jobs of 12 recurrences, one of a single recurrence, and one without any."""
    url = f"sqlite:///{tmp_path_factory.mktemp('what-if') / 'bso.sqlite'}"

    async def fill() -> None:
        await upgrade(url)
        store = open_store(url)
        engine = Engine(store)
        await train(engine, JOB, recurrences=12)
        await train(engine, UNMETERED, recurrences=12, is_metered=False, eta_knob=0.0)
        await train(engine, YOUNG, recurrences=1)
        registration = Request(command_id=str(uuid.uuid4()), job_id=NEW, command=RegisterJob(spec=spec_of(WORLD)))
        await engine.execute([registration])
        await store.close()

    asyncio.run(fill())
    return Bso(url=url)


def test_a_table_compares_what_happened_the_job_as_it_is_and_each_alternative(bso: Bso) -> None:
    printed = bso.ok("replay", "what-if", JOB, "--policy", "curve", "--beta", 3, "--beta", 0, *QUICK)
    for row in ("as recorded", "as it is", "policy curve, beta 3", "policy curve, never"):
        assert row in printed
    assert "A recurrence, in the mean of 5, 3 seeds" in printed
    [of_128] = [line for line in printed.splitlines() if line.split()[:1] == ["128"]]
    assert of_128.endswith("  no converged trainings")
    assert "The batch sizes left out had 1 recorded trial, and" in printed


def test_a_database_and_an_export_give_the_same_answer(bso: Bso, tmp_path: Path) -> None:
    backup = tmp_path / "backup.jsonl"
    bso.ok("replay", "export", "--output", backup)
    asked = ("replay", "what-if", JOB, "--eta", 0.2, *QUICK)
    found = bso.json(*asked)
    nowhere = {"BSO_DATABASE_URL": "sqlite:////nowhere/at/all"}
    assert json.loads(bso.ok(*asked, "--from", backup, "--json", **nowhere)) == found


def test_json_has_these_fields(bso: Bso) -> None:
    found = bso.json("replay", "what-if", JOB, "--policy", "curve", "--batch-sizes", "64,128", *QUICK)
    assert found.keys() == {
        "job_id",
        "version_number",
        "hardware",
        "hardware_key",
        "recurrences",
        "seeds",
        "recorded",
        "batch_sizes",
        "alternatives",
    }
    assert found["recorded"].keys() == {
        "trials",
        "models",
        "time_s",
        "energy_j",
        "untold_trials",
        "trials_of_unknown_batch_sizes",
        "cost_share_of_unknown_batch_sizes",
    }
    assert found["recorded"]["models"] == 12
    assert [size["batch_size"] for size in found["batch_sizes"]] == [32, 64, 128]
    assert found["batch_sizes"][0].keys() == {
        "batch_size",
        "converged",
        "censored",
        "failed",
        "epoch_time_s",
        "epoch_energy_j",
        "unknown",
    }
    as_it_is, unknown = found["alternatives"]
    estimates = {"cost_j", "energy_j", "time_s", "trials", "more_cost_j", "more_cost_share"}
    assert as_it_is.keys() == unknown.keys()
    assert as_it_is.keys() == estimates | {
        "name",
        "changes",
        "policy",
        "eta_knob",
        "beta_knob",
        "window_size",
        "batch_sizes",
        "default_batch_size",
        "left_out",
        "unknown",
        "recorded_cost_j",
        "choices",
    }
    assert as_it_is["cost_j"].keys() == {"least", "most", "ci95"}
    assert as_it_is["choices"].keys() == {"32", "64"}
    assert unknown["unknown"] == "128: no converged trainings"
    assert all(unknown[name] is None for name in estimates)


def test_a_job_that_counts_time_alone_is_answered_without_energy_and_only_by_time(bso: Bso) -> None:
    asked = ("replay", "what-if", UNMETERED, "--eta", 0, "--eta", 0.5, "--policy", "curve", *QUICK)
    told = bso.ok(*asked)
    assert "energy unknown" in told
    found = bso.json(*asked)
    by_time, by_both = found["alternatives"][1:]
    assert (by_time["name"], by_both["name"]) == ("policy curve", "policy curve, eta 0.5")
    assert by_time["cost_j"]["least"] > 0
    assert by_time["more_cost_share"] is not None
    assert by_both["unknown"] == "the energy was not measured: only eta 0 can be answered"
    assert by_time["energy_j"] is by_both["recorded_cost_j"] is found["recorded"]["energy_j"] is None
    known = [size for size in found["batch_sizes"] if size["unknown"] is None]
    assert all(size["epoch_time_s"] > 0 and size["epoch_energy_j"] is None for size in known)
    assert len(known) > 0


def test_where_nothing_is_known_it_says_so_and_fails(bso: Bso) -> None:
    done = bso("replay", "what-if", YOUNG, *QUICK)
    assert done.returncode == 1
    assert "Nothing can be said: no batch size of the job has 2 converged trainings" in done.stdout
    done = bso("replay", "what-if", YOUNG, "--json", *QUICK)
    assert done.returncode == 1
    [as_it_is] = json.loads(done.stdout)["alternatives"]
    assert as_it_is["unknown"] == "no batch size is known"


def test_what_cannot_be_asked_is_refused_in_a_sentence(bso: Bso, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        return bso.refused("replay", "what-if", *arguments)

    assert "nothing is recorded of nobody; `bso jobs list`" in refused("nobody")
    assert f"no trial of job {NEW} is recorded" in refused(NEW)
    assert "batch size 8 was never tried; recorded trials have 32, 64, 128" in refused(JOB, "--batch-sizes", "8,32")
    assert "eta_knob must be a number from 0" in refused(JOB, "--eta", 2)
    assert "beta_knob must be a number of 1 or more" in refused(JOB, "--beta", 0.5)
    assert "policy must be one of" in refused(JOB, "--policy", "magic")
    assert "hardware 'H100' is none of" in refused(JOB, "--hardware", "H100")
    assert "there is no file" in refused(JOB, "--from", tmp_path / "none.jsonl")
    assert bso("replay", "what-if", JOB, "--batch-sizes", "16-64").returncode == 2
