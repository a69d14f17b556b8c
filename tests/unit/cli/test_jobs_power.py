"""Power profiles as people and programs see them."""

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from bso.domain.commands import DescribeJob, PowerMeasurement
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.learning_rate import LearningRate
from bso.domain.quantities import joules
from bso.domain.replies import Confidence, JobDescription
from bso.domain.trial import Outcome, Trial
from bso.service.records import PowerProfile
from bso_cli.jobs_power import profile_tables
from bso_cli.jobs_printed import explained, is_energy_assumed, job_lines, kind_table, target_doubt, trials_tables
from tests.unit.cli.samples import HARDWARE, SPEC, arm, description, trial
from tests.unit.domain.builders import JobLife, expect

RATE = LearningRate(0.1, reference_batch_size=32)


def rendered(what: RenderableType, *, width: int = 100) -> str:
    """What stands on the screen, as lines without trailing spaces."""
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(what)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def profile(batch_size: int, *limits_w: float, hardware: HardwareKind = HARDWARE) -> PowerProfile:
    """A profile in which half the power makes two thirds of the speed."""
    measurements = tuple(
        PowerMeasurement(power_limit_w=w, average_power_w=w - 50.0, samples_per_s=10.0 * w ** (2 / 3)) for w in limits_w
    )
    return PowerProfile(job_id="job", batch_size=batch_size, hardware=hardware, measurements=measurements)


def test_limits_stand_from_high_to_low_with_what_a_sample_costs_under_them() -> None:
    measured = (
        PowerMeasurement(power_limit_w=350.0, average_power_w=300.0, samples_per_s=100.0),
        PowerMeasurement(power_limit_w=700.0, average_power_w=600.0, samples_per_s=125.0),
    )
    kept = PowerProfile(job_id="job", batch_size=32, hardware=HARDWARE, measurements=measured)
    [table] = profile_tables([kept], SPEC)
    lines = rendered(table).splitlines()
    assert lines[0] == f"Power limits profiled on {HARDWARE.describe()}"
    assert [line.split() for line in lines[3:5]] == [
        ["32", "700", "W", "600", "W", "125", "4.80", "J", "5.20", "J"],  # (300 W + 350 W) / 125 samples/s
        ["32", "350", "W", "300", "W", "100", "3", "J", "5", "J", "cheapest"],  # (150 W + 350 W) / 100 samples/s
    ]


def test_the_cheapest_limit_is_set_off() -> None:
    [table] = profile_tables([profile(32, 700.0, 400.0, 200.0)], replace(SPEC, eta_knob=0.0))
    assert [row.style for row in table.rows] == ["bold green", None, None]
    [table] = profile_tables([profile(32, 700.0, 400.0, 100.0)], replace(SPEC, eta_knob=1.0))
    assert [row.style for row in table.rows] == [None, None, "bold green"]


def test_each_hardware_kind_has_a_table_of_its_own() -> None:
    other = replace(HARDWARE, gpu_model="A40")
    kept = [profile(32, 300.0), profile(8, 300.0, hardware=other), profile(8, 300.0)]
    tables = list(profile_tables(kept, SPEC))
    assert [str(table.title) for table in tables] == [
        f"Power limits profiled on {kind.describe()}" for kind in (other, HARDWARE)
    ]
    assert [len(table.rows) for table in tables] == [1, 2]


def trials(*shown: Trial, width: int = 120) -> str:
    """The one table of these trials."""
    [table] = trials_tables(shown, of=len(shown))
    return rendered(table, width=width)


def test_trials_whose_energy_is_assumed_have_no_column_for_it() -> None:
    measured = trial(1)
    guessed = replace(measured, hardware=replace(HARDWARE, energy_method=EnergyMethod.ASSUMED))
    assert " energy " in trials(measured)
    words = trials(guessed)
    assert " energy " not in words
    assert joules(guessed.cost) in words


def test_trials_on_several_hardware_kinds_have_a_table_each() -> None:
    other = replace(HARDWARE, gpu_model="A40")
    shown = [trial(1), replace(trial(2), hardware=other), trial(3)]
    titles = [table.title for table in trials_tables(shown, of=9)]
    assert titles == [f"The last 3 of 9 trials: those on {kind.describe()}" for kind in (HARDWARE, other)]


def test_trials_of_several_versions_say_which() -> None:
    assert "version" not in trials(trial(1), trial(2))
    assert "version" in trials(trial(1), replace(trial(2), version_number=2))


def test_trials_show_their_learning_rate_where_one_was_given() -> None:
    with_rate = replace(trial(2, batch_size=8), learning_rate=RATE)
    words = trials(trial(1), with_rate)
    assert "learning" in words
    assert "0.025" in words
    assert "learning" not in trials(trial(1))


def test_a_narrow_screen_shows_how_trials_ended_rather_than_their_rates_and_says_so() -> None:
    with_rate = replace(trial(2, batch_size=8, cost=4.56e6), learning_rate=RATE, time_s=7300.0, metric=0.9123)
    words = trials(with_rate, width=70)
    assert "converged" in words
    assert "4.56 MJ" in words
    assert "0.025" not in words
    assert "No room for: attempt, learning rate." in words


