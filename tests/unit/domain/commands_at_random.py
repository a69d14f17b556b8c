"""Commands as hypothesis draws them: sensible ones, and whatever the codec can decode."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from bso.domain import commands as do
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.learning_rate import LearningRate
from bso.domain.policies import own_policies
from bso.domain.rights import Right
from bso.domain.trial import Outcome
from tests.unit.domain.builders import A100, V100, command_id

ODD_TEXTS = (
    "",
    "a" * 300,
    "🚀 batch",
    "with space",
    "a/b",
    'it\'s "quoted"',
    "\x00",
    "nul\x00",
    "-",
    "ünïcode",
    "x" * 121,
)
ODD_NUMBERS = (float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 0.0, 5e-324, 1e-300, 1.0, 3.5, 1e18, 1e19, 1e308)
ODD_INTEGERS = (-1, 0, 1, 2, 17, 2**31 - 1, 2**31, 2**63, 10**40)

texts = st.sampled_from(ODD_TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.sampled_from(ODD_NUMBERS) | st.floats()
integers = st.sampled_from(ODD_INTEGERS) | st.integers(-(2**70), 2**70)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
moments = (st.datetimes(timezones=st.just(UTC)) | st.datetimes() | st.just(datetime(2026, 1, 1, tzinfo=UTC))).map(
    lambda moment: moment.replace(fold=0)
)
kinds = st.sampled_from((A100, V100))
odd_kinds = st.builds(
    HardwareKind,
    gpu_model=texts,
    max_power_w=numbers,
    energy_method=st.sampled_from(EnergyMethod),
    number_of_gpus=integers,
    memory_mib=st.none() | integers,
)
odd_rates = st.builds(
    LearningRate,
    numbers,
    reference_batch_size=integers,
    rule=st.sampled_from(("linear", "square_root", "none")),
)
outcomes = st.sampled_from(Outcome)
reasons = st.sampled_from(
    ("", "out_of_memory: 40 GiB asked for", "diverged: nan", "lease_lapsed: not true", "wall_time: x")
)

SPEC_FIELDS = {
    "batch_sizes": st.lists(st.integers(1, 64), max_size=5) | json_values,
    "default_batch_size": st.integers(1, 64) | json_values,
    "eta_knob": st.sampled_from((0, 0.0, 0.5, 1, 1.0)) | json_values,
    "beta_knob": st.none() | st.sampled_from((1, 1.5, 2.0, 1e300)) | json_values,
    "target_metric": st.sampled_from((0.5, 1)) | json_values,
    "higher_is_better_metric": st.booleans() | json_values,
    "max_epochs": st.integers(1, 5) | json_values,
    "num_pruning_rounds": st.integers(0, 3) | json_values,
    "window_size": st.integers(0, 4) | json_values,
    "mab_prior_mean": numbers,
    "mab_prior_precision": numbers,
    "mab_num_explorations": st.integers(0, 4) | json_values,
    "mab_seed": st.none() | integers,
    "policy": st.sampled_from(own_policies()) | texts,
    "version": st.sampled_from(("", "v2")) | texts,
    "cost_budget": st.none() | numbers,
    "early_stopping": st.booleans() | json_values,
    "max_attempts": st.integers(1, 4) | json_values,
    "min_saving": st.floats(0.0, 0.5) | json_values,
    "probing_budget": st.floats(0.0, 0.5) | json_values,
}
odd_specs = st.dictionaries(st.sampled_from(sorted(SPEC_FIELDS)) | texts, json_values, max_size=4)


@st.composite
def good_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a specification that are in range."""
    sizes = draw(st.lists(st.sampled_from((8, 16, 32, 64, 128)), min_size=1, max_size=5, unique=True))
    optional = st.fixed_dictionaries(
        {},
        optional={
            "eta_knob": st.sampled_from((0.0, 0.5, 1.0)),
            "beta_knob": st.sampled_from((None, 1.0, 1.5, 2.0, 1e300)),
            "target_metric": st.sampled_from((0.5, 0.6)),
            "higher_is_better_metric": st.booleans(),
            "max_epochs": st.integers(1, 6),
            "num_pruning_rounds": st.integers(0, 3),
            "window_size": st.sampled_from((0, 2, 3)),
            "mab_prior_mean": st.sampled_from((0.0, -100.0, 1e300, -1e300)),
            "mab_prior_precision": st.sampled_from((0.0, 1e-4, 5e-324, 1e300)),
            "mab_num_explorations": st.integers(0, 3),
            "policy": st.sampled_from(own_policies()),
            "version": st.sampled_from(("", "v2", "v3")),
            "cost_budget": st.sampled_from((None, 5e-324, 50.0, 1e300)),
            "early_stopping": st.booleans(),
            "max_attempts": st.integers(1, 4),
        },
    )
    return {"batch_sizes": sizes, "default_batch_size": draw(st.sampled_from(sizes)), **draw(optional)}


trial_numbers = st.integers(1, 12) | integers
trial_ids = st.integers(1, 60).map(command_id) | texts
odd_commands: st.SearchStrategy[do.Command] = st.one_of(
    st.builds(
        do.RegisterJob,
        spec=odd_specs,
        job_id_prefix=texts,
        on_conflict=st.sampled_from(do.OnConflict),
        inherit=st.booleans(),
        like=st.none() | texts | st.just("job"),
    ),
    st.builds(
        do.BeginTrial,
        hardware=kinds | odd_kinds,
        recurrence_id=st.none() | texts,
        batch_size=st.none() | integers,
        replaces=st.none() | texts,
        learning_rate=st.none() | odd_rates,
    ),
    st.builds(
        do.ReportEpoch,
        trial_number=trial_numbers,
        trial_id=trial_ids,
        epoch=numbers,
        time_s=numbers,
        energy_j=st.none() | numbers,
        metric=numbers,
        is_journalled=st.booleans(),
        is_profiling=st.booleans(),
    ),
    st.builds(
        do.FinishTrial,
        trial_number=trial_numbers,
        trial_id=trial_ids,
        outcome=outcomes,
        reason=texts | reasons,
        time_s=st.none() | numbers,
        energy_j=st.none() | numbers,
        bound=st.none() | numbers,
        is_journalled=st.booleans(),
        may_resume=st.booleans(),
    ),
    st.builds(do.RenewLease, trial_number=trial_numbers, trial_id=trial_ids, is_resumption=st.booleans()),
    st.builds(do.ExpireLease, trial_number=trial_numbers, trial_id=trial_ids, lease_expires_at=moments),
    st.builds(
        do.ReportPowerProfile,
        batch_size=integers,
        hardware=kinds | odd_kinds,
        measurements=st.lists(
            st.builds(do.PowerMeasurement, power_limit_w=numbers, average_power_w=numbers, samples_per_s=numbers),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(
        do.ReportEpochCosts,
        trial_number=trial_numbers,
        trial_id=trial_ids,
        probes=st.lists(
            st.builds(do.EpochCostProbe, batch_size=integers, time_s=numbers, energy_j=numbers, variance=numbers),
            max_size=3,
        ).map(tuple),
        out_of_memory=st.lists(integers, max_size=2).map(tuple),
        time_s=numbers,
        energy_j=st.none() | numbers,
    ),
    st.builds(do.AllowBatchSize, batch_size=integers, hardware_key=st.none() | texts),
    st.builds(do.DeleteJob),
    st.builds(do.GrantJob, login=texts, right=st.none() | st.sampled_from(Right)),
    st.builds(do.GiveJob, login=texts),
    st.builds(do.DescribeJob),
)
