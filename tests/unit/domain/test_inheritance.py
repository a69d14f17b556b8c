"""What a new version of a job takes over from its predecessor, or a job from one like it."""

import dataclasses
import math
from typing import Any

import pytest

from bso.domain.commands import DescribeJob, RegisterJob
from bso.domain.events import JobRegistered, JobRespecified
from bso.domain.evolve import fold
from bso.domain.replies import JobDescription, Registered
from bso.domain.trial import Outcome
from bso.policies.curve.memory import epoch_costs_on, epochs_of
from tests.unit.domain.builders import A100, V100, JobLife, as_json, expect, problem_of, without_leases
from tests.unit.policies.curve.invented_trainings import EPOCHS, PRICES, Trainings

BEST = (64, 128)


def recurred(times: int = 30, **life: Any) -> Trainings:
    """Trainings that have recurred: 128 costs least, then 64."""
    trainings = Trainings(noise=0.05, life=JobLife(**life)).register()
    trainings.chosen(range(times))
    return trainings


def beside(known: Trainings, **spec: Any) -> Trainings:
    """A new job, which may name the known one as ``like``."""
    assert known.life.job is not None
    trainings = Trainings(noise=0.05, life=JobLife(job_id="new", siblings={"job": known.life.job}))
    return trainings.register(**spec)


def longer(trainings: Trainings, factor: float) -> Trainings:
    """The same trainings, which take so many times as many epochs."""
    epochs = {size: round(factor * count) for size, count in EPOCHS.items()}
    return dataclasses.replace(trainings, epochs=epochs)


@pytest.mark.parametrize("factor", [0.5, 1.6])
def test_after_another_target_the_best_batch_size_goes_on(factor: float) -> None:
    trainings = recurred()
    trainings.life.register(target_metric=0.9, max_epochs=200)
    trainings = longer(trainings, factor)
    first = trainings.life.begin("first")
    assert first.batch_size in BEST
    assert "by inherited knowledge" in first.reason
    assert first.bound is None
    trainings.end(first)
    chosen = [trial.batch_size for number in range(30, 50) for trial in trainings.recur(number)]
    assert sum(size in BEST for size in chosen) >= 18


def test_the_first_run_of_a_new_version_is_not_stopped_by_what_the_old_one_needed() -> None:
    trainings = recurred()
    trainings.life.register(target_metric=0.9, max_epochs=500)
    trainings = longer(trainings, 5.0)
    assert trainings.end(trainings.life.begin("first")).outcome is Outcome.CONVERGED
    second = trainings.life.begin("second")
    assert second.bound is not None


def test_epoch_costs_stay_as_they_are_where_only_the_target_differs() -> None:
    trainings = recurred()
    before = epoch_costs_on(trainings.life.known())
    trainings.life.register(target_metric=0.9)
    assert epoch_costs_on(trainings.life.known()) == before
    assert trainings.life.job is not None
    assert epochs_of(trainings.life.job.version).is_unproven


def test_epochs_stay_as_they_are_where_only_eta_knob_differs() -> None:
    trainings = recurred()
    assert trainings.life.job is not None
    before = epochs_of(trainings.life.job.version)
    trainings.life.begin("running")  # what is known of running trials stays with them
    trainings.life.register(eta_knob=1.0)
    version = trainings.life.job.version
    assert epochs_of(version).records == before.records
    assert not epochs_of(version).is_unproven
    assert not epochs_of(version).second_looks
    assert not epoch_costs_on(trainings.life.known()).is_seen
    first = trainings.life.begin("first")
    assert first.batch_size in BEST
    trainings.train(first, up_to=2.0)
    assert trainings.life.row(first).bound is not None


def test_another_model_takes_over_how_batch_sizes_compare() -> None:
    trainings = recurred()
    trainings.life.register(version="wider")
    wider = dataclasses.replace(longer(trainings, 1.5), prices={size: 9.0 * price for size, price in PRICES.items()})
    wider.life.register(max_epochs=200)
    chosen = [trial.batch_size for number in range(30, 50) for trial in wider.recur(number)]
    assert sum(size in BEST for size in chosen) >= 17