def test_why_batch_sizes_are_not_offered_stands_below_their_table() -> None:
    pruned = [replace(arm(size, "pruned", mean=1.23e6), note="failed while exploring") for size in (32, 64)]
    resting = replace(arm(16, "infeasible", mean=None), note="out of memory from batch size 16 on")
    job = description(arm(8), resting, *pruned)
    lines = rendered(kind_table(job.kinds[0], job, None), width=80).splitlines()
    assert lines[-2:] == [
        "16 is infeasible: out of memory from batch size 16 on",
        "32, 64 are pruned: failed while exploring",
    ]


def test_what_the_last_trainings_cost_stands_beside_what_the_next_is_expected_to() -> None:
    job = description(arm(8, mean=6.0), arm(16), arm(32, mean=None))
    stopped = trial(3, batch_size=32, cost=0.5, outcome=Outcome.COST_EXCEEDED)
    table = kind_table(job.kinds[0], job, [trial(1, batch_size=8, cost=5.0), trial(2, batch_size=8, cost=6.0), stopped])
    rows = {row.cells[0].plain: [cell.plain for cell in row.cells[1:]] for row in table.rows}
    assert table.columns == ("batch size", "status", "trials", "converged", "mean cost of last 5", "expected next")
    assert rows == {
        "8": ["available", "2", "2", "5.50 J", "6.00 ± 0.25 J"],
        "16": ["expected best", "0", "0", "–", "5.00 ± 0.25 J"],
        "32": ["available", "1", "0", "–", "–"],
    }
    assert explained(job.kinds[0].about_costs, has_means=True).startswith("Mean cost: of the last 5 trials")
    assert explained(job.kinds[0].about_costs, has_means=False).startswith("Expected next: ")


@pytest.mark.parametrize(
    ("confidence", "words"),
    [
        (
            Confidence(runs=27, cost_noise=0.31, may_save=0.064, more_runs_pay=False),
            (
                "Chosen from 27 runs: another batch size that has converged may be up to 6.4% cheaper, and more runs "
                "of others would not pay. What an epoch costs varies by 31% or so from run to run."
            ),
        ),
        (
            Confidence(runs=1, cost_noise=None, may_save=None, more_runs_pay=True),
            "Chosen from 1 run: no other batch size has converged yet, and more runs of others pay.",
        ),
    ],
)
def test_how_sure_the_best_one_is_stands_below(confidence: Confidence, words: str) -> None:
    job = description(arm(8), arm(16))
    table = kind_table(replace(job.kinds[0], confidence=confidence), job, None)
    assert table.notes == [words]


def test_where_trials_are_not_known_nothing_is_said_of_their_costs() -> None:
    job = description(arm(8))
    assert kind_table(job.kinds[0], job, None).columns == ("batch size", "status", "converged", "expected next")


def test_a_stage_is_shown_where_the_policy_has_stages() -> None:
    job = description(arm(8))
    for policy, stage, words in (
        ("curve", None, "policy curve, best"),
        ("pruning_thompson", "MAB", "policy pruning_thompson, stage MAB"),
    ):
        with_policy = replace(job, spec=replace(job.spec, policy=policy))
        assert words in kind_table(replace(job.kinds[0], stage=stage), with_policy, None).title


def test_a_job_shows_its_learning_rate() -> None:
    shown = list(job_lines(replace(description(), learning_rate=RATE)))
    assert "learning rate 0.1 at batch size 32, linear scaling" in shown
    assert "learning rate" not in " ".join(job_lines(description()))


def test_of_a_job_it_is_known_whether_any_cost_is_of_assumed_energy() -> None:
    guessed = replace(trial(2), hardware=replace(HARDWARE, energy_method=EnergyMethod.ASSUMED))
    assert is_energy_assumed(description(), [trial(1), guessed])
    assert not is_energy_assumed(description(), [trial(1)])


def test_running_trials_are_listed_and_known_to_have_assumed_energy() -> None:
    life = JobLife()
    life.register()
    life.begin("a", hardware=replace(HARDWARE, energy_method=EnergyMethod.ASSUMED))
    life.begin("b", hardware=HARDWARE)
    described = expect(JobDescription, life.send(DescribeJob()))
    first, second = [line for line in job_lines(described) if "running" in line]
    assert first.startswith("trial 1 is running")
    assert second.startswith("trial 2 is running")
    assert is_energy_assumed(described, ())


def test_a_target_that_every_training_reaches_at_once_is_doubted() -> None:
    job = description()
    first, second = (replace(trial(number), reports=1, epoch=1.0) for number in (1, 2))
    failed = replace(trial(3, outcome=Outcome.NOT_CONVERGED), reports=9)
    other = replace(trial(4), version_number=2)
    doubt = target_doubt(job, [first, failed, other])
    assert doubt is not None
    assert doubt.startswith(
        "The training that reached the target did so with the first evaluation: is higher_is_better"
    )
    assert (target_doubt(job, [first, second]) or "").startswith("All 2 trainings that reached the target")
    assert target_doubt(job, [first, trial(2)]) is None, "one took longer: not every model is good enough"
    assert target_doubt(job, [failed]) is None
    assert target_doubt(job, []) is None
