"""Power profiles: a measured one is sent to all later trials of the same batch size on the same hardware kind."""

from dataclasses import replace

import pytest

from bso.domain import commands as do
from bso.domain.decide import needs
from bso.domain.hardware import HardwareKind
from bso.domain.replies import LeaseRenewed, PowerProfileRecorded
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
