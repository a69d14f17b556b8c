"""What pages of a worker say."""

import json

from aiohttp.test_utils import make_mocked_request

from bso.domain.foreign_text import is_plain
from bso_broker.messages import Readiness
from bso_workers.health import HealthPages
from bso_workers.metrics import Metrics
from bso_workers.readiness import WorkerReadiness
from tests.defences.hostile_text import hostile

BAD = hostile("PWNED")


async def test_a_reason_on_a_page_is_shown_and_the_same_for_programs() -> None:
    readiness = WorkerReadiness(broker=lambda: Readiness(ready=False, reason=BAD, since_s=0.0), clock=lambda: 0.0)
    pages = HealthPages(readiness=readiness, metrics=Metrics(), busy_for_s=lambda: 0.0, stuck_after_s=1.0)
    page = await pages.readyz(make_mocked_request("GET", "/readyz"))
    assert (page.status, page.content_type) == (503, "application/json")
    assert page.text is not None
    assert is_plain(page.text)
    assert json.loads(page.text)["reasons"]["broker"] == BAD
