"""``bso replay`` as an operator uses it, from a backup to a broker."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bso.schema.codec import decode_event
from bso_broker.messages import Event
from bso_broker.rabbit import RabbitBroker
from tests.acceptance.conftest import Command, command_in
from tests.contract.broker.stories import started_replay_subscriber, started_subscriber
from tests.contract.broker.test_events import received
from tests.servers import PATIENCE_S, eventually_async
from tests.servers.proxy import TcpProxy


@pytest.fixture(scope="module")
def trained_state(tmp_path_factory: pytest.TempPathFactory, training: list[str]) -> Path:
    """A state directory after a recurrence of job toy."""
    folder = tmp_path_factory.mktemp("trained") / "state"
    command_in(folder).ok("recur", 1, "--", *training, "goes")
    return folder


@pytest.fixture
def trained(bso: Command, state_dir: Path, trained_state: Path) -> Command:
    """The command, after those trainings."""
    shutil.copytree(trained_state, state_dir)
    return bso


@pytest.mark.slow
async def test_published_events_reach_replay_listeners_and_no_live_one(
    trained: Command, amqp_url: str, tmp_path: Path
) -> None:
    events = trained.lines("events", "history", "--json")
    backup = tmp_path / "backup.jsonl"
    trained.ok("replay", "export", "--output", backup)
    async with RabbitBroker(amqp_url) as broker, AsyncExitStack() as cleaning:
        await broker.declare()
        live, replay = await started_subscriber(broker, cleaning), await started_replay_subscriber(broker, cleaning)
        assert trained.json("replay", "publish", "--url", amqp_url) == {"published": len(events)}
        events_received = await received(replay, len(events))
        assert [_plain(one.body) for one in events_received] == [
            {k: v for k, v in e.items() if k in _KEPT} for e in events
        ]
        assert {one.routing_key for one in events_received} == {f"{event['type']}.toy" for event in events}

        from_file = ("replay", "publish", "toy", "--from", backup, "--type", "trial_ended", "--rate", 100)
        ends = [event for event in events if event["type"] == "trial_ended"]
        assert trained.json(*from_file, "--url", amqp_url) == {"published": len(ends)}
        assert [_plain(one.body)["seq"] for one in await received(replay, len(ends))] == [end["seq"] for end in ends]

        for source in ((), ("--from", backup)):
            assert "nothing is recorded of nobody" in trained.refused(
                *("replay", "publish", "toy", "nobody", *source, "--url", amqp_url)
            )

        third = events[2]
        assert third["seq"] == 3  # its place in the file, too
        for source in ((), ("--from", backup)):
            rest = trained.json("replay", "publish", "--after", third["event_id"], *source, "--url", amqp_url)
            assert rest == {"published": len(events) - 3}
            events_received = await received(replay, len(events) - 3)
            assert [_plain(one.body)["seq"] for one in events_received] == [event["seq"] for event in events[3:]]

        news = Event(routing_key="trial_started.toy", body=b"live", message_id="live")
        await broker.event_publisher().publish_batch([news])
        assert [one.body for one in await received(live, 1)] == [b"live"]  # nothing came before it


@pytest.mark.slow
async def test_publishing_survives_a_broker_that_goes_away_in_the_middle(
    trained: Command, amqp_url: str, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    events = trained.lines("events", "history", "--json")
    async with RabbitBroker(amqp_url) as broker, AsyncExitStack() as cleaning:
        await broker.declare()
        replay = await started_replay_subscriber(broker, cleaning)
        proxy = tcp_proxy(amqp_url)
        publishing = trained.start("replay", "publish", "--url", proxy.url, "--rate", 5, "--json")
        first = await received(replay, 1)
        proxy.stall_replies()
        await eventually_async(lambda: proxy.is_holding, what="a confirmation that never comes")
        proxy.cut()
        assert await asyncio.to_thread(_says, publishing, "trying again")
        proxy.restore()
        printed, complaints = await asyncio.to_thread(publishing.communicate, timeout=PATIENCE_S)
        assert publishing.returncode == 0, complaints
        assert json.loads(printed) == {"published": len(events)}
        rest = await received(replay, len(events))
    events_received = [_plain(one.body)["seq"] for one in (*first, *rest)]
    recorded = [event["seq"] for event in events]
    (unconfirmed,) = (seq for seq in recorded if events_received.count(seq) > 1)
    assert events_received == [*recorded[:unconfirmed], *recorded[unconfirmed - 1 :]]


_KEPT = ("job_id", "seq", "type", "command_id", "part")


def _says(process: subprocess.Popen[str], words: str) -> bool:
    assert process.stderr is not None
    return any(words in line for line in process.stderr)


def _plain(body: bytes) -> dict[str, Any]:
    recorded = decode_event(body)
    kind = json.loads(body)["type"]
    place = {"job_id": recorded.job_id, "seq": recorded.seq, "type": kind}
    return {**place, "command_id": recorded.command_id, "part": recorded.part}
