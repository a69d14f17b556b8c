"""What is compared with the job as it is."""

import pytest

from bso.domain.job_spec import InvalidSpec
from bso.domain.policies import PolicyMissing
from bso.replay.what_if.alternatives import AS_IT_IS, Grid, TooMany, alternatives
from bso.replay.what_if.recorded import End, NotRecorded
from tests.unit.replay.records import record, run

KNOWN = record([run(16, 9), run(16, 10), run(32, 5), run(32, 6), run(64, 8), run(128, 40, End.CENSORED)])


def test_every_combination_is_compared_and_named_by_what_it_changes() -> None:
    grid = Grid(policies=["pruning_thompson", "curve"], beta_knobs=[2.0, None], eta_knobs=[0.5, 0.25])
    found = alternatives(KNOWN, grid)
    assert [one.name for one in found] == [
        AS_IT_IS,
        "never stopped early",
        "eta 0.25",
        "eta 0.25, never stopped early",
        "policy curve",
        "policy curve, never stopped early",
        "policy curve, eta 0.25",
        "policy curve, eta 0.25, never stopped early",
    ]
    assert (found[-1].spec.policy, found[-1].spec.eta_knob, found[-1].spec.beta_knob) == ("curve", 0.25, None)


def test_values_that_differ_in_their_last_digits_are_different_alternatives() -> None:
    found = alternatives(KNOWN, Grid(eta_knobs=[0.1234567, 0.12345678, 0.1234567], beta_knobs=[3.0, 3.0000001]))
    assert [one.name for one in found] == [
        AS_IT_IS,
        "eta 0.1234567, beta 3",
        "eta 0.1234567, beta 3.0000001",
        "eta 0.12345678, beta 3",
        "eta 0.12345678, beta 3.0000001",
    ]


def test_unknown_batch_sizes_are_left_out_and_the_default_moves() -> None:
    [as_it_is] = alternatives(KNOWN, Grid())
    assert as_it_is.batch_sizes == (16, 32)
    assert as_it_is.left_out == {64: "1 converged training", 128: "no converged trainings"}
    assert as_it_is.default_batch_size == 32
    assert as_it_is.unknown is None


def test_nothing_is_said_of_an_alternative_that_names_what_is_unknown() -> None:
    found = alternatives(KNOWN, Grid(batch_sizes=[[16, 64], [32, 16]], default_batch_sizes=[]))
    assert [(one.name, one.unknown) for one in found] == [
        (AS_IT_IS, None),
        ("sizes 16,64", "64: 1 converged training"),
        ("sizes 16,32", None),
    ]
    assert found[2].spec.default_batch_size == 32
    [_, default] = alternatives(KNOWN, Grid(default_batch_sizes=[128]))
    assert default.unknown == "128: no converged trainings"


def test_naming_all_of_the_jobs_own_batch_sizes_is_asking_about_each() -> None:
    grid = Grid(policies=["pruning_thompson", "curve"], batch_sizes=[[16, 32, 64, 128]])
    [_, all_of_them, other] = alternatives(KNOWN, grid)
    assert (all_of_them.name, other.name) == ("sizes 16,32,64,128", "policy curve, sizes 16,32,64,128")
    assert all_of_them.unknown == "64: 1 converged training; 128: no converged trainings"


def test_a_batch_size_of_the_jobs_own_that_was_never_tried_is_unknown_and_spoils_no_other_alternative() -> None:
    tried = record([run(16, 9), run(16, 10), run(32, 5), run(32, 6)])
    found = alternatives(tried, Grid(batch_sizes=[[16, 64, 128], [16, 32]]))
    assert [(one.name, one.unknown) for one in found[1:]] == [
        ("sizes 16,64,128", "64: never tried; 128: never tried"),
        ("sizes 16,32", None),
    ]


def test_where_nothing_is_known_the_job_as_it_is_is_unknown() -> None:
    [as_it_is] = alternatives(record([run(64, 8)]), Grid())
    assert as_it_is.unknown == "no batch size is known"


def test_what_no_job_may_have_and_what_was_never_tried_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="eta_knob must be a number from 0"):
        alternatives(KNOWN, Grid(eta_knobs=[1.5]))
    with pytest.raises(PolicyMissing, match="policy 'magic' is not installed"):
        alternatives(KNOWN, Grid(policies=["magic"]))
    with pytest.raises(InvalidSpec, match="default_batch_size must be one of"):
        alternatives(KNOWN, Grid(batch_sizes=[[16, 32]], default_batch_sizes=[64]))
    with pytest.raises(NotRecorded, match="batch size 8 was never tried; recorded trials have 16, 32, 64, 128"):
        alternatives(KNOWN, Grid(batch_sizes=[[8, 16]]))
    with pytest.raises(TooMany, match="100 combinations"):
        alternatives(KNOWN, Grid(eta_knobs=[k / 10 for k in range(10)], beta_knobs=[1.0 + k for k in range(10)]))
