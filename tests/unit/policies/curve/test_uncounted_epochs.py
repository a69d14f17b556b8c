"""Runs whose costs are known and whose epochs nobody counted, as those that were taken over from elsewhere."""

import math

from bso.domain.events import ChangePoint
from bso.domain.replies import EpochJudged, TrialBegun
from bso.domain.trial import Outcome
from bso.policies.curve.memory import epoch_costs_on, epochs_of
from tests.unit.domain.builders import JobLife

COSTS = {16: 9_000.0, 32: 6_000.0, 64: 5_000.0, 128: 8_000.0}
EPOCHS = {16: 31, 32: 33, 64: 42, 128: 110}


def new_life() -> JobLife:
    life = JobLife()
    life.register(batch_sizes=list(COSTS), default_batch_size=16, policy="curve", eta_knob=1.0, max_epochs=200)
    return life


def take_over(life: JobLife, size: int, *, cost: float | None = None, outcome: Outcome = Outcome.CONVERGED) -> None:
    """Record a run without a report."""
    energy_j = COSTS[size] if cost is None else cost
    begun = life.begin(batch_size=size)
    life.finish(begun, outcome, "taken over", time_s=100.0, energy_j=energy_j, is_journalled=True)


def train(life: JobLife, begun: TrialBegun) -> EpochJudged:
    """Report true epochs until the target is reached, or the policy stops it."""
    size = begun.batch_size
    for epoch in range(1, EPOCHS[size] + 1):
        cost = COSTS[size] * epoch / EPOCHS[size]
        judged = life.report(begun, epoch=epoch, cost=cost, metric=0.99 if epoch == EPOCHS[size] else 0.1)
        if judged.should_stop:
            return judged
    raise AssertionError("it did not end")


def test_the_cheapest_batch_size_is_next() -> None:
    life = new_life()
    for size in COSTS:
        take_over(life, size)
    begun = life.begin()
    assert begun.batch_size == 64
    assert begun.reason == "no run has reported its epochs yet; by what whole runs cost 64 is best"
    assert begun.bound is None


def test_true_epochs_are_no_change_and_no_reason_to_stop() -> None:
    life = new_life()
    for size in (*COSTS, *COSTS, 64, 64):
        take_over(life, size)
    for _ in range(6):
        begun = life.begin()
        judged = train(life, begun)
        assert begun.batch_size != 64 or judged.outcome is Outcome.CONVERGED
    sizes = [trial.batch_size for trial in list(life.rows.values())[10:]]
    assert sizes.count(64) >= 4, sizes
    assert not life.happened(ChangePoint)


def test_a_batch_size_that_was_stopped_elsewhere_is_not_tried_first() -> None:
    life = new_life()
    for size in (16, 32, 64, 16, 32, 64):
        take_over(life, size)
    take_over(life, 128, cost=10_000.0, outcome=Outcome.COST_EXCEEDED)
    sizes = []
    for _ in range(3):
        begun = life.begin()
        train(life, begun)
        sizes.append(begun.batch_size)
    assert sizes[0] == 64
    assert 128 not in sizes


def test_runs_that_say_nothing_of_costs_say_nothing() -> None:
    life = new_life()
    take_over(life, 16, outcome=Outcome.INTERRUPTED)
    assert life.job is not None
    assert epochs_of(life.job.version).records == {}


def test_what_is_measured_in_all_is_split_and_adds_up() -> None:
    life = new_life()
    take_over(life, 32)
    take_over(life, 32)
    assert life.job is not None
    record = epochs_of(life.job.version).record(32)
    [knowledge] = life.job.version.knowledge.values()
    costs = epoch_costs_on(knowledge)
    assert record.before.weight == costs.record(32).before.weight == 2.0
    assert abs(record.before.mean + costs.record(32).before.mean - math.log(COSTS[32])) < 1e-9
    assert (costs.is_seen, costs.is_uncounted) == (False, True)


def test_a_new_version_inherits_how_the_batch_sizes_compare() -> None:
    life = new_life()
    for size in (*COSTS, *COSTS):
        take_over(life, size)
    life.register(target_metric=0.98)
    begun = life.begin()
    assert (begun.batch_size, begun.bound) == (64, None)
    assert "by inherited knowledge 64 is best" in begun.reason
    life.finish(begun, Outcome.NOT_CONVERGED, "gave up")
    assert life.begin().reason == "no run of this version has converged yet; 16 is the default"


def test_a_run_that_missed_its_target_first_changes_nothing() -> None:
    life = new_life()
    take_over(life, 128, outcome=Outcome.NOT_CONVERGED)
    for size in (16, 32, 64, 64):
        take_over(life, size)
    begun = life.begin()
    assert (begun.batch_size, begun.bound) == (64, None)
    assert train(life, begun).outcome is Outcome.CONVERGED
    assert not life.happened(ChangePoint)
