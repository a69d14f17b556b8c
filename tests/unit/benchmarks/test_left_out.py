"""Constants are judged by what they were not chosen on."""

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from bso.policies import curve
from bso.policies.curve import choices
from bso.simulator import BatchSizeProblem
from tests.benchmarks.left_out import IN_USE, VARIANTS, Variant, applied, judged, regrets
from tests.benchmarks.resampling import Values, table_over
from tests.benchmarks.smooth_curves import smooth_problem


def problem(dataset: str, gpu: str) -> BatchSizeProblem:
    made = smooth_problem(1)
    return replace(made, gpu=gpu, workload=replace(made.workload, dataset=dataset))


def test_what_is_best_on_one_workload_alone_does_not_count_there() -> None:
    problems = [problem("digits", "a40"), problem("reviews", "a40")]
    table: dict[str, Values] = {
        IN_USE.name: table_over([[2.0, 2.0], [2.0, 2.0]]),
        "good on digits": table_over([[0.0, 0.0], [9.0, 9.0]]),
        "better on both": table_over([[1.0, 1.0], [1.5, 1.5]]),
    }
    found = {figure.case: figure.spread.middle for figure in judged(table, problems)}
    assert found["new workload digits; better on both"] == 1.0
    assert found["new workload reviews; good on digits"] == 9.0
    assert found["each workload new; chosen without it"] == 5.0
    assert found["each workload; as they are"] == 2.0


def test_constants_of_a_variant_hold_while_it_is_simulated_and_change_what_happens() -> None:
    before = choices._LOOK_COST
    eager = Variant(name="eager", module="choices", constants={"_LOOK_COST": 3.0, "_LOOK_PACE": 10.0})
    with applied(eager):
        assert choices._LOOK_COST == 3.0
    assert before == choices._LOOK_COST
    problems = [smooth_problem(3)]
    assert (regrets(problems, [1], eager) != regrets(problems, [1], IN_USE)).any()


def test_every_variant_names_constants_that_are_there_and_nowhere_else() -> None:
    """A name that another module has imported would keep its value there."""
    for variant in VARIANTS:
        others = [import_module(f"bso.policies.curve.{one.name}") for one in iter_modules(curve.__path__)]
        holding = {one.__name__ for one in others for name in variant.constants if hasattr(one, name)}
        assert holding <= {f"bso.policies.curve.{variant.module}"}, variant.name
        with applied(variant):
            pass
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)
