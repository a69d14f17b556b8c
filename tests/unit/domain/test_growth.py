"""What a job may know is limited: its whole state is written whenever something in it changes."""

from dataclasses import replace

import pytest

from bso.domain import commands as do
from bso.domain.decide.growth import MOST_KNOWN
from bso.domain.decide.operations import MOST_PROFILED
from bso.domain.hardware import HardwareKind
from bso.domain.replies import PowerProfileRecorded, Problem, Registered
from tests.unit.domain.builders import A100, V100, JobLife, expect, problem_of

MEASUREMENTS = (do.PowerMeasurement(power_limit_w=300.0, average_power_w=250.0, samples_per_s=10.0),)


@pytest.fixture
def life() -> JobLife:
    """A job with one version less than it may have."""
    life = JobLife()
    life.register(policy="pruning_thompson", inherit=False)
    for number in range(2, MOST_KNOWN):
        life.register(version=f"v{number}", inherit=False)
    return life


def test_a_job_has_so_many_versions_and_no_more(life: JobLife) -> None:
    assert life.register(version="the last one").version_number == MOST_KNOWN
    problem = problem_of(life.send(do.RegisterJob(spec={"version": "one more"})))
    assert problem.type == "too_many_versions"
    assert problem.detail == (
        "version differs: job job has 500 versions, counted for every hardware kind of each, and may have 500, this "
        "would add 1: register another job (like='job' hands on what was learnt), or delete this one"
    )
    assert life.register(version="v2").version_number == 2, "it may go back"
    assert expect(Registered, life.send(do.RegisterJob(spec={"beta_knob": 3.0}))).version_number == 2


def test_it_warns_long_before() -> None:
    life = JobLife()
    life.register(policy="pruning_thompson", inherit=False)
    soon = [
        any("of the 500" in one for one in life.register(version=f"v{n}", inherit=False).warnings) for n in range(450)
    ]
    assert soon.index(True) == 398, "version 400"
    assert all(soon[398:])


def test_each_hardware_kind_of_a_version_counts(life: JobLife) -> None:
    life.begin("a", hardware=A100)
    life.begin("b", hardware=V100)
    other = do.BeginTrial(hardware=replace(A100, gpu_model="H100"))
    problem = problem_of(life.send(other))
    assert problem.type == "too_many_hardware_kinds"
    assert problem.detail.startswith(
        "1 x H100 (400 W, energy nvml_counter) is new to the job: job job has 500 versions"
    )
    assert life.begin("c", hardware=V100).trial_number == 3, "a kind that is known may go on"
    assert problem_of(life.send(do.RegisterJob(spec={"version": "one more"}))).type == "too_many_versions"


def test_what_a_version_would_inherit_counts() -> None:
    life = JobLife()
    life.register(policy="curve")
    kinds = [replace(A100, gpu_model=f"kind {number}") for number in range(MOST_KNOWN // 2)]
    for number, kind in enumerate(kinds):
        life.converge(life.begin(f"night-{number}", hardware=kind), 100.0)
    life.register(version="v2")
    problem = problem_of(life.send(do.RegisterJob(spec={"version": "v3"})))
    assert f"this would add {MOST_KNOWN // 2}" in problem.detail
    assert problem.type == "too_many_versions"


def test_a_deleted_job_begins_anew(life: JobLife) -> None:
    life.register(version="the last one")
    life.send(do.DeleteJob())
    life.register(batch_sizes=[32, 64], default_batch_size=64)
    assert life.register(version="another").version_number == MOST_KNOWN + 2


def test_so_many_batch_sizes_have_a_power_profile_on_a_hardware_kind_and_no_more() -> None:
    life = JobLife()
    life.register()

    def profile(batch_size: int, hardware: HardwareKind = A100) -> Problem | None:
        command = do.ReportPowerProfile(batch_size=batch_size, hardware=hardware, measurements=MEASUREMENTS)
        reply = life.send(command)
        assert isinstance(reply, PowerProfileRecorded | Problem)
        return reply if isinstance(reply, Problem) else None

    assert [profile(size) for size in range(1, MOST_PROFILED + 1)] == [None] * MOST_PROFILED
    problem = profile(MOST_PROFILED + 1)
    assert problem is not None
    assert problem.type == "too_many_power_profiles"
    assert problem.detail == (
        "job job has power profiles of 200 batch sizes on this hardware kind, and may have 200, got one of batch size "
        "201: register another job, or delete this one"
    )
    assert profile(1) is None, "a later profile takes the place of an earlier one"
    assert profile(MOST_PROFILED + 1, V100) is None
