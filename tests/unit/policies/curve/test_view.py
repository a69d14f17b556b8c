"""What a report is judged by is worked out once for a trial, however many jobs report in turn."""

import sys
from types import FrameType

from bso.domain.replies import TrialBegun
from bso.policies.curve.beliefs import MOST_KEPT, Beliefs
from tests.unit.policies.curve.invented_trainings import PRICES, Trainings


def test_no_report_but_the_first_of_a_trial_works_beliefs_out() -> None:
    many = [Trainings().register() for _ in range(MOST_KEPT + 16)]
    running = [(trainings, _second_trial(trainings)) for trainings in many]
    made = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal made
        made += event == "call" and frame.f_code is Beliefs.__init__.__code__

    for number in range(1, 4):
        sys.setprofile(count)
        for trainings, trial in running:
            trainings.life.report(trial, cost=number * PRICES[trial.batch_size], metric=0.1 * number)
        sys.setprofile(None)
        assert made <= len(many), f"after {number} reports of each job beliefs were worked out {made} times"


def test_another_trials_end_is_counted_with_the_next_report() -> None:
    trainings = Trainings().register()
    slow = trainings.life.begin("slow")
    assert trainings.life.report(slow, cost=PRICES[256], metric=0.1).bound is None
    other = trainings.life.begin("other")
    trainings.train(other)
    assert trainings.life.report(slow, cost=2 * PRICES[256], metric=0.2).bound is not None


def _second_trial(trainings: Trainings) -> TrialBegun:
    trainings.recur(1)
    return trainings.life.begin("r2")
