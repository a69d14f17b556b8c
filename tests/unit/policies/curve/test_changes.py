"""What happens to a job whose trainings change."""

from bso.domain.events import ChangePoint, TrialEnded
from bso.domain.trial import Outcome
from bso.policies.curve.memory import epochs_of
from tests.unit.policies.curve.invented_trainings import EPOCHS, PRICES, Trainings


def settled() -> Trainings:
    trainings = Trainings(noise=0.1).register(max_epochs=300)
    trainings.chosen(range(30))
    return trainings


def failures_since(trainings: Trainings, trial_number: int, *sizes: int) -> int:
    """How many trials have failed since, of these batch sizes or of all."""
    rows = [row for number, row in trainings.life.rows.items() if number > trial_number]
    return sum(row.outcome is not Outcome.CONVERGED for row in rows if not sizes or row.batch_size in sizes)


def test_more_expensive_epochs_stop_no_trial() -> None:
    trainings = settled()
    before = max(trainings.life.rows)
    trainings.prices = {size: 2.5 * price for size, price in PRICES.items()}
    assert trainings.chosen(range(30, 50)).count(128) >= 17
    assert failures_since(trainings, before) == 0


def test_slowly_rising_epoch_costs_are_followed() -> None:
    trainings = settled()
    before = max(trainings.life.rows)
    for number in range(30, 130):
        trainings.prices = {size: 1.02 ** (number - 30) * price for size, price in PRICES.items()}
        trainings.recur(number)
    assert failures_since(trainings, before, 128) == 0
    assert failures_since(trainings, before) <= 10, "one epoch each of others that seem as good"


def test_trainings_that_need_more_epochs_are_a_change_that_is_soon_believed() -> None:
    trainings = settled()
    before = max(trainings.life.rows)
    trainings.epochs = {size: round(2.5 * epochs) for size, epochs in EPOCHS.items()}
    trainings.chosen(range(30, 50))
    ended = [event for event in trainings.life.happened(TrialEnded) if event.trial_number > before]
    learnt = [event.learnt.data.epochs for event in ended if event.learnt is not None]
    kept = [epochs.kept for epochs in learnt if epochs is not None]
    changes = trainings.life.happened(ChangePoint)
    assert 1 <= sum(part < 1.0 for part in kept) == len(changes) <= 3
    assert all(change.trial_number > before for change in changes)
    assert all(1.5 * change.old_reference < change.cost < 3.5 * change.old_reference for change in changes)
    assert failures_since(trainings, before) <= 8
    assert failures_since(trainings, max(trainings.life.rows) - 8) <= 1


def test_trainings_that_need_fewer_epochs_are_a_change_too() -> None:
    trainings = settled()
    trainings.epochs = {size: max(1, round(epochs / 3)) for size, epochs in EPOCHS.items()}
    trainings.chosen(range(30, 40))
    [change, *_] = trainings.life.happened(ChangePoint)
    assert change.cost < change.old_reference
    assert trainings.life.folded().versions == getattr(trainings.life.job, "versions", None)


def test_an_optimum_that_moves_is_found_again() -> None:
    trainings = settled()
    trainings.epochs = {16: 80, 32: 60, 64: 45, 128: 36, 256: 22, 512: 18}
    trainings.chosen(range(30, 70))
    last = trainings.chosen(range(70, 80))
    assert last.count(512) >= 8, last


def test_one_run_that_fails_by_chance_changes_little() -> None:
    trainings = settled()
    epochs = trainings.epochs
    trainings.epochs = dict.fromkeys(EPOCHS)
    failed = trainings.life.begin("unlucky")
    trainings.train(failed)
    trainings.epochs = epochs
    last = trainings.life.happened(TrialEnded)[-1]
    assert last.learnt is not None
    assert last.learnt.data.epochs.kept == 1.0
    assert trainings.chosen(range(31, 51)).count(128) >= 17


def test_an_interruption_counts_as_no_failure() -> None:
    trainings = settled()
    trial = trainings.life.begin("preempted")
    trainings.train(trial, up_to=5)
    assert trainings.life.job is not None
    before = epochs_of(trainings.life.job.version).record(trial.batch_size)
    trainings.life.finish(trial, Outcome.INTERRUPTED, "preempted")
    after = epochs_of(trainings.life.job.version).record(trial.batch_size)
    assert after.failed == before.failed
    assert after.looks == before.looks + 1
    assert abs(after.sums.mean - before.sums.mean) < 1e-9


def test_a_curve_that_turns_over_is_searched_anew() -> None:
    """The incumbent takes longer, and what was far too expensive before is the cheapest now."""
    trainings = settled()
    before = max(trainings.life.rows)
    trainings.epochs = {16: 300, 32: 200, 64: 120, 128: 60, 256: 26, 512: 14}
    trainings.chosen(range(30, 50))
    assert trainings.life.happened(ChangePoint)
    assert failures_since(trainings, before) <= 10
    last = trainings.chosen(range(50, 60))
    assert last.count(512) >= 8, last


def test_an_incumbent_that_never_converges_any_more_is_a_change_after_a_few_trials() -> None:
    trainings = settled()
    before = max(trainings.life.rows)
    trainings.epochs = {16: None, 32: None, 64: None, 128: None, 256: 20, 512: 30}
    trainings.chosen(range(30, 36))
    [change, *_] = trainings.life.happened(ChangePoint)
    assert trainings.life.rows[change.trial_number].outcome is not Outcome.CONVERGED
    assert failures_since(trainings, before, 128) <= 5
    assert trainings.chosen(range(36, 46)).count(256) >= 8
    assert trainings.life.folded().versions == getattr(trainings.life.job, "versions", None)


def test_where_the_incumbent_fails_twice_the_last_attempt_is_the_default() -> None:
    trainings = settled()
    trainings.epochs = {16: None, 32: None, 64: None, 128: None, 256: 40, 512: None}
    trials = trainings.recur(30)
    assert [trial.batch_size for trial in trials] == [128, 128, 256]
    assert trainings.outcomes()[-1] is Outcome.CONVERGED


def test_a_long_run_now_and_then_is_no_change() -> None:
    """A batch size that nearly always takes the same number of epochs, and half as many more one time in five."""
    trainings = settled()
    usual = dict(trainings.epochs)
    for number in range(30, 80):
        trainings.epochs = usual if number % 5 else {size: round(1.5 * epochs) for size, epochs in EPOCHS.items()}
        trainings.recur(number)
    assert not trainings.life.happened(ChangePoint)
