"""Power profiles: a measured one is sent to all later trials of the same batch size on the same hardware kind.

Trials of other batch sizes, that were not measured, receive the one of the nearest that was.
"""

from dataclasses import replace

import pytest

from bso.domain import commands as do
from bso.domain.decide import needs
from bso.domain.hardware import HardwareKind
from bso.domain.replies import LeaseRenewed, NearestPowerProfile, PowerProfileRecorded
from bso.domain.trial import Outcome
from tests.unit.domain.builders import A100, V100, JobLife, expect


def profile(*limits_w: float) -> tuple[do.PowerMeasurement, ...]:
    """What was measured under these limits."""
    return tuple(do.PowerMeasurement(power_limit_w=w, average_power_w=w - 20, samples_per_s=w * 3) for w in limits_w)


@pytest.fixture
def life() -> JobLife:
    job = JobLife()
    job.register(batch_sizes=[64, 128], default_batch_size=64)
    return job


def report(life: JobLife, batch_size: int, hardware: HardwareKind, *limits_w: float) -> None:
    command = do.ReportPowerProfile(batch_size=batch_size, hardware=hardware, measurements=profile(*limits_w))
    expect(PowerProfileRecorded, life.send(command))


def test_a_trial_receives_the_profile_of_the_batch_size_chosen_for_it(life: JobLife) -> None:
    report(life, 64, A100, 400.0, 300.0)
    report(life, 128, A100, 400.0)
    assert life.begin("a").power_profile == profile(400.0, 300.0)
    assert life.begin("b", batch_size=128).power_profile == profile(400.0)
    assert life.begin("c", batch_size=256).power_profile == ()


def test_a_later_profile_takes_the_place_of_an_earlier_one(life: JobLife) -> None:
    report(life, 64, A100, 400.0, 300.0)
    report(life, 64, A100, 200.0)
    assert life.begin("a").power_profile == profile(200.0)


@pytest.mark.parametrize(
    "other",
    [V100, replace(A100, number_of_gpus=2, max_power_w=800.0), replace(A100, max_power_w=300.0)],
    ids=["another model", "more GPUs", "another power"],
)
def test_profiles_of_another_hardware_kind_are_not_used(life: JobLife, other: HardwareKind) -> None:
    report(life, 64, other, 250.0)
    assert life.begin("a").power_profile == ()
    assert life.begin("b", hardware=other, batch_size=64).power_profile == profile(250.0)


def test_a_resumption_receives_the_profile_and_a_plain_renewal_does_not(life: JobLife) -> None:
    trial = life.begin("a")
    report(life, 64, A100, 400.0)
    renewal = do.RenewLease(trial_number=trial.trial_number, trial_id=trial.trial_id)
    assert expect(LeaseRenewed, life.send(renewal)).power_profile == ()
    assert expect(LeaseRenewed, life.send(replace(renewal, is_resumption=True))).power_profile == profile(400.0)


def test_a_job_that_comes_back_after_its_deletion_has_no_profiles(life: JobLife) -> None:
    report(life, 64, A100, 400.0)
    life.send(do.DeleteJob())
    life.register(batch_sizes=[64, 128], default_batch_size=64)
    assert life.begin("a").power_profile == ()


def nearest(life: JobLife, batch_size: int, hardware: HardwareKind = A100) -> NearestPowerProfile | None:
    """What a trial of a batch size receives of another one."""
    begun = life.begin("nearest", batch_size=batch_size, hardware=hardware)
    assert begun.power_profile == ()
    return begun.nearest_power_profile


@pytest.mark.parametrize(
    ("batch_size", "counts"),
    [(8, 16), (31, 16), (33, 64), (63, 64), (65, 64), (1024, 512), (2000, 512)],
)
def test_a_trial_whose_batch_size_has_no_profile_receives_the_one_of_the_nearest(
    life: JobLife, batch_size: int, counts: int
) -> None:
    """By the ratio: 33 is nearer to 64 than to 16, though not by their difference."""
    for size in (64, 16, 512):
        report(life, size, A100, 100.0 + size)
    assert nearest(life, batch_size) == NearestPowerProfile(batch_size=counts, measurements=profile(100.0 + counts))


