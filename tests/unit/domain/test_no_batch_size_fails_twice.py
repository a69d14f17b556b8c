"""Random outcomes, overlapping recurrences: nothing is offered again that failed, while another batch size is left."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bso.domain.knowledge import feasible
from bso.domain.trial import Outcome
from bso.policies.pruning_thompson.exploration import candidates
from tests.unit.domain.builders import A100, JobLife, searching

SIZES = (8, 16, 32, 64)
endings = st.sampled_from(("converge", "converge", "exceed", "give up", "out of memory", "infeasible", "interrupt"))
steps = st.lists(st.tuples(st.sampled_from(("a", "b", "c")), st.booleans(), endings, st.floats(1.0, 50.0)), max_size=60)


@searching(120)
@given(
    steps=steps,
    spec=st.fixed_dictionaries(
        {
            "num_pruning_rounds": st.integers(0, 2),
            "max_attempts": st.integers(1, 6),
            "window_size": st.sampled_from((0, 2)),
        }
    ),
)
def test_no_batch_size_is_offered_again_that_failed_while_another_is_left(
    steps: list[tuple[str, bool, str, float]], spec: dict[str, Any]
) -> None:
    life = JobLife()
    life.register(policy="pruning_thompson", batch_sizes=SIZES, default_batch_size=32, **spec)
    for recurrence, is_second_started, ending, cost in steps:
        trials = [begun(life, recurrence)]
        if is_second_started:
            trials.append(begun(life, recurrence))
        for trial in trials:
            end(life, trial, ending, cost)


def begun(life: JobLife, recurrence_id: str) -> Any:
    """Begin a trial and hold its batch size against what failed in the recurrence."""
    assert life.job is not None
    before = life.job.recurrences.get(recurrence_id)
    known, state = life.known(), life.pruning()
    trial = life.begin(recurrence_id)
    if before is not None and trial.batch_size in before.failed:
        usable = feasible(known, life.spec)
        arms = usable.intersection(candidates(state, life.spec, usable))
        fresh = [size for size in arms - before.failed if before.may_fit(size, A100.key)]
        left = [size for size in fresh if known.arm(size).still_converges]
        assert not left, f"{trial.batch_size} failed in the recurrence, {left} are left"
    return trial


def end(life: JobLife, trial: Any, ending: str, cost: float) -> None:
    """Let a trial end like this, if it can."""
    if ending == "converge":
        life.converge(trial, cost)
    elif ending == "exceed" and trial.bound is not None:
        reply = life.report(trial, cost=trial.bound * 1.1)
        if not reply.should_stop:
            life.give_up(trial)
    elif ending == "out of memory":
        life.run_out_of_memory(trial)
    elif ending == "infeasible":
        life.finish(trial, Outcome.INFEASIBLE, "does not divide the data")
    elif ending == "interrupt":
        life.finish(trial, Outcome.INTERRUPTED, "preempted")
    else:
        life.give_up(trial)