def test_where_the_inherited_best_fails_the_default_is_next() -> None:
    trainings = recurred()
    trainings.life.register(target_metric=0.9)
    first = trainings.life.begin("first")
    trainings.life.give_up(first)
    second = trainings.life.begin("first")
    assert (first.batch_size in BEST, second.batch_size) == (True, 256)
    assert second.reason == "no run of this version has converged yet; 256 is the default"


def test_what_is_inherited_and_wrong_is_refuted() -> None:
    """In the new version the largest batch sizes are the best ones by far."""
    trainings = recurred()
    trainings.life.register(version="other")
    other = dataclasses.replace(trainings, epochs=dict.fromkeys(EPOCHS, 20))
    other.chosen(range(30, 60))
    assert sum(size in (256, 512) for size in other.chosen(range(60, 80))) >= 17


def test_a_version_may_start_with_nothing() -> None:
    trainings = recurred()
    [warning] = trainings.life.register(target_metric=0.9, inherit=False).warnings
    assert "version 2 starts with no knowledge" in warning
    assert trainings.life.begin("first").batch_size == 256
    assert trainings.life.happened(JobRespecified)[-1].inherited is None


def test_it_is_said_what_a_version_starts_with() -> None:
    [warning] = recurred().life.register(target_metric=0.9).warnings
    assert warning == (
        "target_metric differs from version 1 of job job: version 2 starts with the knowledge of version 1, until its "
        "own runs outweigh that (inherit=False: with none); register with the old values to go back"
    )


def test_a_version_that_is_resumed_keeps_what_it_knew() -> None:
    trainings = recurred()
    assert trainings.life.job is not None
    first = trainings.life.job.version
    trainings.life.register(target_metric=0.9)
    trainings.chosen(range(30, 35))
    trainings.life.register(target_metric=0.5)
    resumed = trainings.life.job.version
    assert (resumed.memories, resumed.knowledge) == (first.memories, first.knowledge)


def test_a_version_without_a_run_hands_on_what_it_has_inherited() -> None:
    trainings = recurred()
    trainings.life.register(target_metric=0.9)
    trainings.life.register(target_metric=0.8)
    assert trainings.life.begin("first").batch_size in BEST


def test_a_job_inherits_from_one_that_it_names() -> None:
    trainings = beside(recurred(), like="job")
    [event] = trainings.life.happened(JobRegistered)
    assert event.inherited is not None
    assert trainings.life.begin("first").batch_size in BEST


def test_nothing_is_inherited_by_guess() -> None:
    trainings = beside(recurred())
    assert trainings.life.begin("first").batch_size == 256
    assert trainings.life.happened(JobRegistered)[0].inherited is None


def test_a_version_inherits_from_the_job_that_it_names_and_not_from_its_predecessor() -> None:
    trainings = beside(recurred())
    [warning] = trainings.life.register(target_metric=0.9, like="job").warnings
    assert "version 2 starts with the knowledge of job job" in warning
    assert trainings.life.begin("first").batch_size in BEST


def test_the_job_itself_may_be_named() -> None:
    trainings = recurred()
    [warning] = trainings.life.register(target_metric=0.9, like="job").warnings
    assert "with the knowledge of version 1" in warning


@pytest.mark.parametrize(
    ("like", "policy", "why"),
    [
        ("nowhere", "curve", "it is not registered, or this login cannot read it"),
        ("job", "pruning_thompson", "it is under policy curve, this one under pruning_thompson"),
    ],
)
def test_a_sibling_that_gives_nothing_is_no_error(like: str, policy: str, why: str) -> None:
    known = recurred(3)
    assert known.life.job is not None
    life = JobLife(job_id="new", siblings={"job": known.life.job})
    [warning] = life.register(like=like, policy=policy).warnings
    assert warning.startswith(f"nothing is inherited from job {like}: {why}")
    assert life.happened(JobRegistered)[0].inherited is None


