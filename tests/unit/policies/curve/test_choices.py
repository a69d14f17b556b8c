"""Which batch sizes the curve policy runs."""

import dataclasses
import math
import re

import pytest

from bso.domain.commands import DescribeJob
from bso.domain.events import TrialStarted
from bso.domain.job import Job, JobVersion, Recurrence
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge
from bso.domain.policy import Choice
from bso.domain.replies import Confidence, JobDescription
from bso.domain.trial import Outcome
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.cost_records import EpochCostKnowledge
from bso.policies.curve.epoch_records import EpochKnowledge, RunSums
from bso.policies.curve.memory import NAME as CURVE
from bso.policies.curve.memory import SECOND_LOOK, epochs_of
from bso.policies.curve.policy import CurvePolicy
from bso.policies.curve.standing import standing_of
from bso.simulator import simulate
from bso.simulator.noise import Noise
from bso.simulator.traces import MeasuredEpoch
from tests.unit.domain.builders import A100, V100, expect
from tests.unit.policies.curve.invented_trainings import EPOCHS, PRICES, Trainings
from tests.unit.policies.curve.made_up_knowledge import SIZES, SPEC, costing, lasting
from tests.unit.simulator.problems import make


def chosen_with(epochs: EpochKnowledge, costs: EpochCostKnowledge, spec: JobSpec, *, recurrence: int) -> Choice:
    """The choice in a recurrence of a job of which this is known."""
    knowledge = Knowledge(hardware=A100, memories={CURVE: costs})
    version = JobVersion(version_number=1, spec=spec, seed=1, memories={CURVE: epochs}, knowledge={A100.key: knowledge})
    job = Job(job_id="job", current_version=1, versions={1: version})
    return CurvePolicy().choose(job, Recurrence(recurrence_id="r", recurrence_number=recurrence), A100)


def test_the_default_comes_first() -> None:
    trainings = Trainings().register()
    first = trainings.life.begin("r0")
    assert (first.batch_size, first.bound) == (256, None)
    assert "256 is the default" in first.reason


def test_recurrences_that_overlap_spread_around_the_default_until_something_has_converged() -> None:
    trainings = Trainings().register()
    begun = [trainings.life.begin(f"r{number}", hardware=A100) for number in range(6)]
    assert [trial.batch_size for trial in begun] == [256, 512, 128, 64, 256, 256]
    assert "256, the default, is still running" in begun[1].reason
    for trial in begun:
        trainings.end(trial)
    assert trainings.chosen(range(6, 40))[14:].count(trainings.best()) >= 16


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_recurrence_that_overlaps_ends_with_a_model_if_only_the_default_converges(max_attempts: int) -> None:
    never = dict.fromkeys(EPOCHS) | {256: 36}
    trainings = Trainings(epochs=never).register(max_attempts=max_attempts)
    trainings.life.begin("elsewhere", hardware=A100)
    trials = trainings.recur(0)
    assert [trial.batch_size for trial in trials] == ([256] if max_attempts == 1 else [512, 256])
    assert trainings.life.row(trials[-1]).outcome is Outcome.CONVERGED


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("default", [16, 64, 512])
def test_it_finds_the_best_batch_size_and_stays_with_it(noise: float, default: int) -> None:
    trainings = Trainings(noise=noise).register(default_batch_size=default)
    trainings.chosen(range(30))
    last = trainings.chosen(range(30, 60))
    assert sum(size in (64, 128) for size in last) >= 27, last
    assert noise or last.count(trainings.best()) >= 27


def test_it_looks_at_neighbours_once_and_later_more_and_more_rarely() -> None:
    trainings = Trainings(noise=0.2).register()
    trainings.chosen(range(100))
    looks = [started for started in trainings.life.happened(TrialStarted) if started.mark == SECOND_LOOK]
    assert looks
    assert all("another look" in started.reason for started in looks)
    assert {started.batch_size for started in looks} <= {32, 64, 128, 256}
    early = [started for started in looks if started.trial_number <= 50]
    assert len(looks) - len(early) <= len(early)
    assert not epochs_of(trainings.life.folded().version).second_looks


