"""Values as the command line meets them."""

from datetime import UTC, datetime

from bso.domain import events as e
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.inheritance import Inheritance
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import ArmDescription, JobDescription, KindDescription
from bso.domain.rights import Right
from bso.domain.trial import Outcome, Trial, TrialState
from bso.policies.curve.cost_records import EpochCostKnowledge, EpochCostRecord
from bso.policies.curve.epoch_records import EpochKnowledge, EpochRecord
from bso.policies.curve.memory import NAME as CURVE
from bso.policies.pruning_thompson.memory import RoundEnded, Stage, StageEntered

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
HARDWARE = HardwareKind(gpu_model="H200", max_power_w=700.0, energy_method=EnergyMethod.MONITOR)
SPEC = JobSpec(batch_sizes=(8, 16, 32), default_batch_size=32, target_metric=0.9, policy="pruning_thompson")


def trial(
    number: int, *, batch_size: int = 16, outcome: Outcome | None = Outcome.CONVERGED, cost: float = 5.0
) -> Trial:
    """A trial of the sample job, ended unless ``outcome`` is None."""
    return Trial(
        trial_number=number,
        trial_id=f"00000000-0000-0000-0000-{number:012d}",
        version_number=1,
        recurrence_id=f"night-{number}",
        attempt=1,
        batch_size=batch_size,
        hardware=HARDWARE,
        reason="exploring",
        is_unbounded=False,
        started_at=NOW,
        state=TrialState.RUNNING if outcome is None else TrialState.ENDED,
        epoch=3.0,
        time_s=cost / 10,
        energy_j=cost,
        metric=0.9,
        reports=3,
        cost=cost,
        outcome=outcome,
    )


def arm(batch_size: int, status: str = "arm", *, mean: float | None = 5.0) -> ArmDescription:
    """A batch size as the optimizer describes it."""
    return ArmDescription(
        batch_size=batch_size,
        status=status,
        trials_with_cost=0 if mean is None else 2,
        convergences=0 if mean is None else 2,
        mean_cost=mean,
        posterior_mean=mean,
        posterior_std=None if mean is None else 0.25,
    )


def description(*arms: ArmDescription, best: int | None = 16) -> JobDescription:
    """A job as the optimizer describes it."""
    kind = KindDescription(
        hardware=HARDWARE.describe(),
        hardware_key=HARDWARE.key,
        stage=Stage.MAB.value,
        round_number=2,
        reference=5.0,
        best_batch_size=best,
        needs_attention=False,
        change_points=0,
        arms=arms or (arm(8), arm(16), arm(32)),
        about_costs="what a training should cost",
    )
    return JobDescription(
        job_id="job",
        owner=None,
        version_number=1,
        spec=SPEC,
        trials=3,
        recurrences=3,
        open_recurrences=(),
        kinds=(kind,),
        active_trials=(),
    )


INHERITED = Inheritance(
    source="version 1",
    batch_sizes=(8, 16),
    memories={CURVE: EpochKnowledge(records={16: EpochRecord()}, is_inherited=True)},
    knowledge={
        HARDWARE.key: Knowledge(hardware=HARDWARE, memories={CURVE: EpochCostKnowledge(records={8: EpochCostRecord()})})
    },
)
EVENTS: tuple[e.Event | RoundEnded | StageEntered, ...] = (
    e.JobRegistered(version_number=1, spec=SPEC, seed=1, owner=None),
    e.JobRespecified(version_number=2, spec=SPEC, seed=1, inherited=INHERITED),
    e.RecurrenceOpened(recurrence_id="night-1", recurrence_number=1),
    e.TrialStarted(
        trial_number=1,
        trial_id="t",
        version_number=1,
        recurrence_id="night-1",
        attempt=1,
        batch_size=16,
        hardware=HARDWARE,
        reason="exploring 16",
        is_unbounded=False,
        bound=12.0,
        started_at=NOW,
        learning_rate=LearningRate(0.1, reference_batch_size=32),
    ),
    e.EpochReported(
        trial_number=1,
        epoch=1.0,
        time_s=2.0,
        energy_j=None,
        metric=float("nan"),
        cost=3.0,
        bound=None,
        is_profiling=True,
    ),
    e.JobGranted(login="bob", right=Right.TRAIN),
    e.JobGiven(owner="carol"),
    e.TrialSuspended(trial_number=1),
    e.TrialResumed(trial_number=1),
    e.TrialEnded(
        trial_number=1,
        outcome=Outcome.COST_EXCEEDED,
        reason="the cost 14 J is above the bound 12 J",
        cost=14.0,
        time_s=2.0,
        energy_j=3.0,
        bound=12.0,
        is_over_bound=False,
        is_failure=True,
        learnt_cost=14.0,
        ended_at=NOW,
    ),
    e.LateResult(
        trial_number=1,
        outcome=Outcome.CONVERGED,
        reason="it reached the target after all",
        cost=14.0,
        time_s=2.0,
        energy_j=3.0,
        bound=None,
        is_over_bound=False,
        is_failure=False,
        learnt_cost=14.0,
    ),
    e.StopAcknowledged(trial_number=1),
    e.StopWithdrawn(trial_number=1),
    e.ChangePoint(version_number=1, hardware_key="k", trial_number=1, cost=20.0, old_reference=5.0),
    RoundEnded(
        version_number=1,
        hardware_key="k",
        round_number=1,
        survivors=(8, 16),
        pruned=(32,),
        next_default_batch_size=8,
        recurrence_id="night-1",
    ),
    StageEntered(version_number=1, hardware_key="k", stage=Stage.MAB, batch_sizes=(8, 16)),
    e.AttentionNeeded(version_number=1, hardware_key="k", reason="nothing converged three times"),
    e.RecurrenceEnded(recurrence_id="night-1", has_model=True, trial_number=1, reason="it converged"),
    e.BatchSizeAllowed(batch_size=32, hardware_keys=("k",)),
    e.PowerProfiled(batch_size=32, hardware=HARDWARE, measurements=()),
    e.EpochCostsProbed(
        trial_number=1,
        version_number=1,
        hardware_key="k",
        batch_size=16,
        month="2026-11",
        probes=(e.ProbedEpochCost(batch_size=32, cost=2.0, ln_cost=0.7, variance=0.01),),
        out_of_memory=(64,),
        time_s=1.5,
        energy_j=3.0,
    ),
    e.JobDeleted(),
    e.JobSnapshotted(state={}),
)
"""One event of each type."""
