"""Hostile text in every field of every message: neither logs nor pages nor commands send it on.

The fields are those of the commands, of the envelope and of AMQP: a new one is tried by itself.
"""

import asyncio
import json
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Basic

from bso.domain.commands import BeginTrial, FinishTrial, RegisterJob, ReportEpoch, Request
from bso.domain.foreign_text import shown
from bso.domain.job_spec import SPEC_FIELDS
from bso.domain.replies import Reply, TrialBegun
from bso.domain.trial import Outcome
from bso.schema.codec import COMMANDS, encode_command
from bso.schema.envelope import Envelope
from bso_migrations import upgrade
from tests.acceptance.conftest import Command
from tests.acceptance.plans import assert_nothing_is_obeyed, run
from tests.defences.hostile_text import hostile, obeyed
from tests.defences.samples import PLACE, Samples
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.raw import RawSender
from tests.integration.workers.recurrences import HARDWARE, SPEC
from tests.servers import PATIENCE_S, eventually
from tools.private_servers.ports import ClaimedPorts

TEXT = hostile("PWNED")
JOB = "digits"
REFUSED_BY_THE_BROKER = {"user_id", "expiration", "delivery_mode", "priority", "timestamp", "cluster_id"}
"""Properties that the broker checks itself, or that are no text."""
READ = [
    *(["jobs", "list"], ["jobs", "show", JOB], ["jobs", "why", JOB], ["jobs", "export", JOB, "--format", "csv"]),
    *(["events", "history", JOB], ["dead-letters", "list"], ["dead-letters", "list", "--json"], ["doctor"]),
    *(["jobs", "show", JOB, "--json"], ["events", "history", JOB, "--json"], ["jobs", "show", TEXT]),
]
SEEN_FROM = {"json": {"in a pipe": "the broker", "on a terminal": "the database and the broker"}}


def bodies() -> Iterator[bytes]:
    """Messages with hostile text in each of their texts in turn."""
    for name, kind in COMMANDS.items():
        body = Samples().of(kind)
        if kind is RegisterJob:
            body["spec"] = SPEC | {field: f"§{number}§" for number, field in enumerate(SPEC_FIELDS, 900)}
            body["spec"] |= {"§999§": 1}
        for changed in in_turn(body):
            command_id = str(uuid.uuid4())
            yield json.dumps({"type": name, "command_id": command_id, "job_id": JOB, "body": changed}).encode()
    reported = {**Samples().of(ReportEpoch), "metric": TEXT}  # no text, but what a client may send
    yield json.dumps(
        {"type": "report_epoch", "command_id": str(uuid.uuid4()), "job_id": JOB, "body": reported}
    ).encode()
    for changed in in_turn(Samples().of(Envelope)):
        yield json.dumps({**changed, "part": 1}).encode()
    yield TEXT.encode()
    yield json.dumps(TEXT).encode()
    yield json.dumps({TEXT: TEXT}).encode()


def in_turn(sample: Any) -> Iterator[Any]:
    written = json.dumps(sample, ensure_ascii=False)
    for place in dict.fromkeys(PLACE.findall(written)):
        yield json.loads(PLACE.sub("x", written.replace(place, json.dumps(TEXT)[1:-1])))


def properties() -> Iterator[dict[str, Any]]:
    """Properties of AMQP with hostile text in one of them."""
    for name in Basic.Properties.attributes():
        if name not in REFUSED_BY_THE_BROKER:
            yield {name: {TEXT: TEXT, "traceparent": TEXT} if name == "headers" else TEXT}


async def send_everything(amqp_url: str) -> None:
    """All of it, and a training whose reason is hostile; returns when all is answered."""
    async with RawSender(amqp_url) as sender:

        async def ask(command: Any) -> Reply:
            request = Request(command_id=str(uuid.uuid4()), job_id=JOB, command=command)
            await sender.send(encode_command(request))
            return await sender.receive_reply()

        await ask(RegisterJob(spec=SPEC))
        begun = await ask(BeginTrial(hardware=HARDWARE, recurrence_id="night"))
        assert isinstance(begun, TrialBegun)
        end = FinishTrial(
            trial_number=begun.trial_number, trial_id=begun.trial_id, outcome=Outcome.INTERRUPTED, reason=TEXT
        )
        assert getattr(await ask(end), "outcome", None) is Outcome.INTERRUPTED
        for body in bodies():
            await sender.send(body)
            await sender.receive()
        for changed in properties():
            await sender.send(b"{}", **changed)
            if "reply_to" not in changed:
                await sender.receive()


@pytest.mark.slow
@pytest.mark.parametrize("style", ["json", "console"])
def test_hostile_messages_are_shown_and_not_obeyed(
    style: str, bso: Command, amqp_url: str, mysql_url: str, tmp_path: Path
) -> None:
    asyncio.run(upgrade(mysql_url))
    with ClaimedPorts(1) as claimed:
        (port,) = claimed.numbers
    environ = {"BSO_AMQP_URL": amqp_url, "BSO_DATABASE_URL": mysql_url, "BSO_HEALTH_PORT": str(port)}
    worker = WorkerProcess(tmp_path / "worker.log", environ | {"BSO_LOG_FORMAT": style, "BSO_LOG_LEVEL": "debug"})
    try:
        worker.until(lambda: "commands are taken and decided" in worker.text())
        with (tmp_path / "tail.log").open("wb") as stream:
            tail = bso.start("events", "tail", stdout=stream, BSO_URL=amqp_url)
        assert tail.stderr is not None
        assert "following" in tail.stderr.readline()
        asyncio.run(send_everything(amqp_url))
        for screen, places in SEEN_FROM.get(style, {}).items():
            database = mysql_url if "database" in places else ""
            steps = [(words, {"BSO_URL": amqp_url, "BSO_DATABASE_URL": database}) for words in READ]
            ran = run(tmp_path, steps, screen)
            assert_nothing_is_obeyed(ran, screen)
            assert [one.words for one in ran if one.code and one.words[:2] != ["jobs", "show"]] == []
            assert sum("PWNED" in one.said for one in ran) > 6
        eventually(lambda: shown(TEXT) in (tmp_path / "tail.log").read_text(), what="the end of the training")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as page:
            counted = page.read().decode()
        logged = worker.log.read_text(encoding="utf-8")
        for printed in ((tmp_path / "tail.log").read_text(), logged, counted):
            assert obeyed(printed) == []
        assert logged.count("PWNED") > 5
    finally:
        worker.kill()
