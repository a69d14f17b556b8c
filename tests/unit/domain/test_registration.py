"""Registering, versions, conflicts and changes of the specification."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bso.domain import commands as do
from bso.domain.commands import OnConflict
from bso.domain.decide import Rules
from bso.domain.events import JobRegistered, JobRespecified, PowerProfiled
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import InvalidSpec, JobSpec, resolve_spec
from bso.domain.policies import PolicyMissing
from bso.domain.replies import AllowedAgain, JobDescription, PowerProfileRecorded, Registered
from bso.domain.trial import Outcome
from tests.fakes.policies import installed
from tests.unit.domain.builders import A100, V100, JobLife, expect, problem_of
from tests.unit.policies import broken_policies

GOOD = {"batch_sizes": [32, 64], "default_batch_size": 64}


def registered(**spec: Any) -> JobLife:
    life = JobLife()
    life.register(**spec)
    return life


def test_defaults_are_filled_in_at_the_first_registration_and_recorded() -> None:
    (event,) = registered(**GOOD, mab_seed=None).happened(JobRegistered)
    assert event.spec == JobSpec(batch_sizes=(32, 64), default_batch_size=64, policy="curve")
    assert 0 <= event.seed < 2**31


def test_a_job_of_another_default_policy_keeps_it_when_it_is_registered_again_in_silence() -> None:
    life = registered(policy="pruning_thompson")
    before = len(life.history)
    reply = life.register()
    assert (reply.spec.policy, reply.is_new, reply.warnings) == ("pruning_thompson", False, ())
    assert len(life.history) == before
    assert life.register(beta_knob=3.0).spec.policy == "pruning_thompson"
    assert life.register(version="v2").spec.policy == "pruning_thompson", "a new version goes on as the job did"
    assert life.register(version="").spec.policy == "pruning_thompson"
    assert {event.spec.policy for event in life.happened(JobRespecified)} == {"pruning_thompson"}


def test_a_policy_is_changed_and_changed_back_with_one_word() -> None:
    life = registered()
    life.converge(life.begin("a"), 10.0)
    noted = [life.register(policy=policy) for policy in ("pruning_thompson", "pruning_thompson", "curve")]
    assert [(reply.spec.policy, reply.version_number, reply.is_new) for reply in noted] == [
        ("pruning_thompson", 1, False),
        ("pruning_thompson", 1, False),
        ("curve", 1, False),
    ]
    assert [event.spec.policy for event in life.happened(JobRespecified)] == ["pruning_thompson", "curve"]
    assert life.known().arm(64).costs.count == 1, "what was learnt stays"


def test_a_job_that_was_deleted_comes_back_as_a_new_one_with_the_default_policy() -> None:
    life = registered(policy="pruning_thompson")
    life.send(do.DeleteJob())
    assert life.register(batch_sizes=[32, 64], default_batch_size=64).spec.policy == "curve"


def test_a_seed_is_drawn_and_stays() -> None:
    life = JobLife()
    life.send(do.RegisterJob(spec=GOOD))
    assert life.job is not None
    seed = life.job.version.seed
    life.register(beta_knob=3.0)
    assert life.job.version.seed == seed
    other = JobLife(sent=5)
    other.send(do.RegisterJob(spec=GOOD))
    assert other.job is not None
    assert other.job.version.seed != seed


def test_registering_the_same_again_changes_nothing_whatever_the_order_and_1_against_1_0() -> None:
    life = registered(batch_sizes=[32, 64], default_batch_size=64, target_metric=1, eta_knob=1)
    before = len(life.history)
    reply = life.register(batch_sizes=[64.0, 32], default_batch_size=64.0, target_metric=1.0, eta_knob=1.0)
    assert len(life.history) == before
    assert (reply.is_new, reply.warnings, reply.spec.batch_sizes) == (False, (), (32, 64))


@pytest.mark.parametrize(
    "change", [{"target_metric": 0.9}, {"higher_is_better_metric": False}, {"eta_knob": 0.1}, {"version": "v2"}]
)
def test_another_identity_starts_a_new_version_with_a_warning(change: dict[str, Any]) -> None:
    life = registered()
    life.converge(life.begin("a"), 10.0)
    reply = life.register(**change)
    assert (reply.version_number, reply.is_new) == (2, True)
    assert next(iter(change)) in reply.warnings[0]
    assert life.known().arms == {}


def test_going_back_resumes_the_old_version_with_its_knowledge() -> None:
    life = registered()
    life.converge(life.begin("a"), 10.0)
    life.register(version="v2")
    reply = life.register(version="")
    assert (reply.version_number, reply.is_new, life.known().arm(64).costs.count) == (1, False, 1)
    assert "resumed" in reply.warnings[0]


def test_a_version_is_resumed_only_where_its_policy_is_installed(tmp_path: Path) -> None:
    with installed(tmp_path / "site", sound=f"{broken_policies.__name__}:INSTALLED.sound"):
        life = registered(policy="sound")
        life.register(version="v2", policy="curve")
    with pytest.raises(PolicyMissing, match="sound"):
        life.register(version="")
    assert life.register(version="", policy="curve").version_number == 1


def test_a_version_with_more_batch_sizes_than_are_allowed_is_resumed_with_them() -> None:
    many: dict[str, Any] = {"batch_sizes": list(range(1, 66)), "default_batch_size": 64}
    life = JobLife(rules=Rules(max_batch_sizes=1000))
    life.register(**many)
    life.register(version="v2", batch_sizes=[32, 64])
    life.rules = Rules()
    assert life.register(version="", **many).version_number == 1
    life.register(version="v2")
    more = {"version": "", "batch_sizes": list(range(1, 67))}
    assert set(problem_of(life.send(do.RegisterJob(spec=more))).fields) == {"batch_sizes"}


def test_trials_of_the_old_version_end_in_the_old_version() -> None:
    life = registered()
    trial = life.begin("a")
    life.register(version="v2")
    life.converge(trial, 10.0)
    assert life.known().arms == {}
    assert life.job is not None
    assert life.job.versions[1].knowledge_on(A100).arm(64).costs.count == 1


def test_on_conflict_raise_names_the_fields() -> None:
    life = registered()
    command = do.RegisterJob(spec={"target_metric": 0.9, "beta_knob": 3}, on_conflict=OnConflict.RAISE)
    problem = problem_of(life.send(command))
    assert (problem.type, dict(problem.fields)) == ("job_conflict", {"target_metric": "is 0.5, got 0.9"})
    assert problem.detail == (
        "job job is registered with other values: target_metric is 0.5, got 0.9; go back to those, take another "
        'job_id, or pass on_conflict="new_version": the job then gets a new version (`version` may name it) and '
        "keeps the old one"
    )
    unchanged = do.RegisterJob(spec={"beta_knob": 3}, on_conflict=OnConflict.RAISE)
    assert isinstance(life.send(unchanged), Registered)


def test_another_version_is_warned_of_in_good_english() -> None:
    life = registered()
    [one] = life.register(target_metric=0.9).warnings
    assert one.startswith("target_metric differs from version 1 of job job: version 2 starts with no knowledge")
    [two] = life.register(target_metric=0.8, eta_knob=1.0).warnings
    assert two.startswith("target_metric, eta_knob differ from version 2 of job job: version 3 starts")
    [back] = life.register(target_metric=0.9, eta_knob=0.5).warnings
    assert back == "target_metric, eta_knob differ: version 2 of job job is resumed"


def test_any_other_field_is_simply_updated() -> None:
    life = registered()
    life.register(beta_knob=3.0)
    (event,) = life.happened(JobRespecified)
    assert (event.version_number, event.spec.beta_knob) == (1, 3.0)


def test_removed_batch_sizes_rest_and_new_ones_join() -> None:
    life = registered(policy="pruning_thompson", num_pruning_rounds=0)
    life.converge(life.begin("a", batch_size=16), 1.0)
    life.register(batch_sizes=[32, 512], default_batch_size=32)
    assert {life.begin(f"b{n}").batch_size for n in range(6)} == {32, 512}
    life.register(batch_sizes=[16, 32], default_batch_size=32)
    assert life.known().arm(16).costs.count == 1


def test_the_default_cannot_be_removed_without_another() -> None:
    life = registered()
    problem = problem_of(life.send(do.RegisterJob(spec={"batch_sizes": [16, 32]})))
    assert "must be one of batch_sizes (16, 32), got 64" in problem.fields["default_batch_size"]


BAD_NUMBERS: tuple[Any, ...] = (math.nan, math.inf, -math.inf, "1", True, [], {}, 10**400)
OUT_OF_RANGE: list[tuple[str, Any]] = [
    *(("batch_sizes", bad) for bad in ([], [0], [-1], [32, 32], [1.5], ["32"], [True], [2**31], 32, None, "32", [[1]])),
    ("batch_sizes", list(range(1, 1002))),
    *(("default_batch_size", bad) for bad in (0, -1, 2**31, None, 1.5, *BAD_NUMBERS)),
    *(("eta_knob", bad) for bad in (-0.1, 1.1, None, *BAD_NUMBERS)),
    *(("beta_knob", bad) for bad in (0.99, 0, -1, *BAD_NUMBERS)),
    *(("target_metric", bad) for bad in (None, *BAD_NUMBERS)),
    *(("higher_is_better_metric", bad) for bad in (None, 1, "true")),
    *(("max_epochs", bad) for bad in (0, -1, 1.5, 10**9 + 1, None, *BAD_NUMBERS)),
    *(("num_pruning_rounds", bad) for bad in (-1, 1001, None, *BAD_NUMBERS)),
    *(("window_size", bad) for bad in (-1, 1, 1.0, 100_001, None, *BAD_NUMBERS)),
    *(("mab_prior_mean", bad) for bad in (None, *BAD_NUMBERS)),
    *(("mab_prior_precision", bad) for bad in (-1e-9, None, *BAD_NUMBERS)),
    *(("mab_num_explorations", bad) for bad in (-1, 10**6 + 1, None, *BAD_NUMBERS)),
    *(("mab_seed", bad) for bad in (-1, 2**63, 0.5, *BAD_NUMBERS)),
    *(("policy", bad) for bad in ("", "curve?", None, 1, ["pruning_thompson"])),
    *(("version", bad) for bad in ("x" * 121, "a\nb", "\x00", None, 1)),
    *(("cost_budget", bad) for bad in (0, -1, *BAD_NUMBERS)),
    *(("early_stopping", bad) for bad in (None, 0, "yes")),
    *(("min_saving", bad) for bad in (-0.01, 0.51, None, *BAD_NUMBERS)),
    *(("probing_budget", bad) for bad in (-0.01, 0.51, None, *BAD_NUMBERS)),
    *(("max_attempts", bad) for bad in (0, -1, 1001, None, *BAD_NUMBERS)),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE, ids=lambda value: repr(value)[:30])
def test_a_field_out_of_range_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec({**GOOD, name: value})
    assert set(refused.value.problems) == {name}


def test_all_wrong_batch_sizes_are_named_up_to_five() -> None:
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec({**GOOD, "batch_sizes": [0, 16, 1.5, "32"]})
    assert refused.value.problems == {
        "batch_sizes": "must hold whole numbers from 1 to 2147483647 only, got 0, 1.5, '32'"
    }
    with pytest.raises(InvalidSpec, match=r"got 0, -1, -2, -3, -4 and 15 more$"):
        resolve_spec({**GOOD, "batch_sizes": list(range(0, -20, -1))})


@pytest.mark.parametrize("name", ["beta_knob", "cost_budget"])
def test_an_optional_number_is_called_so_in_pythons_words(name: str) -> None:
    with pytest.raises(InvalidSpec, match="or None for no "):
        resolve_spec({**GOOD, name: -1})


IN_RANGE: list[tuple[str, Any]] = [
    ("batch_sizes", (64,)),
    ("batch_sizes", range(60, 70)),
    ("eta_knob", 0),
    ("beta_knob", None),
    ("beta_knob", 1),
    ("num_pruning_rounds", 0),
    ("window_size", 2),
    ("version", "ResNet-50, lr ∝ √b 🚀"),
    ("version", "x" * 120),
    ("cost_budget", None),
    ("mab_seed", 2**63 - 1),
    ("max_epochs", 10**9),
    ("max_attempts", 1),
    ("probing_budget", 0.0),
    ("min_saving", 0.0),
    ("min_saving", 0.5),
]


@pytest.mark.parametrize(("name", "value"), IN_RANGE, ids=lambda value: repr(value)[:30])
def test_a_field_in_range_is_accepted(name: str, value: Any) -> None:
    found = getattr(resolve_spec({**GOOD, name: value}), name)
    assert found == (tuple(value) if name == "batch_sizes" else value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(InvalidSpec, match="eta_knob must be a number from 0") as refused:
        resolve_spec({"eta_knob": 7, "epochs": 3})
    assert set(refused.value.problems) == {"eta_knob", "epochs", "batch_sizes", "default_batch_size"}


PAIR = {"batch_sizes": [16, 32], "default_batch_size": 100}


def test_a_default_that_is_no_batch_size_is_named_beside_other_problems() -> None:
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec({**PAIR, "max_epochs": 0})
    assert refused.value.problems == {
        "max_epochs": "must be a whole number from 1 to 1000000000, got 0",
        "default_batch_size": "must be one of batch_sizes (16, 32), got 100",
    }


@pytest.mark.parametrize("changed", [{"batch_sizes": [16, 32]}, {"default_batch_size": 100}], ids=["sizes", "default"])
def test_a_default_is_compared_with_recorded_batch_sizes_too(changed: dict[str, Any]) -> None:
    recorded = resolve_spec({"batch_sizes": [64, 128], "default_batch_size": 64})
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec({**changed, "eta_knob": 7}, recorded)
    assert set(refused.value.problems) == {"default_batch_size", "eta_knob"}


@pytest.mark.parametrize("wrong", [{"batch_sizes": [0]}, {"default_batch_size": "many"}], ids=["sizes", "default"])
def test_a_pair_is_not_compared_where_one_of_it_is_wrong_itself(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec({**PAIR, **wrong})
    assert set(refused.value.problems) == set(wrong)


def test_a_refusal_names_all_problems_too() -> None:
    refused = problem_of(JobLife().send(do.RegisterJob(spec={**PAIR, "max_epochs": 0})))
    assert set(refused.fields) == {"max_epochs", "default_batch_size"}
    assert all(f"{name} {why}" in refused.detail for name, why in refused.fields.items())


def test_unknown_fields_are_refused_but_not_echoed_without_end() -> None:
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec({**GOOD, **{f"{number}" * 1000: 1 for number in range(1000, 3000)}})
    assert len(str(refused.value)) < 5000


BAD_KINDS = [
    ("gpu_model", ""),
    ("gpu_model", "x" * 1001),
    ("gpu_model", "A\x00B"),
    *(("max_power_w", bad) for bad in (0.0, -1.0, math.nan, math.inf, 1e13)),
    *(("number_of_gpus", bad) for bad in (0, -1, 10**7)),
    *(("memory_mib", bad) for bad in (0, -1, 2**41)),
]


@pytest.mark.parametrize(("name", "value"), BAD_KINDS, ids=lambda value: repr(value)[:30])
def test_a_hardware_kind_out_of_range_is_refused_by_field(name: str, value: Any) -> None:
    kind: HardwareKind = replace(A100, **{name: value})
    life = registered()
    assert set(problem_of(life.send(do.BeginTrial(hardware=kind))).fields) == {f"hardware.{name}"}
    profile = do.ReportPowerProfile(batch_size=32, hardware=kind, measurements=(MEASURED,))
    assert set(problem_of(life.send(profile)).fields) == {f"hardware.{name}"}


MEASURED = do.PowerMeasurement(power_limit_w=200.0, average_power_w=180.0, samples_per_s=1000.0)


def test_costs_stay_finite_at_the_edge_of_what_is_accepted() -> None:
    life = registered(eta_knob=0.0)
    monster = replace(A100, max_power_w=1e12)
    trial = life.begin(hardware=monster)
    report = replace(life.reporting(trial, 1.0, 1.0), time_s=1e18, energy_j=1e18)
    life.send(report)
    assert life.known(monster).arm(64).costs.mean == 1e30


def test_power_profiles_are_recorded() -> None:
    life = registered()
    profile = do.ReportPowerProfile(batch_size=32, hardware=A100, measurements=(MEASURED,))
    assert isinstance(life.send(profile), PowerProfileRecorded)
    assert len(life.happened(PowerProfiled)) == 1
    bad = replace(profile, batch_size=0, measurements=(replace(MEASURED, samples_per_s=math.nan),))
    assert set(problem_of(life.send(bad)).fields) == {"batch_size", "measurements.0"}
    assert set(problem_of(life.send(replace(profile, measurements=()))).fields) == {"measurements"}


def test_an_unknown_job_is_refused() -> None:
    for command in (do.BeginTrial(hardware=A100), do.DescribeJob(), do.DeleteJob(), do.AllowBatchSize(batch_size=1)):
        assert problem_of(JobLife().send(command)).type == "unknown_job"


def test_only_the_owner_or_an_operator_may_delete_or_allow() -> None:
    life = JobLife(rules=Rules(operators=frozenset({"root"})))
    life.register(user="alice")
    life.send(do.BeginTrial(hardware=A100), user="alice")
    for command in (do.DeleteJob(), do.AllowBatchSize(batch_size=64)):
        assert problem_of(life.send(command, user="mallory")).type == "not_owner"
    assert isinstance(life.send(do.AllowBatchSize(batch_size=64), user="root"), AllowedAgain)
    life.send(do.DeleteJob(), user="alice")
    assert life.job is not None
    assert life.job.is_deleted


def test_allowing_what_the_job_does_not_know_is_refused() -> None:
    life = registered()
    assert problem_of(life.send(do.AllowBatchSize(batch_size=77))).type == "unknown_batch_size"
    assert problem_of(life.send(do.AllowBatchSize(batch_size=64, hardware_key="x"))).type == "unknown_hardware"


def test_a_job_is_described_as_people_want_to_see_it() -> None:
    life = registered(policy="pruning_thompson", num_pruning_rounds=1)
    life.enter_mab({16: 99.0, 32: 12.0, 64: 10.0, 128: 11.0, 256: 13.0})
    for number in range(3):
        life.finish(life.begin("x", batch_size=128), Outcome.INTERRUPTED, time_s=float(4**number))
    for number in range(2):
        life.give_up(life.begin(f"y{number}", batch_size=256))
        life.run_out_of_memory(life.begin(f"z{number}", hardware=V100))
    life.register(batch_sizes=[16, 32, 64, 128, 256, 512])
    life.begin("open")
    noted = expect(JobDescription, life.send(do.DescribeJob()))
    kinds = {kind.hardware_key: kind for kind in noted.kinds}
    arms = {arm.batch_size: arm for arm in kinds[A100.key].arms}
    assert {size: arm.status for size, arm in arms.items()} == {
        16: "pruned",
        32: "arm",
        64: "arm",
        128: "arm",
        256: "excluded",
        512: "arm",
    }
    assert kinds[A100.key].best_batch_size == 64
    assert arms[512].posterior_mean is None
    assert {arm.status for arm in kinds[V100.key].arms} >= {"to explore"}
    assert noted.open_recurrences[-1] == "open"
    assert noted.active_trials[0].batch_size in arms


def test_the_exploration_is_described_too() -> None:
    life = registered(policy="pruning_thompson")
    life.converge(life.begin("a"), 10.0)
    life.exceed(life.begin("b"))
    for number in range(2):
        life.run_out_of_memory(life.begin(f"c{number}", batch_size=256))
    life.register(batch_sizes=[16, 32, 48, 64, 128, 256])
    for number in range(3):
        life.finish(life.begin("d", batch_size=48), Outcome.INTERRUPTED, time_s=float(4**number))
    life.register(batch_sizes=[16, 32, 48, 64, 256])
    (kind,) = expect(JobDescription, life.send(do.DescribeJob())).kinds
    statuses = {arm.batch_size: arm.status for arm in kind.arms}
    assert statuses == {16: "to explore", 32: "failed", 48: "resting", 64: "survives", 256: "infeasible"}
    life.register(batch_sizes=[16, 32], default_batch_size=32)
    (kind,) = expect(JobDescription, life.send(do.DescribeJob())).kinds
    assert {arm.batch_size for arm in kind.arms if arm.status == "removed"} == {48, 64, 256}


def test_a_batch_size_that_a_client_chose_must_be_in_range() -> None:
    life = registered()
    assert set(problem_of(life.send(do.BeginTrial(hardware=A100, batch_size=0))).fields) == {"batch_size"}


def test_key_of_equal_kinds_are_equal_and_an_integer_of_watts_is_a_number() -> None:
    assert replace(A100, max_power_w=400).key == A100.key
    assert A100.key != V100.key
    assert A100.key == "627597a478e76668", "stored states name their knowledge by it: it must never change"


def test_more_batch_sizes_than_are_allowed_are_refused_but_those_of_a_job_that_has_them_stay() -> None:
    many: dict[str, Any] = {"batch_sizes": list(range(1, 66)), "default_batch_size": 64}
    life = JobLife()
    problem = problem_of(life.send(do.RegisterJob(spec={**many, "target_metric": 0.9})))
    assert problem.fields == {"batch_sizes": "must be at most 64, got 65: each choice takes longer the more there are"}
    life.rules = Rules(max_batch_sizes=1000)
    life.register(**many)
    life.rules = Rules()
    assert not life.register(**many, beta_knob=3.0).is_new
    assert set(problem_of(life.send(do.RegisterJob(spec={"batch_sizes": list(range(1, 67))}))).fields) == {
        "batch_sizes"
    }
