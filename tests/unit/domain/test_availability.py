"""Which batch sizes a recurrence may run next."""

import pytest

from bso.domain.job import Recurrence, available, fitting
from bso.domain.job_spec import resolve_spec
from bso.domain.knowledge import ArmRecord, Knowledge
from tests.unit.domain.builders import A100

SPEC = resolve_spec({"batch_sizes": [16, 32, 64, 128], "default_batch_size": 64})


def recurrence(*failed: int, out_of_memory_from: int | None = None) -> Recurrence:
    """A recurrence in which these batch sizes have failed."""
    limits = {} if out_of_memory_from is None else {A100.key: out_of_memory_from, "elsewhere": 16}
    return Recurrence(recurrence_id="night", recurrence_number=1, failed=frozenset(failed), out_of_memory_from=limits)


@pytest.mark.parametrize(
    ("now", "resting", "expected"),
    [
        (recurrence(), [], {16, 32, 64, 128}),
        (recurrence(64), [], {16, 32, 128}),
        (recurrence(64), [16, 32], {128}),
        (recurrence(64), [16, 32, 128], {16, 32, 128}),
        (recurrence(16, 32, 64, 128), [], {16, 32, 64, 128}),
        (recurrence(64, out_of_memory_from=64), [], {16, 32}),
        (recurrence(16, 32, 64, out_of_memory_from=64), [], {16, 32}),
        (recurrence(16, out_of_memory_from=16), [], {16}),
        (recurrence(out_of_memory_from=8), [16], {16}),
    ],
)
def test_what_is_left_that_fits_and_has_not_failed_and_does_not_rest_may_run(
    now: Recurrence, resting: list[int], expected: set[int]
) -> None:
    knowledge = Knowledge(hardware=A100, arms=dict.fromkeys(resting, ArmRecord(is_resting=True)))
    assert available(knowledge, SPEC, now) == expected


def test_apart_from_any_recurrence_what_is_feasible_fits() -> None:
    knowledge = Knowledge(hardware=A100, arms={64: ArmRecord(out_of_memories=2)})
    assert fitting(knowledge, SPEC, None) == {16, 32}
