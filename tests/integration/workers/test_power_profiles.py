"""A power profile on its way through RabbitMQ, a worker and the database to the next training, and its worker."""

from bso.domain.commands import BeginTrial, PowerMeasurement, ReportEpoch, ReportPowerProfile
from bso.domain.hardware import HardwareKind
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import EpochJudged, NearestPowerProfile, PowerProfileRecorded, TrialBegun
from bso.storage import SqlStore
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.recurrences import HARDWARE, Queue, register

JOB = "profiled"
PROFILE = tuple(
    PowerMeasurement(power_limit_w=watts, average_power_w=watts - 15.0, samples_per_s=watts * 4.2)
    for watts in (300.0, 250.0, 200.0)
)


async def test_a_profile_reaches_trainings_of_other_workers_and_its_epoch_distorts_no_cost(
    store: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    first = start_worker()
    first.ready()
    await register(ask, JOB)
    rate = LearningRate(0.1, reference_batch_size=256)
    trial = await ask(JOB, BeginTrial(hardware=HARDWARE, recurrence_id="monday", learning_rate=rate))
    assert isinstance(trial, TrialBegun)
    assert trial.power_profile == ()
    costs = [await cost_of_report(ask, trial, *report) for report in ((1, 10.0, False), (2, 95.0, True))]
    assert costs == [costs[0], 2 * costs[0]]
    profile = ReportPowerProfile(batch_size=trial.batch_size, hardware=HARDWARE, measurements=PROFILE)
    assert isinstance(await ask(JOB, profile), PowerProfileRecorded)

    first.kill()
    start_worker().ready()
    other_kind = HardwareKind(gpu_model="A41", max_power_w=300.0, energy_method=HARDWARE.energy_method)
    begun = [
        await ask(JOB, BeginTrial(hardware=kind, recurrence_id="tuesday", batch_size=trial.batch_size))
        for kind in (HARDWARE, other_kind)
    ]
    assert [one.power_profile for one in begun if isinstance(one, TrialBegun)] == [PROFILE, ()]
    another_size = await ask(JOB, BeginTrial(hardware=HARDWARE, recurrence_id="wednesday", batch_size=1000))
    assert isinstance(another_size, TrialBegun)
    of_its_own = NearestPowerProfile(batch_size=trial.batch_size, measurements=PROFILE)
    assert (another_size.power_profile, another_size.nearest_power_profile) == ((), of_its_own)
    assert (await cost_of_report(ask, trial, 3, 105.0, False)) == 3 * costs[0], "another worker goes on adding"
    [row, *_] = await store.trials(JOB)
    assert (row.learning_rate, row.time_s, row.profiled.time_s) == (rate, 105.0, 85.0)


async def cost_of_report(
    ask: Queue,
    trial: TrialBegun,
    epoch: int,
    time_s: float,
    is_profiling: bool,
) -> float:
    """The cost after a report whose energy follows its time."""
    judged = await ask(
        JOB,
        ReportEpoch(
            trial_number=trial.trial_number,
            trial_id=trial.trial_id,
            epoch=float(epoch),
            time_s=time_s,
            energy_j=100.0 * time_s,
            metric=0.1,
            is_profiling=is_profiling,
        ),
    )
    assert isinstance(judged, EpochJudged)
    return judged.cost
