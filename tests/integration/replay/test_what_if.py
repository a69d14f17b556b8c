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
ONCE, STOPPED, NEW, UNMETERED = "once", "stopped", "new", "unmetered"


async def train(
    engine: Engine, job_id: str, *, recurrences: int, most: int = 10_000, is_metered: bool = True, **changes: Any
) -> None:
    """Let a job recur, for so many commands at most, its energy being measured or not."""
    story = recurring(WORLD, spec_of(WORLD, **changes), recurrences=recurrences, seed=2)
    command = next(story)
    for _ in range(most):
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
    """A database with two jobs of 12 recurrences, one of few, one without a model, and one without a trial."""
    url = f"sqlite:///{tmp_path_factory.mktemp('what-if') / 'bso.sqlite'}"

    async def fill() -> None:
        await upgrade(url)
        store = open_store(url)
        engine = Engine(store)
        await train(engine, JOB, recurrences=12)
        await train(engine, UNMETERED, recurrences=12, is_metered=False, eta_knob=0.0)
        await train(engine, ONCE, recurrences=3, policy="curve")
        await train(engine, STOPPED, recurrences=1, most=4)
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
    assert "over " in of_128
    assert of_128.endswith("  costs more than 64")
    assert "Of 128 no training has reached its target" in printed


def test_a_job_whose_batch_sizes_were_tried_once_is_answered_with_what_is_missing(bso: Bso) -> None:
    printed = bso.ok("replay", "what-if", ONCE, "--policy", "pruning_thompson", *QUICK)
    assert "policy pruning_thompson" in printed
    assert "a single training has reached its target: trainings are assumed to vary" in printed
    found = bso.json("replay", "what-if", ONCE, *QUICK)
    assert sum(size["converged"] == 1 for size in found["batch_sizes"]) >= 1
    assert all(size["standing"]["low"] > 0 for size in found["batch_sizes"] if size["unknown"] is None)


def test_a_database_and_an_export_give_the_same_answer(bso: Bso, tmp_path: Path) -> None:
    backup = tmp_path / "backup.jsonl"
    bso.ok("replay", "export", "--output", backup)
    asked = ("replay", "what-if", JOB, "--eta", 0.2, *QUICK)
    found = bso.json(*asked)
    nowhere = {"BSO_DATABASE_URL": "sqlite:////nowhere/at/all"}
    assert json.loads(bso.ok(*asked, "--from", backup, "--json", **nowhere)) == found


def test_json_has_these_fields(bso: Bso) -> None:
    found = bso.json("replay", "what-if", JOB, "--policy", "curve", *QUICK)
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
    assert found["recorded"].keys() == {"trials", "models", "time_s", "energy_j", "earlier_trials"}
    assert found["recorded"]["models"] == 12
    assert [size["batch_size"] for size in found["batch_sizes"]] == [32, 64, 128]
    assert found["batch_sizes"][0].keys() == {"batch_size", "converged", "censored", "failed", "standing", "unknown"}
    assert found["batch_sizes"][0]["standing"].keys() == {"cost", "low", "high", "is_higher", "more"}
    as_it_is, other = found["alternatives"]
    assert as_it_is.keys() == other.keys()
    assert as_it_is.keys() == {
        "alternative",
        "cost_j",
        "energy_j",
        "time_s",
        "trials",
        "more_cost_j",
        "more_cost_share",
        "choices",
    }
    assert as_it_is["alternative"].keys() == {"name", "spec", "batch_sizes"}
    assert as_it_is["cost_j"].keys() == other["more_cost_j"].keys() == {"mean", "low", "high"}
    assert as_it_is["choices"].keys() == {"32", "64", "128"}
    assert other["alternative"]["spec"]["policy"] == "curve"


def test_a_job_that_counts_time_alone_is_answered_without_energy_and_only_by_time(bso: Bso) -> None:
    asked = ("replay", "what-if", UNMETERED, "--policy", "curve", *QUICK)
    assert "energy unknown" in bso.ok(*asked)
    found = bso.json(*asked)
    _, other = found["alternatives"]
    assert other["cost_j"]["mean"] > 0
    assert other["more_cost_share"] is not None
    assert other["energy_j"] is found["recorded"]["energy_j"] is None
    assert "the energy of job unmetered was not measured" in bso.refused(*asked, "--eta", 0.5)


def test_what_cannot_be_asked_is_refused_in_a_sentence(bso: Bso, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        return bso.refused("replay", "what-if", *arguments)

    assert "nothing is recorded of nobody; `bso jobs list`" in refused("nobody")
    assert f"no trial of job {NEW} is recorded" in refused(NEW)
    assert "batch size 8: never tried" in refused(
        JOB, "--spec", "batch_sizes=[8,32]", "--spec", "default_batch_size=32"
    )
    assert "nothing can be said: no training has reached its target" in refused(STOPPED)
    assert "eta_knob must be a number from 0" in refused(JOB, "--eta", 2)
    assert "--beta 0.5: expected 1 or more" in refused(JOB, "--beta", 0.5)
    assert "policy 'magic' is not installed here" in refused(JOB, "--policy", "magic")
    assert "hardware 'H100' is none of" in refused(JOB, "--hardware", "H100")
    assert "there is no file" in refused(JOB, "--from", tmp_path / "none.jsonl")
    assert bso("replay", "what-if", JOB, "--spec", "batch_sizes").returncode == 2
