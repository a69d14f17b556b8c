"""Properties that hold whatever is sent: a job under random commands, decided by one process and by stateless ones."""

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bso.domain import commands as do
from bso.domain.decide import Rules
from bso.domain.events import EpochReported, LateResult, TrialEnded, TrialStarted
from bso.domain.evolve import evolve
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job
from bso.domain.learning_rate import LearningRate
from bso.domain.trial import TRANSITIONS, Outcome, Trial, TrialState
from bso.schema.codec import decode_command, decode_reply, encode_command, encode_reply
from tests.unit.domain.builders import JobLife, as_json, command_id, nonfinite_numbers, searching, without_leases
from tests.unit.domain.commands_at_random import good_specs, kinds, numbers, odd_commands, outcomes, reasons

MAY_BE_NONFINITE = (".metric",)


class RandomLife(RuleBasedStateMachine):
    """Sends the same random commands to a job that stays in memory and to one that is stored in between."""

    def __init__(self) -> None:
        super().__init__()
        rules = Rules(lease_s=600.0, resume_window_s=3600.0)
        self.life = JobLife(rules=rules)
        self.twin = JobLife(rules=rules, is_stateless=True)
        self.folded = Job(job_id="job")
        self.seen = 0

    def send(self, command: do.Command) -> None:
        """Decide in both lives, compare, and go on folding."""
        before = {number: row.state for number, row in self.life.rows.items()}
        reply = self.life.send(command)
        assert as_json(self.twin.send(command)) == as_json(reply)
        new = self.life.history[self.seen :]
        assert as_json(self.twin.history[self.seen :]) == as_json(new)
        self.seen = len(self.life.history)
        for event in new:
            self.folded = evolve(self.folded, event)
            assert all(place.endswith(MAY_BE_NONFINITE) for place in nonfinite_numbers(event)), event
        self.check_states(before)
        assert as_json(decode_reply(encode_reply(reply, command_id=command_id(1), job_id="job"))) == as_json(reply)

    def check_states(self, before: dict[int, TrialState]) -> None:
        for number, row in self.life.rows.items():
            was = before.get(number, TrialState.RUNNING)
            assert row.state is was or (was, row.state) in TRANSITIONS

    @initialize(spec=good_specs())
    def register(self, spec: dict[str, Any]) -> None:
        self.send(do.RegisterJob(spec={"mab_seed": 7, **spec}))

    @rule(spec=good_specs())
    def respecify(self, spec: dict[str, Any]) -> None:
        self.send(do.RegisterJob(spec=spec))

    @rule(
        hardware=kinds,
        recurrence=st.none() | st.sampled_from(("a", "b", "recurrence-2", "recurrence-3")),
        size=st.none() | st.none() | st.none() | st.sampled_from((8, 16, 32, 1000)),
        rate=st.none() | st.sampled_from((LearningRate(0.1, reference_batch_size=32),)),
    )
    def begin(
        self, hardware: HardwareKind, recurrence: str | None, size: int | None, rate: LearningRate | None
    ) -> None:
        self.send(do.BeginTrial(hardware=hardware, recurrence_id=recurrence, batch_size=size, learning_rate=rate))

    @rule(hardware=kinds, size=st.sampled_from((8, 16, 32, 64, 128)), watts=st.sampled_from((100.0, 200.0)))
    def profile(self, hardware: HardwareKind, size: int, watts: float) -> None:
        measured = do.PowerMeasurement(power_limit_w=watts, average_power_w=watts / 2, samples_per_s=10.0)
        self.send(do.ReportPowerProfile(batch_size=size, hardware=hardware, measurements=(measured,)))

    @rule(hardware=kinds, number=st.integers(1, 40))
    def begin_instead(self, hardware: HardwareKind, number: int) -> None:
        self.send(do.BeginTrial(hardware=hardware, batch_size=16, replaces=command_id(number)))

    def a_trial(self, data: st.DataObject) -> Trial:
        active = [number for number, row in self.life.rows.items() if row.is_active]
        choose_active = active and data.draw(st.integers(0, 4)) > 0
        return self.life.rows[data.draw(st.sampled_from(active if choose_active else sorted(self.life.rows)))]

    @precondition(lambda self: self.life.rows)
    @rule(
        data=st.data(),
        metric=st.sampled_from((0.0, 0.0, 0.55, 1.0, float("nan"), float("inf"))),
        more=st.sampled_from((0.0, 1.0, 30.0, 100.0, 1000.0)),
        step=st.sampled_from((1.0, 1.0, 1.0, 0.0, -1.0, 0.25)),
        is_measured=st.sampled_from((True, True, True, False)),
        is_journalled=st.sampled_from((False, False, False, True)),
        is_profiling=st.sampled_from((False, False, True)),
    )
    def report(
        self,
        *,
        data: st.DataObject,
        metric: float,
        more: float,
        step: float,
        is_measured: bool,
        is_journalled: bool,
        is_profiling: bool,
    ) -> None:
        row = self.a_trial(data)
        self.send(
            do.ReportEpoch(
                trial_number=row.trial_number,
                trial_id=row.trial_id,
                epoch=row.epoch + step,
                time_s=row.time_s + more / row.hardware.max_power_w,
                energy_j=row.energy_j + more if is_measured else None,
                metric=metric,
                is_journalled=is_journalled,
                is_profiling=is_profiling,
            )
        )

    @precondition(lambda self: self.life.rows)
    @rule(
        data=st.data(),
        outcome=outcomes,
        reason=reasons,
        may_resume=st.booleans(),
        is_journalled=st.sampled_from((False, False, False, True)),
        bound=st.none() | numbers,
    )
    def finish(
        self,
        *,
        data: st.DataObject,
        outcome: Outcome,
        reason: str,
        may_resume: bool,
        is_journalled: bool,
        bound: float | None,
    ) -> None:
        row = self.a_trial(data)
        self.send(
            do.FinishTrial(
                trial_number=row.trial_number,
                trial_id=row.trial_id,
                outcome=outcome,
                reason=reason,
                may_resume=may_resume,
                is_journalled=is_journalled,
                bound=bound,
            )
        )

    @precondition(lambda self: self.life.rows)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        row = self.a_trial(data)
        is_resumption = data.draw(st.booleans())
        renewal = do.RenewLease(trial_number=row.trial_number, trial_id=row.trial_id, is_resumption=is_resumption)
        self.send(renewal)

    @precondition(lambda self: self.life.rows)
    @rule(data=st.data(), is_early=st.booleans())
    def expire(self, data: st.DataObject, is_early: bool) -> None:
        row = self.a_trial(data)
        lease = row.lease_expires_at or self.life.now
        if not is_early:
            self.life.now = self.twin.now = max(self.life.now, lease)
        self.send(do.ExpireLease(trial_number=row.trial_number, trial_id=row.trial_id, lease_expires_at=lease))

    @rule(size=st.sampled_from((8, 16, 32, 64, 128)))
    def allow(self, size: int) -> None:
        self.send(do.AllowBatchSize(batch_size=size))

    @rule(is_sure=st.sampled_from((True, False, False, False)))
    def delete(self, is_sure: bool) -> None:
        if is_sure:
            self.send(do.DeleteJob())

    @rule()
    def describe(self) -> None:
        self.send(do.DescribeJob())

    @rule(command=odd_commands)
    def send_garbage(self, command: do.Command) -> None:
        request = do.Request(command_id=command_id(0), job_id="job", command=command)
        decoded = decode_command(encode_command(request))
        assert as_json(decoded.command) == as_json(command)
        self.send(decoded.command)

    @invariant()
    def folding_the_events_gives_the_state(self) -> None:
        if self.life.job is None:
            return
        decided = without_leases(self.life.job.without_ended_trials())
        assert as_json(decided) == as_json(without_leases(self.folded.without_ended_trials()))
        rows = {number: replace(row, lease_expires_at=None) for number, row in self.life.rows.items()}
        assert as_json(rows) == as_json({n: replace(t, lease_expires_at=None) for n, t in self.folded.trials.items()})

    def teardown(self) -> None:
        assert as_json(self.life.folded()) == as_json(self.folded)

    @invariant()
    def trial_numbers_are_dense_and_unique(self) -> None:
        started = self.life.happened(TrialStarted)
        assert [event.trial_number for event in started] == list(range(1, len(started) + 1))
        assert len({event.trial_id for event in started}) == len(started)

    @invariant()
    def a_trial_ends_once(self) -> None:
        ended = Counter(event.trial_number for event in self.life.happened(TrialEnded))
        late = Counter(event.trial_number for event in self.life.happened(LateResult))
        assert max(ended.values(), default=0) <= 1
        assert max(late.values(), default=0) <= 1
        assert all(ended[number] for number in late)

    @invariant()
    def the_state_holds_no_number_that_a_database_refuses(self) -> None:
        if self.life.job is not None:
            stored = replace(self.life.job, trials={})
            assert not nonfinite_numbers(stored)

    @invariant()
    def each_epoch_of_a_trial_is_recorded_once(self) -> None:
        epochs = Counter((event.trial_number, event.epoch) for event in self.life.happened(EpochReported))
        assert max(epochs.values(), default=0) <= 1


TestRandomLives = RandomLife.TestCase
TestRandomLives.settings = searching(50, stateful_step_count=40)