@pytest.mark.parametrize(("below", "own", "above"), [(16, 32, 64), (60, 90, 135), (3, 9, 27)])
def test_of_two_batch_sizes_as_near_the_smaller_one_counts(life: JobLife, below: int, own: int, above: int) -> None:
    for size in (above, below):
        report(life, size, A100, 100.0 + size)
    assert nearest(life, own) == NearestPowerProfile(batch_size=below, measurements=profile(100.0 + below))


def test_a_batch_size_with_a_profile_of_its_own_receives_no_other(life: JobLife) -> None:
    report(life, 64, A100, 400.0)
    report(life, 128, A100, 300.0)
    begun = life.begin("a")
    assert (begun.batch_size, begun.power_profile, begun.nearest_power_profile) == (64, profile(400.0), None)


def test_the_nearest_profile_is_of_the_same_hardware_kind(life: JobLife) -> None:
    report(life, 64, V100, 250.0)
    assert nearest(life, 128) is None
    report(life, 512, A100, 400.0)
    assert nearest(life, 128) == NearestPowerProfile(batch_size=512, measurements=profile(400.0))
    assert nearest(life, 128, V100) == NearestPowerProfile(batch_size=64, measurements=profile(250.0))


def test_the_nearest_profile_may_be_of_a_batch_size_that_does_not_fit_any_more_or_that_the_job_no_longer_names(
    life: JobLife,
) -> None:
    """It was measured all the same."""
    report(life, 128, A100, 400.0)
    life.finish(life.begin("a", batch_size=128), outcome=Outcome.INFEASIBLE)
    life.register(batch_sizes=[32, 64], default_batch_size=64)
    assert nearest(life, 64) == NearestPowerProfile(batch_size=128, measurements=profile(400.0))


def test_a_job_without_profiles_and_one_that_was_deleted_send_none(life: JobLife) -> None:
    assert nearest(life, 128) is None
    report(life, 64, A100, 400.0)
    life.send(do.DeleteJob())
    life.register(batch_sizes=[64, 128], default_batch_size=64)
    assert nearest(life, 128) is None


def test_a_resumption_receives_the_nearest_profile_and_a_plain_renewal_does_not(life: JobLife) -> None:
    trial = life.begin("a", batch_size=128)
    report(life, 64, A100, 400.0)
    renewal = do.RenewLease(trial_number=trial.trial_number, trial_id=trial.trial_id)
    assert expect(LeaseRenewed, life.send(renewal)).nearest_power_profile is None
    resumption = replace(renewal, is_resumption=True)
    of_64 = NearestPowerProfile(batch_size=64, measurements=profile(400.0))
    assert expect(LeaseRenewed, life.send(resumption)).nearest_power_profile == of_64
    report(life, 128, A100, 300.0)
    resumed = expect(LeaseRenewed, life.send(resumption))
    assert (resumed.power_profile, resumed.nearest_power_profile) == (profile(300.0), None)


def test_only_beginning_and_resuming_need_profiles_to_be_loaded(life: JobLife) -> None:
    trial = life.begin("a", hardware=V100)
    assert life.job is not None
    assert needs(life.job, do.BeginTrial(hardware=A100)).power_profiles is None, "nothing was measured yet"
    job = replace(life.job, has_power_profiles=True)
    renewal = do.RenewLease(trial_number=trial.trial_number, trial_id=trial.trial_id)
    kinds = {
        command: needs(job, command).power_profiles
        for command in (
            do.BeginTrial(hardware=A100),
            replace(renewal, is_resumption=True),
            replace(renewal, is_resumption=True, trial_number=99),
            renewal,
            life.reporting(trial, 1.0),
            do.DescribeJob(),
        )
    }
    assert list(kinds.values()) == [A100, V100, None, None, None, None]
