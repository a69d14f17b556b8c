"""Power profiles, profiled epochs and learning rates: what every store must keep of them."""

from dataclasses import replace

from bso.domain.commands import (
    BeginTrial,
    DeleteJob,
    PowerMeasurement,
    RenewLease,
    ReportPowerProfile,
    Request,
)
from bso.domain.hardware import HardwareKind
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import EpochJudged, LeaseRenewed, NearestPowerProfile, Reply, TrialBegun
from bso.domain.trial import Profiled
from bso.service.engine import Engine
from bso.service.ports import Store
from tests.contract.storage.conftest import OpenStore
from tests.contract.storage.job_requests import (
    HARDWARE,
    JOB,
    ask,
    assert_log_equals_tables,
    begin,
    beginning,
    registration,
    report,
    request,
)

OTHER = replace(HARDWARE, number_of_gpus=2, max_power_w=600.0)


def measured(*limits_w: float) -> tuple[PowerMeasurement, ...]:
    """What was measured under these limits."""
    return tuple(PowerMeasurement(power_limit_w=w, average_power_w=w - 10, samples_per_s=1e3 / 3) for w in limits_w)


def profile(*limits_w: float, batch_size: int = 64, hardware: HardwareKind = HARDWARE, job_id: str = JOB) -> Request:
    """A profile with these power limits."""
    command = ReportPowerProfile(batch_size=batch_size, hardware=hardware, measurements=measured(*limits_w))
    return request(command, job_id=job_id)


def profile_in(reply: Reply) -> tuple[PowerMeasurement, ...]:
    """What a trial was told."""
    assert isinstance(reply, TrialBegun | LeaseRenewed), reply
    return reply.power_profile


async def test_a_trial_is_told_what_an_earlier_one_measured(open_another: OpenStore) -> None:
    first, second = Engine(open_another()), Engine(open_another())
    await ask(first, registration(), registration("other"))
    await ask(first, profile(300.0, 200.0), profile(100.0, batch_size=128), profile(250.0, hardware=OTHER))
    await ask(first, profile(150.0, job_id="other"))
    assert (await begin(second)).power_profile == measured(300.0, 200.0)
    assert (await begin(second, batch_size=128)).power_profile == measured(100.0)
    assert (await begin(second, batch_size=32)).power_profile == ()
    assert (await begin(second, hardware=OTHER)).power_profile == measured(250.0)
    assert (await begin(second, hardware=replace(OTHER, gpu_model="A41"))).power_profile == ()
    answers = await ask(second, beginning("other"), beginning())
    assert [profile_in(answer.reply) for answer in answers] == [measured(150.0), measured(300.0, 200.0)]


async def test_a_trial_without_a_profile_of_its_own_receives_the_one_of_the_nearest_batch_size(
    open_another: OpenStore,
) -> None:
    first, second = Engine(open_another()), Engine(open_another())
    await ask(first, registration())
    await ask(first, profile(300.0, 200.0), profile(100.0, batch_size=512), profile(250.0, hardware=OTHER))
    of_64 = NearestPowerProfile(batch_size=64, measurements=measured(300.0, 200.0))
    of_512 = NearestPowerProfile(batch_size=512, measurements=measured(100.0))
    assert (await begin(second, batch_size=128)).nearest_power_profile == of_64
    answers = await ask(second, beginning(batch_size=256), profile(50.0, batch_size=256), beginning(batch_size=256))
    begun = [answer.reply for answer in answers if isinstance(answer.reply, TrialBegun)]
    assert [one.nearest_power_profile for one in begun] == [of_512, None]
    assert [one.power_profile for one in begun] == [(), measured(50.0)]
    other = await begin(second, batch_size=256, hardware=OTHER)
    assert other.nearest_power_profile == NearestPowerProfile(batch_size=64, measurements=measured(250.0))


