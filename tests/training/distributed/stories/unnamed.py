"""A loop over the trials of an optimizer that nobody holds when the loop, and with it the process, has ended."""

from tests.training.distributed.rank_notes import join, make_bso, say

join()
for trial in make_bso().trials():
    with trial:
        while not trial.finished:
            trial.on_evaluate(0.95)
    say(outcome=trial.outcome.value if trial.outcome else None)
