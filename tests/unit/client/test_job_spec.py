import pickle
from array import array
from typing import Any

import numpy as np
import pytest

from bso.domain.job_spec import resolve_spec
from bso_client import InvalidSpec, JobSpec


def spec(**fields: Any) -> JobSpec:
    chosen: dict[str, Any] = {"batch_sizes": [32, 64], "default_batch_size": 32}
    return JobSpec(**chosen | fields)


def test_only_what_was_set_is_sent() -> None:
    assert spec(job_id="a", target_metric=0.9).requested == {
        "batch_sizes": [32, 64],
        "default_batch_size": 32,
        "target_metric": 0.9,
    }


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(InvalidSpec) as raised:
        spec(job_id="no spaces, please", batch_sizes=[0], eta_knob=2, max_epochs=0, learning_rate=0.1)

    assert set(raised.value.problems) == {"job_id", "batch_sizes", "eta_knob", "max_epochs", "learning_rate"}
    assert "known are job_id, job_id_prefix, batch_sizes" in raised.value.problems["learning_rate"]
    for name in raised.value.problems:
        assert name in str(raised.value)


def test_a_default_that_is_no_batch_size_is_named_beside_other_problems() -> None:
    with pytest.raises(InvalidSpec) as raised:
        spec(batch_sizes=[16, 32], default_batch_size=100, max_epochs=0, job_id="no spaces, please")

    assert set(raised.value.problems) == {"job_id", "default_batch_size", "max_epochs"}


def test_what_names_no_policy_has_curve_unless_another_is_recorded() -> None:
    assert "policy" not in spec().requested
    assert spec().resolve().policy == "curve"
    recorded = resolve_spec({"batch_sizes": [32, 64], "default_batch_size": 32, "policy": "pruning_thompson"})
    assert spec().resolve(recorded).policy == "pruning_thompson"


@pytest.mark.parametrize("missing", ["batch_sizes", "default_batch_size"])
def test_batch_sizes_and_the_default_are_required(missing: str) -> None:
    fields: dict[str, Any] = {"batch_sizes": [32, 64], "default_batch_size": 32}
    del fields[missing]
    with pytest.raises(InvalidSpec, match=f"{missing} is required"):
        JobSpec(**fields)


@pytest.mark.parametrize(
    "value",
    ["", " ", "a/b", "a b", "ä", "🙂", "'; drop table job", "x" * 121, 5, "_a"],
    ids=["empty", "space", "slash", "spaces", "umlaut", "emoji", "quote", "long", "number", "underscore"],
)
@pytest.mark.parametrize("name", ["job_id", "job_id_prefix"])
def test_ids_are_checked(name: str, value: object) -> None:
    with pytest.raises(InvalidSpec, match=name):
        spec(**{name: value})


@pytest.mark.parametrize(
    "sizes", [np.array([32, 64]), (32, np.int64(64)), range(32, 65, 32)], ids=["array", "item", "range"]
)
def test_numbers_of_numpy_are_taken_for_numbers(sizes: Any) -> None:
    taken = spec(batch_sizes=sizes, target_metric=np.float32(0.5), early_stopping=np.bool_(True))

    assert taken.resolve().batch_sizes == (32, 64)
    assert type(taken.requested["target_metric"]) is float


def test_the_whole_specification_comes_from_what_is_recorded() -> None:
    recorded = resolve_spec({"batch_sizes": [16, 32, 64], "default_batch_size": 16, "max_epochs": 7})
    whole = spec(target_metric=0.9).resolve(recorded)

    assert (whole.max_epochs, whole.target_metric, whole.default_batch_size) == (7, 0.9, 32)


def test_equal_specs_are_equal_and_survive_pickling() -> None:
    one, other = spec(job_id="a", eta_knob=0.25), spec(job_id="a", eta_knob=0.25)

    assert one == other == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(other)
    assert one != spec(job_id="b", eta_knob=0.25)
    assert one != "a"
    assert repr(one) == "JobSpec(job_id='a', batch_sizes=[32, 64], default_batch_size=32, eta_knob=0.25)"


def test_an_array_of_the_standard_library_is_a_list_too() -> None:
    assert spec(batch_sizes=array("i", [32, 64])).resolve().batch_sizes == (32, 64)
