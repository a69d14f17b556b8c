"""What people read about a job: where each batch size stands, and why it is not offered."""

from pathlib import Path

from bso.domain import commands as do
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import ArmDescription, JobDescription
from bso.domain.trial import Outcome
from tests.fakes.policies import installed
from tests.unit.domain.builders import JobLife, expect
from tests.unit.policies import broken_policies
from tests.unit.policies.curve.invented_trainings import Trainings


def arms(life: JobLife) -> dict[int, ArmDescription]:
    """The batch sizes of the first hardware kind as they are described."""
    [kind, *_] = expect(JobDescription, life.send(do.DescribeJob())).kinds
    return {arm.batch_size: arm for arm in kind.arms}


def standings(life: JobLife) -> dict[int, tuple[str, str]]:
    """Status and note of each batch size."""
    return {size: (arm.status, arm.note) for size, arm in arms(life).items()}


def test_what_is_offered_needs_no_note() -> None:
    life = JobLife()
    life.register(policy="pruning_thompson", batch_sizes=[8, 16], default_batch_size=8)
    life.converge(life.begin(), 10.0)
    assert standings(life) == {8: ("survives", ""), 16: ("next", "")}


def test_a_batch_size_is_being_explored_only_while_a_trial_of_it_runs() -> None:
    life = JobLife()
    life.register(policy="pruning_thompson", batch_sizes=[8, 16], default_batch_size=16)
    begun = life.begin("a")
    assert standings(life) == {8: ("to explore", ""), 16: ("exploring", "")}
    life.finish(begun, Outcome.INTERRUPTED)
    assert standings(life)[16] == ("next", "")


def test_out_of_memory_names_the_size_from_which_nothing_fits() -> None:
    life = JobLife()
    life.register()
    for number in range(2):
        life.run_out_of_memory(life.begin(f"a{number}", batch_size=128))
    assert standings(life)[64] == ("arm", "")
    assert standings(life)[128] == standings(life)[256] == ("infeasible", "out of memory from batch size 128 on")


def test_a_limit_of_time_is_said_to_be_one() -> None:
    life = JobLife()
    life.register()
    for number in range(3):
        trial = life.begin(f"a{number}", batch_size=64)
        life.finish(trial, Outcome.INTERRUPTED, "killed", time_s=100.0, energy_j=100.0)
    assert standings(life)[64] == ("infeasible", "ended from outside at the same time again and again")


def test_a_batch_size_that_rests_says_until_when() -> None:
    life = JobLife()
    life.register()
    for number in range(3):
        trial = life.begin(f"a{number}", batch_size=64)
        life.finish(trial, Outcome.INTERRUPTED, "killed", time_s=100.0 * (number + 1), energy_j=100.0)
    assert standings(life)[64] == ("resting", "interrupted 3 times in a row: until another trial has ended")


def test_failures_to_converge_are_counted() -> None:
    life = JobLife()
    life.register()
    for number in range(3):
        life.give_up(life.begin(f"a{number}", batch_size=64))
    assert standings(life)[64] == ("excluded", "did not converge in 3 trials in a row")


def test_a_batch_size_that_is_stopped_again_and_again_is_excluded_under_curve() -> None:
    trainings = Trainings().register()
    trainings.chosen(range(15))
    assert standings(trainings.life)[128] == ("arm", "")
    trainings.epochs = {**trainings.epochs, 128: None}
    trials = [trainings.life.begin(f"longer-{number}", batch_size=128) for number in range(3)]
    assert {trainings.end(trial).outcome for trial in trials} == {Outcome.COST_EXCEEDED}
    assert standings(trainings.life)[128] == ("excluded", "did not converge in 2 trials in a row")


def test_where_each_batch_size_has_failed_all_are_offered_under_curve() -> None:
    life = JobLife()
    life.register(batch_sizes=[16, 32], default_batch_size=32)
    for number in range(4):
        life.give_up(life.begin(f"a{number}", batch_size=(16, 32)[number % 2]))
    assert standings(life) == {16: ("arm", ""), 32: ("arm", "")}


def test_a_policy_that_says_nothing_of_batch_sizes_offers_all(tmp_path: Path) -> None:
    life = JobLife()
    with installed(tmp_path / "site", sound=f"{broken_policies.__name__}:INSTALLED.sound"):
        life.register(policy="sound", batch_sizes=[16, 32], default_batch_size=32)
        for number in range(3):
            life.give_up(life.begin(f"a{number}", batch_size=16))
        assert standings(life) == {16: ("arm", ""), 32: ("arm", "")}


def test_pruned_and_removed_batch_sizes_say_so() -> None:
    life = JobLife()
    life.register(policy="pruning_thompson", num_pruning_rounds=1, batch_sizes=[16, 32, 64], default_batch_size=32)
    life.converge(life.begin("a"), 10.0)
    life.give_up(life.begin("b"))
    life.converge(life.begin("c"), 10.0)
    life.register(batch_sizes=[16, 64], default_batch_size=64)
    assert standings(life)[16] == ("pruned", "failed while exploring, or beyond one that failed")
    assert standings(life)[32] == ("removed", "no longer among the job's batch sizes")


def test_the_learning_rate_is_that_of_the_last_trial_that_named_one() -> None:
    life = JobLife()
    life.register()
    assert expect(JobDescription, life.send(do.DescribeJob())).learning_rate is None
    rate = LearningRate(0.1, reference_batch_size=64)
    life.begin("a", learning_rate=rate)
    life.begin("b")
    assert expect(JobDescription, life.send(do.DescribeJob())).learning_rate == rate


def test_of_several_versions_the_newest_are_described() -> None:
    life = JobLife()
    life.register(target_metric=0.5)
    assert expect(JobDescription, life.send(do.DescribeJob())).versions == ()
    for number in range(1, 25):
        life.register(target_metric=0.5 + number / 100)
    versions = expect(JobDescription, life.send(do.DescribeJob())).versions
    assert [each.version_number for each in versions] == list(range(25, 5, -1))
    assert "target metric at least 0.74 " in versions[0].specification
