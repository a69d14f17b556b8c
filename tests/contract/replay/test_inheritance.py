"""What a job has inherited is in its own log: it needs neither the other job nor the rules to be folded."""

from collections.abc import AsyncIterator

from bso.domain.commands import DeleteJob
from bso.domain.decide import Rules
from bso.domain.log import RecordedEvent
from bso.domain.sentences import sentence
from bso.policies.curve.memory import epochs_of
from bso.replay.export_file import export, stage
from bso.replay.hindsight import before_trial
from bso.replay.rebuild import bring, rebuild
from bso.service.engine import Engine
from bso.service.retention import purge_jobs
from bso.service.serialization import read_snapshot
from bso.storage import SqlStore
from bso_cli.jobs_decisions import decisions, story
from tests.contract.replay.histories import FAR, assert_sound, execute, in_sqlite, pruned
from tests.contract.storage.job_requests import ask, begin, beginning, folded, registration, request, whole_history
from tests.contract.storage.siblings import BEST, KNOWN, NEW, like, trained

RULES = Rules()


async def inherited(store: SqlStore) -> None:
    """A job that inherits from another one, then from its own first version; the other one has gone without a trace."""
    engine = Engine(store)
    await trained(engine)
    await ask(engine, like())
    assert (await begin(engine, NEW)).batch_size == BEST
    await ask(engine, registration(NEW, version="v2"), request(DeleteJob(), job_id=KNOWN))
    assert await purge_jobs(store, deleted_before=FAR) == (KNOWN,)


async def state_of(store: SqlStore, job_id: str = NEW) -> str:
    """The stored state of a job."""
    stored = await store.job(job_id)
    assert stored is not None
    return stored.state


async def test_an_export_makes_the_same_job_where_the_other_one_never_was(
    store: SqlStore, other: SqlStore, staging: SqlStore
) -> None:
    await inherited(store)
    lines: list[bytes] = []
    await export(store, NEW, lines.append)
    await stage(b"".join(lines).splitlines(keepends=True), staging, name="export.jsonl")
    await bring(staging, other, NEW, rules=RULES)
    assert await state_of(other) == await state_of(store)
    await assert_sound(store)
    await assert_sound(other)
    again = [(await ask(Engine(one), beginning(NEW)))[0].reply for one in (store, other)]
    sizes = [getattr(reply, "batch_size", None) for reply in again]
    assert sizes == [BEST, BEST], "they go on alike"


async def test_tables_are_made_anew_from_the_log_alone(store: SqlStore, database_url: str) -> None:
    await inherited(store)
    before = await state_of(store)
    assert await execute(database_url, "UPDATE job SET state = '{}'") == 1
    await rebuild(store, NEW, rules=RULES)
    assert await state_of(store) == before
    await assert_sound(store)


async def test_what_was_inherited_outlives_the_pruning_of_the_log(store: SqlStore) -> None:
    await inherited(store)
    before = await state_of(store)
    assert await pruned(store)
    stored = await store.job(NEW)
    assert stored is not None
    replayed = folded(await whole_history(store, NEW), NEW).job
    assert (stored.state, read_snapshot(stored).versions) == (before, replayed.versions)
    assert epochs_of(replayed.versions[1]).is_inherited


@in_sqlite
async def test_why_says_in_a_few_words_what_is_inherited_and_what_was_known(store: SqlStore) -> None:
    await inherited(store)
    lines = list(story(await decisions(store, NEW)))
    assert f"by inherited knowledge {BEST} is best" in " ".join(lines)
    sentences = [sentence(recorded.event) for recorded in await whole_history(store, NEW)]
    assert sentences[0].endswith("; what is known of batch sizes 64, 128 is inherited from job known")
    assert max(map(len, [*lines, *sentences])) < 400

    async def log() -> AsyncIterator[RecordedEvent]:
        for recorded in await whole_history(store, NEW):
            yield recorded

    known = await before_trial(NEW, 1, log())
    assert known is not None
    assert known.started.batch_size == BEST