@pytest.mark.parametrize("policy", ["curve", "pruning_thompson"])
def test_a_sibling_without_a_run_gives_nothing(policy: str) -> None:
    fresh = Trainings().register(policy=policy)
    assert fresh.life.job is not None
    life = JobLife(job_id="new", siblings={"job": fresh.life.job})
    assert life.register(like="job", policy=policy).warnings == (
        "nothing is inherited from job job: it has no run yet",
    )


@pytest.mark.parametrize(("like", "inherit"), [("no spaces in names", True), ("job", False)])
def test_a_contradiction_is_refused(like: str, inherit: bool) -> None:
    command = RegisterJob(spec={"batch_sizes": [8], "default_batch_size": 8}, like=like, inherit=inherit)
    problem = problem_of(JobLife().send(command))
    assert problem.type == "invalid_registration"
    assert list(problem.fields) == ["like"]


def test_a_batch_size_that_ran_out_of_memory_needs_one_more_proof() -> None:
    trainings = recurred()
    for number in range(2):
        trial = trainings.life.begin(f"m{number}", batch_size=512)
        trainings.life.run_out_of_memory(trial)
    trainings.life.register(version="smaller")
    assert trainings.life.known().arm(512).out_of_memories == 1


def test_what_is_handed_on_twice_is_all_on_the_level_of_the_latest_runs() -> None:
    """The second version takes 18 times the epochs of the first, but has run two batch sizes only."""
    trainings = recurred()
    trainings.life.register(version="second", max_epochs=5000)
    second = longer(trainings, 18.0)
    second.chosen(range(30, 34))
    assert trainings.life.job is not None
    known = epochs_of(trainings.life.job.version).handed_on()
    levels = {size: record.before.mean - math.log(18.0 * EPOCHS[size]) for size, record in known.records.items()}
    assert len(levels) > sum(
        record.sums.weight > 0.0 for record in epochs_of(trainings.life.job.version).records.values()
    )
    assert max(map(abs, levels.values())) < 0.4
    second.life.register(version="third")
    assert second.life.begin("third").batch_size in BEST


def test_after_another_eta_knob_it_is_said_why_the_best_one_runs() -> None:
    trainings = recurred()
    trainings.life.register(eta_knob=1.0)
    assert trainings.life.begin("first").reason.startswith("no run of this version has ended here yet; by inherited")


def test_a_hardware_kind_on_which_only_others_ran_is_not_shown_as_the_job_s_own() -> None:
    trainings = beside(recurred(), like="job")
    assert expect(JobDescription, trainings.life.send(DescribeJob())).kinds == ()
    trainings.life.begin("first")
    assert len(expect(JobDescription, trainings.life.send(DescribeJob())).kinds) == 1


def test_every_hardware_kind_is_handed_on() -> None:
    trainings = recurred()
    dataclasses.replace(trainings, hardware=V100).chosen(range(30, 33))
    trainings.life.register(target_metric=0.9)
    for kind in (A100, V100):
        assert epoch_costs_on(trainings.life.known(kind)).is_seen


@pytest.mark.parametrize("is_stateless", [False, True])
def test_the_log_alone_gives_the_state(is_stateless: bool) -> None:
    trainings = beside(recurred(), like="job")
    trainings.life.is_stateless = is_stateless
    trainings.chosen(range(5))
    trainings.life.register(target_metric=0.9)
    trainings.chosen(range(5, 10))
    assert trainings.life.job is not None
    folded = fold("new", trainings.life.history).without_ended_trials()
    assert as_json(without_leases(folded)) == as_json(without_leases(trainings.life.job.without_ended_trials()))


def test_no_policy_but_curve_inherits() -> None:
    life = JobLife()
    life.register(policy="pruning_thompson")
    life.converge(life.begin(), 10.0)
    reply = expect(Registered, life.register(target_metric=0.9))
    assert "with no knowledge" in reply.warnings[0]
