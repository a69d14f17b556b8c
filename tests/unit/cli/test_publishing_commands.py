"""How to go on after a publishing that was broken off, as it is printed then."""

import pytest

from bso.domain.events import JobDeleted
from bso.domain.log import RecordedEvent
from bso.service.records import StoredEvent
from bso_cli.replaying.publishing import how_to_go_on
from tests.unit.cli.samples import NOW


@pytest.mark.parametrize(
    ("jobs", "only"), [([], ""), (["b"], " and only these jobs: b"), (["a", "b", "c"], " and only these jobs: b c")]
)
def test_it_names_the_last_event_and_the_jobs_that_are_left(jobs: list[str], only: str) -> None:
    recorded = RecordedEvent(job_id="b", seq=3, part=0, recorded_at=NOW, command_id="c", event=JobDeleted())
    last = StoredEvent(event_id=412, recorded=recorded)
    assert how_to_go_on(last, jobs) == f"To go on, give the same command with --after 412{only}"
