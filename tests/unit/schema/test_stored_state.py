"""The stored state of a job: exact, ordered, and versioned."""

import json
from dataclasses import replace
from typing import Any

import pytest

from bso.domain.commands import BeginTrial, DescribeJob
from bso.domain.errors import Retryable
from bso.domain.events import Event, JobRespecified
from bso.domain.evolve import fold
from bso.domain.job import Job
from bso.policies.curve.memory import epoch_costs_on, epochs_of
from bso.schema.codec import event_from, event_payload, job_from_state, state_of
from bso.schema.errors import MalformedMessage, StateTooNew
from tests.unit.domain.builders import A100, V100, JobLife, as_json, without_leases

COSTS = {16: 13.0, 32: 11.0, 64: 10.0, 128: 12.0, 256: 14.0}


def old_job(**spec: Any) -> JobLife:
    """A job that has seen nearly everything."""
    life = JobLife()
    life.register(**spec)
    life.give_up(life.begin("x"))
    life.run_out_of_memory(life.begin("x"))
    life.enter_mab(COSTS)
    life.begin("y", hardware=V100)
    life.register(version="v2")
    life.converge(life.begin("z"), 0.1 + 0.2)
    return life


def inheriting() -> JobLife:
    """A job whose second version knows nothing but what it has inherited."""
    life = JobLife()
    life.register()
    for night in range(4):
        life.run(f"night-{night}", COSTS)
    life.register(version="v2")
    return life


def stored(job: Job) -> Any:
    return json.loads(state_of(job))


@pytest.mark.parametrize("spec", [{}, {"policy": "pruning_thompson"}, {"policy": "pruning_thompson", "window_size": 3}])
def test_a_job_is_read_as_it_was_stored(spec: dict[str, Any]) -> None:
    job = old_job(**spec).job
    assert job is not None
    again = job_from_state(job.job_id, job.last_seq, stored(job))
    assert again == replace(job, trials={})
    assert state_of(again) == state_of(job)


def test_equal_states_give_equal_text_whatever_their_order() -> None:
    life = old_job()
    job = life.job
    assert job is not None
    backwards = replace(
        job,
        versions=dict(reversed(list(job.versions.items()))),
        recurrences={
            name: replace(one, failed=frozenset(sorted(one.failed, reverse=True)))
            for name, one in reversed(list(job.recurrences.items()))
        },
    )
    assert state_of(backwards) == state_of(job)


def test_decisions_are_equal_after_storing() -> None:
    plain, stateless = JobLife(), JobLife(is_stateless=True)
    for life in (plain, stateless):
        life.register()
        for number in range(60):
            trial = life.begin(f"r{number % 50}")
            if number % 5 == 3:
                life.give_up(trial)
            else:
                life.converge(trial, COSTS[trial.batch_size] * (1 + number % 3 / 10))
        life.send(DescribeJob())
        life.send(BeginTrial(hardware=A100))
    assert [as_json(reply) for reply in plain.replies] == [as_json(reply) for reply in stateless.replies]


def test_a_state_of_a_newer_release_is_to_be_retried_never_poison() -> None:
    job = old_job().job
    assert job is not None
    with pytest.raises(StateTooNew, match="upgrade it") as refused:
        job_from_state("job", 1, {**stored(job), "state_major": 2})
    assert isinstance(refused.value, Retryable)


def test_fields_that_a_newer_release_added_are_ignored() -> None:
    job = old_job().job
    assert job is not None
    assert job_from_state("job", job.last_seq, {**stored(job), "colour": "red"}) == replace(job, trials={})


def test_what_was_inherited_is_read_as_it_was_stored() -> None:
    job = inheriting().job
    assert job is not None
    again = job_from_state(job.job_id, job.last_seq, stored(job))
    assert again == replace(job, trials={})
    assert epochs_of(again.version).is_inherited
    assert [epoch_costs_on(one).is_inherited for one in again.version.knowledge.values()] == [True]
    assert not epochs_of(again.versions[1]).is_inherited


def test_an_event_with_an_inheritance_gives_the_state_that_was_decided() -> None:
    life = inheriting()
    [respecified] = life.happened(JobRespecified)
    assert respecified.inherited is not None
    assert event_from(*_parsed(respecified)) == respecified
    assert fold("job", [event_from(*_parsed(event)) for event in life.history]) == without_leases(life.folded())


def test_a_damaged_state_says_where() -> None:
    job = old_job().job
    assert job is not None
    with pytest.raises(MalformedMessage, match="stored state of job job: last_trial_number"):
        job_from_state("job", 1, {**stored(job), "last_trial_number": "many"})


def _parsed(event: Event) -> tuple[str, Any]:
    event_type, payload = event_payload(event)
    return event_type, json.loads(payload)
