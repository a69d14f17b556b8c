"""What ``bso jobs why`` shows of a job's decisions."""

from datetime import timedelta

from pydantic_core import from_json

from bso.schema.codec import dump
from bso.storage import SqlStore
from bso_cli.jobs_decisions import decisions, story
from tests.contract.replay.histories import TRAINED, in_sqlite, lived


@in_sqlite
async def test_programs_get_exact_times_and_people_seconds(store: SqlStore) -> None:
    await lived(store)
    noted = await decisions(store, TRAINED)
    recorded = {logged.new.seq: logged.recorded_at for logged in await store.log_page(TRAINED)}
    assert [one.at for one in noted] == [recorded[one.seq] for one in noted]
    assert all(one.at.utcoffset() == timedelta(0) for one in noted)
    for one, line in zip(noted, story(noted), strict=True):
        assert from_json(dump(one))["at"] == one.at.isoformat().replace("+00:00", "Z")
        assert line.startswith(f"[dim]{one.at:%Y-%m-%d %H:%M:%S}[/] ")