def test_one_unlucky_look_does_not_keep_a_job_where_it_began() -> None:
    """An epoch of 32 costs twice as much as one of 64: what it needs of them is not known, and may well be less."""
    known = lasting({64: 20.0}, runs=20)
    looked = dataclasses.replace(known.record(64), sums=RunSums(), squares=0.0, converged=0.0, looks=1)
    level = costing((64,)).record(64)
    dear = dataclasses.replace(level, sums=RunSums(weight=2.0, mean=math.log(2.0)))
    costs = dataclasses.replace(costing((64,)), records={32: dear, 64: level, 128: dear})
    records = {32: looked, 64: known.record(64), 128: looked}
    three = dataclasses.replace(SPEC, batch_sizes=(32, 64, 128), policy=CURVE)
    found = chosen_with(EpochKnowledge(records=records), costs, three, recurrence=15)
    assert found.batch_size in (32, 128)
    assert found.mark == SECOND_LOOK
    assert "probability that it saves 2% or more" in found.reason
    others = lasting({16: 60.0, 256: 60.0, 512: 60.0}).records
    several = dataclasses.replace(costs, records={**costing((16, 256, 512)).records, **costs.records})
    assert chosen_with(EpochKnowledge(records={**records, **others}), several, three, recurrence=15).batch_size == 64


def test_near_ties_are_separated_though_the_curve_has_a_kink() -> None:
    trainings = Trainings(epochs={**EPOCHS, 64: 19, 128: 20, 256: 30}, noise=0.1).register(default_batch_size=512)
    assert trainings.chosen(range(80))[40:].count(128) >= 36


def test_a_default_that_never_converges_is_survived() -> None:
    trainings = Trainings(epochs={**EPOCHS, 256: None}).register(cost_budget=1000.0)
    models = [trainings.life.row(trainings.recur(number)[-1]).outcome for number in range(20)]
    assert models.count(Outcome.CONVERGED) >= 19
    assert trainings.recur(20)[-1].batch_size in (64, 128)


def test_a_batch_size_out_of_memory_is_not_offered_again() -> None:
    trainings = Trainings(epochs={**EPOCHS, 64: 40}).register(default_batch_size=128)
    trainings.recur(0)
    for number in (1, 2):
        for trial in [trainings.life.begin(f"x{number}")]:
            trainings.life.run_out_of_memory(trial)
            ceiling = trial.batch_size
    later = [row.batch_size for number in range(3, 30) for row in trainings.recur(number)]
    assert max(later) < ceiling or ceiling <= 128


def test_epochs_are_learnt_on_one_kind_of_hardware_for_all() -> None:
    trainings = Trainings().register()
    trainings.chosen(range(30))
    elsewhere = dataclasses.replace(
        trainings, hardware=V100, prices={size: 3 * price for size, price in PRICES.items()}
    )
    assert elsewhere.chosen(range(30, 50)).count(128) >= 17
    assert len(elsewhere.life.folded().version.knowledge) == 2


def test_reasons_say_where_a_few_trials_may_save_what_one_cannot() -> None:
    trainings = Trainings(epochs={**EPOCHS, 32: 14, 64: 13}, noise=0.5).register()
    trainings.chosen(range(80))
    reasons = [started.reason for started in trainings.life.happened(TrialStarted)]
    assert any("trials of it may save" in reason and "recurrences, and cost " in reason for reason in reasons)


def test_reasons_say_what_may_be_saved() -> None:
    trainings = Trainings().register()
    trainings.chosen(range(20))
    reasons = [started.reason for started in trainings.life.happened(TrialStarted)]
    assert any("recurrences, and costs" in reason for reason in reasons)
    assert any("is the best one known (expected" in reason for reason in reasons)
    assert any("runs more and save nothing" in reason for reason in reasons)
    assert not any("e-" in reason for reason in reasons)