async def test_a_later_profile_takes_the_place_of_an_earlier_one(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    await ask(engine, profile(300.0, 200.0))
    await ask(engine, profile(175.0))
    assert (await begin(engine)).power_profile == measured(175.0)


async def test_what_one_batch_says_is_told_to_who_begins_later_in_it(store: Store) -> None:
    engine = Engine(store)
    registered = registration(policy="pruning_thompson")  # by curve the later ones would begin beside the default
    batch = [registered, beginning(), profile(300.0), beginning(), profile(200.0), beginning()]
    answers = await ask(engine, *batch)
    assert [profile_in(answers[index].reply) for index in (1, 3, 5)] == [(), measured(300.0), measured(200.0)]
    assert (await begin(engine)).power_profile == measured(200.0)


async def test_a_beginning_sent_again_is_told_what_it_was_told_first(open_another: OpenStore) -> None:
    first, second = Engine(open_another()), Engine(open_another())
    await ask(first, registration())
    await ask(first, profile(300.0))
    once = beginning()
    [told] = await ask(first, once)
    await ask(first, profile(200.0))
    [again] = await ask(second, once)
    assert (again.is_repeat, again.reply) == (True, told.reply)
    assert profile_in(again.reply) == measured(300.0)


async def test_a_resumed_training_is_told_its_profile(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    renewal = RenewLease(trial_number=trial.trial_number, trial_id=trial.trial_id, is_resumption=True)
    before, _, after = await ask(engine, request(renewal), profile(300.0), request(renewal))
    assert (profile_in(before.reply), profile_in(after.reply)) == ((), measured(300.0))
    [again] = await ask(engine, request(renewal))
    assert profile_in(again.reply) == measured(300.0)
    [plain] = await ask(engine, request(replace(renewal, is_resumption=False)))
    assert profile_in(plain.reply) == ()


async def test_the_profiles_of_a_job_go_with_it(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration(), registration("other"))
    await ask(engine, profile(300.0), profile(300.0, job_id="other"))
    await ask(engine, profile(200.0, batch_size=128), request(DeleteJob()), registration(), profile(100.0))
    assert [kept.measurements for kept in await store.power_profiles(JOB)] == [measured(100.0)]
    assert (await begin(engine, batch_size=128)).power_profile == ()
    assert (await begin(engine)).power_profile == measured(100.0)
    assert (await begin(engine, "other")).power_profile == measured(300.0)
    await ask(engine, request(DeleteJob()))
    assert await store.power_profiles(JOB) == []
    await assert_log_equals_tables(store)


async def test_marks_of_profiled_epochs_are_kept_between_batches(open_another: OpenStore) -> None:
    first, second = Engine(open_another()), Engine(open_another())
    await ask(first, registration(eta_knob=1.0))
    trial = await begin(first)
    await ask(first, report(trial, 1, energy_j=1000.0, time_s=10.0))
    [marked] = await ask(second, report(trial, 2, energy_j=9000.0, time_s=60.0, is_profiling=True))
    [plain] = await ask(first, report(trial, 3, energy_j=10400.0, time_s=70.0))
    assert isinstance(marked.reply, EpochJudged)
    assert isinstance(plain.reply, EpochJudged)
    assert (marked.reply.cost, plain.reply.cost) == (2000.0, 3600.0)
    store = open_another()
    [row] = await store.trials(JOB)
    assert row.profiled == Profiled(epochs=1.0, time_s=50.0, energy_j=8000.0)
    assert (row.time_s, row.energy_j, row.cost) == (70.0, 10400.0, 3600.0)
    await assert_log_equals_tables(store)


async def test_the_learning_rate_is_kept_with_trial_and_version(open_another: OpenStore) -> None:
    first, second = Engine(open_another()), Engine(open_another())
    await ask(first, registration())
    rate = LearningRate(0.1 + 0.2, reference_batch_size=96, rule="square_root")
    assert (await begin(first, learning_rate=rate)).warnings == ()
    assert (await begin(second, learning_rate=rate)).warnings == ()
    assert len((await begin(second, learning_rate=replace(rate, value=0.1))).warnings) == 1
    assert isinstance((await ask(first, request(BeginTrial(hardware=HARDWARE))))[0].reply, TrialBegun)
    store = open_another()
    assert [row.learning_rate for row in await store.trials(JOB)] == [rate, rate, replace(rate, value=0.1), None]
    await assert_log_equals_tables(store)
