"""One training as the protocol sees it: report, heed the verdict, say how it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import SupportsFloat

from bso.domain.commands import Command, FinishTrial, PowerMeasurement, ReportEpoch, ReportPowerProfile
from bso.domain.replies import EpochJudged, Problem, Reply, TrialFinished
from bso.domain.trial import OUT_OF_MEMORY, EpochReport, Outcome, reason_code
from bso_client.errors import TrainFailed
from bso_client.failures import ending_of
from bso_client.meter import Consumption
from bso_client.outbox import Letter, Outbox
from bso_client.progress import Progress
from bso_client.training import Training, TrainingMeter
from bso_client.verdicts import judge_alone

logger = logging.getLogger("bso")

REPORT_TIMEOUT_S = 5.0
"""How long a training is held up for a judgement before it goes on without."""

_ONE_REPORT = frozenset({"invalid_report", "conflicting_report", "report_goes_backwards"})
"""Refusals of one report; any other one refuses the trial."""


class TrialRun(Training):
    """The life of one training in this process. What measures is synchronous, what talks is not."""

    def __init__(
        self,
        *,
        job_id: str,
        progress: Progress,
        meter: TrainingMeter,
        outbox: Outbox,
        samples_per_epoch: float | None = None,
        on_end: Callable[[Progress], None],
        report_timeout_s: float = REPORT_TIMEOUT_S,
    ) -> None:
        super().__init__(job_id=job_id, progress=progress, meter=meter, samples_per_epoch=samples_per_epoch)
        self._outbox = outbox
        self._on_end = on_end
        self._report_timeout_s = report_timeout_s
        self._is_end_announced = False
        self._owes_acknowledgement = False  # of a stop
        self._last: EpochReport | None = None

    def measure(
        self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None
    ) -> EpochReport | None:
        """Close the measuring window and make the report; None if the trial has ended with a model before.

        Raises TrainFailed if the batch size has failed meanwhile, and errors of use: nothing else.
        """
        number, progress_epochs = self.checked(metric, epoch=epoch, samples=samples)
        consumed = self.meter.stop()
        is_model = self.progress.spec.reached_target(number)
        if self.progress.has_ended and not (self._owes_acknowledgement and is_model):
            self._heed_end(number)
            return None
        return EpochReport(
            epoch=progress_epochs,
            time_s=consumed.time_s,
            energy_j=consumed.energy_j,
            metric=number,
            is_profiling=self.progress.is_profiling,
        )

    async def report(self, report: EpochReport, /) -> None:
        """Report an evaluation and obey the verdict, the optimizer's or, without it, the client's own.

        A model overrules a stop that came too late; the report is then recorded and not judged.
        """
        is_overruling = self._owes_acknowledgement
        if is_overruling and not self.progress.spec.reached_target(report.metric):
            self.acknowledge_stop()
            return
        if is_overruling:
            self._owes_acknowledgement = False
            self.progress.forget_end()
        is_known = self.progress.is_known(report.epoch)
        is_told = not (self.progress.is_refused or is_known)
        report = replace(report, is_profiling=report.is_profiling or self.progress.is_profiling)
        self.progress.is_profiling = report.is_profiling and not (is_told or is_known)
        report = self._counted(report)
        self.progress.take(report)
        self._last = report
        reply = await self._deliver_report(report, is_late=is_overruling) if is_told else None
        if not isinstance(reply, EpochJudged):
            self._decide_alone()
        self.acknowledge_stop()
        self._announce_end()

    def acknowledge_stop(self) -> None:
        """Acknowledge a stop, once: the optimizer may unlearn one that is not acknowledged.

        A stop that came late is acknowledged after the next evaluation: a model that is good by then is kept.
        """
        if self._owes_acknowledgement:
            self._owes_acknowledgement = False
            self._outbox.post(self._letter(self._finish_command(), lambda _reply: None))

    async def report_power_profile(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep what was measured under several power limits for the next trial with this batch size; some time."""
        self.progress.power_profile = tuple(measurements)
        command = ReportPowerProfile(
            batch_size=self.progress.batch_size,
            hardware=self.progress.hardware,
            measurements=self.progress.power_profile,
        )
        self._outbox.post(self._letter(lambda _letter: command, self._heed_profile, is_late=True))

    async def leave(self, error: BaseException | None) -> bool:
        """End the trial with its ``with`` block; returns whether the exception is dealt with."""
        self.has_left = True
        self.meter.stop()
        if self.progress.has_ended:
            self.acknowledge_stop()
            return isinstance(error, TrainFailed)
        if error is None:
            await self.finish(Outcome.NOT_CONVERGED, self._left_early())
            return False
        outcome, reason = ending_of(error)
        await self.finish(outcome, reason)
        return outcome is not Outcome.INTERRUPTED and self.progress.should_retry

    async def call_off(self, outcome: Outcome, reason: str) -> None:
        """End the trial, and the loop over trials with it; without effect if it has ended before."""
        if not self.progress.has_ended:
            self.is_called_off = True
            await self.finish(outcome, reason)

    async def finish(self, outcome: Outcome, reason: str, *, timeout_s: float | None = None) -> None:
        """Say how the training ended; without effect if it has ended before."""
        if self.progress.has_ended:
            self.acknowledge_stop()
            return
        consumed = self.meter.stop()
        self.progress.end(outcome, reason, should_retry=self.progress.may_retry_alone(outcome))
        letter = self._letter(self._finish_command(self._totals(outcome, consumed)), self._heed_finish)
        await self._outbox.deliver(letter, timeout_s=timeout_s or self._report_timeout_s)
        if reason_code(reason) == OUT_OF_MEMORY:
            self._warn_of_memory()
        self._announce_end()

    async def _deliver_report(self, report: EpochReport, *, is_late: bool) -> Reply | None:
        def command(letter: Letter) -> Command | None:
            identity = self._identity()
            if identity is None:
                return None
            return ReportEpoch(
                trial_number=identity[0],
                trial_id=identity[1],
                epoch=report.epoch,
                time_s=report.time_s,
                energy_j=report.energy_j,
                metric=report.metric,
                is_journalled=letter.is_late,
                is_profiling=report.is_profiling,
            )

        letter = self._letter(command, self._heed_report, is_late=is_late)
        if is_late:
            self._outbox.post(letter)
            return None
        return await self._outbox.deliver(letter, timeout_s=self._report_timeout_s)

    def _counted(self, report: EpochReport) -> EpochReport:
        """The report of a resumed training as it is counted: what it trains again is not counted twice."""
        resumption = self.progress.resumption
        if resumption is None:
            return report
        if resumption.knows(report.epoch):
            resumption.trained_again(report.time_s, report.energy_j)
        counted = resumption.counted(Consumption(time_s=report.time_s, energy_j=report.energy_j))
        return replace(report, time_s=counted.time_s, energy_j=counted.energy_j)

    def _totals(self, outcome: Outcome, consumed: Consumption) -> tuple[float | None, float | None]:
        """Time and energy to the very end where that tells something, else as last reported."""
        resumption = self.progress.resumption
        lies_behind = resumption is not None and self.progress.epoch < resumption.known.epoch
        if lies_behind or outcome not in (Outcome.INTERRUPTED, Outcome.INFEASIBLE):
            return None, None
        counted = consumed if resumption is None else resumption.counted(consumed)
        return counted.time_s, counted.energy_j

    def _finish_command(
        self, totals: tuple[float | None, float | None] = (None, None)
    ) -> Callable[[Letter], Command | None]:
        outcome, reason, bound = self.progress.outcome, self.progress.outcome_reason, self.progress.bound
        last = self._last
        assert outcome is not None

        def command(letter: Letter) -> Command | None:
            identity = self._identity()
            if identity is None:
                return None
            time_s, energy_j = totals
            if letter.is_late and time_s is None and last is not None:  # it may overtake reports that have to wait
                time_s, energy_j = last.time_s, last.energy_j
            return FinishTrial(
                trial_number=identity[0],
                trial_id=identity[1],
                outcome=outcome,
                reason=reason,
                time_s=time_s,
                energy_j=energy_j,
                bound=bound if letter.is_late else None,
                is_journalled=letter.is_late,
                may_resume=self.is_resumable,
            )

        return command

    def _letter(
        self, command: Callable[[Letter], Command | None], heed: Callable[[Reply], None], *, is_late: bool = False
    ) -> Letter:
        return Letter(job_id=self.job_id, command=command, heed=heed, is_late=is_late)

    def _identity(self) -> tuple[int, str] | None:
        number, trial_id = self.progress.trial_number, self.progress.trial_id
        return None if number is None or trial_id is None or self.progress.is_refused else (number, trial_id)

    def _heed_report(self, reply: Reply) -> None:
        if isinstance(reply, EpochJudged):
            had_ended = self.progress.has_ended
            self.progress.judged(reply)
            self._owes_acknowledgement |= self.progress.has_failed and not had_ended
            self._warn(reply.warnings)
        elif isinstance(reply, Problem):
            self.progress.is_refused = reply.type not in _ONE_REPORT
            extra = {"action": "report_refused", "problem": reply.type}
            logger.warning("%s: a report was refused: %s: %s", self._name, reply.title, reply.detail, extra=extra)

    def _heed_profile(self, reply: Reply) -> None:
        if isinstance(reply, Problem):
            extra = {"action": "power_profile_refused", "problem": reply.type}
            logger.warning(
                "%s: its power profile was refused: %s: %s", self._name, reply.title, reply.detail, extra=extra
            )

    def _heed_finish(self, reply: Reply) -> None:
        if isinstance(reply, TrialFinished):
            self.progress.should_retry = reply.should_retry
            self.progress.cost = reply.cost
            self._warn(reply.warnings)
        elif isinstance(reply, Problem):
            extra = {"action": "finish_refused", "problem": reply.type}
            logger.warning("%s: its end was refused: %s: %s", self._name, reply.title, reply.detail, extra=extra)

    def _decide_alone(self) -> None:
        if self.progress.has_ended:
            return
        verdict = judge_alone(self.progress)
        if verdict.outcome is None:
            return
        may_retry = self.progress.may_retry_alone(verdict.outcome)
        self.progress.end(verdict.outcome, verdict.reason, should_retry=may_retry)
        self._outbox.post(self._letter(self._finish_command(), self._heed_finish, is_late=True))

    def _warn(self, sentences: Sequence[str]) -> None:
        for words in sentences:
            logger.warning("%s", words, extra={"action": "optimizer_warning", "job_id": self.job_id})

    def _warn_of_memory(self) -> None:
        what_next = "going on with a smaller one" if self.progress.should_retry else "no attempt is left"
        logger.warning(
            "batch size %d does not fit in memory; %s",
            self.progress.batch_size,
            what_next,
            extra={"action": "out_of_memory", "trial_number": self.progress.trial_number, "job_id": self.job_id},
        )

    def _announce_end(self) -> None:
        if not self.progress.has_ended or self._is_end_announced:
            return
        self._is_end_announced = True
        logger.info(
            "%s ended: %s: %s",
            self._name,
            self.progress.outcome.value if self.progress.outcome else "",
            self.progress.outcome_reason,
            extra={"action": "trial_ended", "trial_number": self.progress.trial_number, "job_id": self.job_id},
        )
        self._on_end(self.progress)