def test_what_would_save_too_little_is_said_to_with_how_many_trials_it_takes_together() -> None:
    """Epochs of larger batches cost less, trainings take more of them, and costs vary by 30 %: 64 to 256 cost alike."""
    made = make({size: (round(4 + size / 16),) for size in (8, 16, 32, 64, 128, 256, 512)}, default=8, max_epochs=300)
    epochs = {
        size: (MeasuredEpoch(power_limit_w=200.0, time_s=100.0 * size**-0.6, average_power_w=200.0),)
        for size in made.batch_sizes
    }
    problem = dataclasses.replace(made, epochs=epochs)
    life = simulate(problem, {"policy": CURVE}, recurrences=60, seed=0, noise=Noise(run=0.3))
    stays = [trial.reason for trial in life.trials if "is the best one known" in trial.reason]
    several = [reason for reason in stays if re.search(r"; [248] trials of \d+ would cost ", reason)]
    assert several
    cheap = [reason for reason in stays if re.search(r"cost nothing more and save [\d.]+ runs", reason)]
    assert cheap
    assert all(reason.endswith(", too little") for reason in cheap)


def test_the_default_runs_again_while_the_incumbent_may_be_a_loss() -> None:
    trainings = Trainings(noise=0.5).register(default_batch_size=64)
    trainings.chosen(range(60))
    again = [started for started in trainings.life.happened(TrialStarted) if "the default, again" in started.reason]
    assert again
    assert {started.batch_size for started in again} == {64}
    assert all(started.mark == SECOND_LOOK for started in again)
    assert len(again) <= 12


def test_the_default_is_the_best_one_while_a_saving_is_not_likely_enough() -> None:
    life = lasting({64: 20.0, 128: 15.0}, runs=2, noise=0.5)
    version = JobVersion(version_number=1, spec=SPEC, seed=1, memories={CURVE: life})
    knowledge = Knowledge(hardware=A100, memories={CURVE: costing((64, 128))})
    beliefs = Beliefs(SPEC, life, costing())
    standing = standing_of(version, knowledge, None)
    assert standing.incumbent(beliefs) == 128
    assert standing.best(beliefs) == 64


@pytest.mark.parametrize(("min_saving", "best"), [(0.0, 128), (0.02, 128), (0.3, 64)])
def test_the_job_stays_where_it_is_for_less_than_a_saving_that_counts(min_saving: float, best: int) -> None:
    runs = {**lasting({64: 20.0}, runs=40).records, **lasting({128: 17.5}, runs=10).records}
    spec = dataclasses.replace(SPEC, min_saving=min_saving)
    assert Beliefs(spec, EpochKnowledge(records=runs), costing()).incumbent(SIZES) == best


def test_among_equals_the_default_stays() -> None:
    equal = lasting({64: 20.0, 128: 19.9}, runs=5)
    assert Beliefs(SPEC, equal, costing()).incumbent(SIZES) == 64


def test_it_is_said_that_a_saving_is_too_small() -> None:
    runs = {**lasting({64: 20.0}, runs=40).records, **lasting({128: 17.5}, runs=30).records}
    spec = dataclasses.replace(SPEC, batch_sizes=(64, 128), min_saving=0.3, policy=CURVE)
    choice = chosen_with(EpochKnowledge(records=runs), costing((64, 128)), spec, recurrence=71)
    assert choice.batch_size == 64
    assert re.search(
        r"^64 is the best one known \(expected .* J; 128 looks 1\d% cheaper, less than min_saving\);", choice.reason
    )


def test_how_sure_the_best_one_is_goes_with_its_runs() -> None:
    def confidence(runs: int, noise: float) -> Confidence:
        trainings = Trainings(noise=noise).register(default_batch_size=64)
        trainings.chosen(range(runs))
        found = expect(JobDescription, trainings.life.send(DescribeJob())).kinds[0].confidence
        assert found is not None
        return found

    first, early, late = confidence(1, 0.2), confidence(6, 0.2), confidence(60, 0.2)
    assert (first.runs, first.may_save, first.cost_noise) == (1, None, None)
    assert early.may_save is not None
    assert late.may_save is not None
    assert early.may_save > late.may_save
    assert (first.more_runs_pay, late.more_runs_pay) == (True, False)
    assert late.cost_noise == pytest.approx(0.02)
