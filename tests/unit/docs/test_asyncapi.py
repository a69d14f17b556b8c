"""docs/asyncapi.yaml is what the code sends: made anew it is the same, and real messages are as it says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given

from bso.domain import commands as do
from bso.domain.commands import Request
from bso.domain.events import JobRespecified
from bso.domain.log import RecordedEvent
from bso.domain.quotas import OVER_QUOTA
from bso.domain.replies import KEPT
from bso.domain.rights import Right
from bso.domain.trial import Outcome
from bso.schema.codec import (
    ANSWERS,
    COMMANDS,
    REPLIES,
    all_events,
    encode_command,
    encode_event,
    encode_reply,
    wire_name,
)
from bso.schema.errors import MalformedMessage
from bso_broker.topology import TOPOLOGY
from docs.write_asyncapi import FILE, text
from tests.unit.domain.builders import A100, THE_EPOCH, JobLife, command_id, searching
from tests.unit.domain.commands_at_random import odd_commands

DOCUMENT: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
OFFICIAL_SCHEMA = Path(__file__).parents[3] / ".cache/asyncapi/3.0.0.json"


def differences(message: bytes, key: str) -> list[object]:
    """In what the message is not as the document describes it."""
    payload = DOCUMENT["components"]["messages"][key]["payload"]
    validator = jsonschema.Draft7Validator({**payload, "components": DOCUMENT["components"]})
    return list(validator.iter_errors(json.loads(message)))


def command_message(command: do.Command) -> bytes:
    return encode_command(Request(command_id=command_id(1), job_id="job", command=command), sent_at=THE_EPOCH)


def test_the_page_about_messages_names_every_problem_and_no_other() -> None:
    root = FILE.parents[1]
    sources = [path for folder in ("bso", "workers") for path in (root / folder).rglob("*.py")]
    made = re.compile(r'(?:refused(?:_for)?\(\w+, |Problem\(\s*type=)"([a-z_]+)"')
    known = {KEPT, OVER_QUOTA} | {kind for path in sources for kind in made.findall(path.read_text(encoding="utf-8"))}
    page = (root / "docs/messages.md").read_text(encoding="utf-8")
    table = re.search(r"^## Problems\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert table is not None
    rows = [line.split("|")[1] for line in table[1].splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`([a-z_]+)`", " ".join(rows))) == known


def references(node: object) -> Iterator[str]:
    match node:
        case dict():
            yield from [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            for value in node.values():
                yield from references(value)
        case list():
            for value in node:
                yield from references(value)


def test_made_anew_it_is_the_same() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run `make asyncapi` and commit the file"


def test_it_is_valid_by_the_specification() -> None:
    if not OFFICIAL_SCHEMA.exists():
        pytest.skip("the schema of AsyncAPI 3.0 is not there: tools/fetch-asyncapi-schema gets it")
    schema = json.loads(OFFICIAL_SCHEMA.read_text(encoding="utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    validator.validate(DOCUMENT)
    assert not validator.is_valid({**DOCUMENT, "operations": {"eat": {"action": "eat"}}})


def test_every_reference_leads_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert found
    for reference in found:
        node = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def test_every_message_is_described_and_travels_on_a_channel() -> None:
    expected = {f"{what}.{name}" for what, types in KINDS for name in types}
    assert set(DOCUMENT["components"]["messages"]) == expected
    assert {key for channel in DOCUMENT["channels"].values() for key in channel["messages"]} == expected


def test_every_schema_is_one() -> None:
    schema_of_schemas = jsonschema.Draft7Validator(jsonschema.Draft7Validator.META_SCHEMA)
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert not list(schema_of_schemas.iter_errors(schema)), name


def test_the_channels_are_those_of_the_broker() -> None:
    declared = {one.name for one in TOPOLOGY.exchanges} | {one.name for one in TOPOLOGY.queues}
    bindings = [channel["bindings"]["amqp"] for channel in DOCUMENT["channels"].values()]
    named = {one[kind]["name"] for one in bindings for kind in ("exchange", "queue") if "name" in one.get(kind, {})}
    assert named == {"bso.commands", "bso.events", "bso.replay", "bso.dead-letters"}
    assert named <= declared


def test_every_command_has_its_reply() -> None:
    assert set(ANSWERS) == set(COMMANDS)
    assert {*ANSWERS.values(), "problem"} == set(REPLIES)


@given(command=odd_commands)
@searching(300)
def test_every_command_that_can_be_sent_is_as_described(command: do.Command) -> None:
    try:
        message = command_message(command)
    except (MalformedMessage, ValueError):
        return  # it cannot be sent
    assert not differences(message, f"command.{wire_name(type(command))}")


def test_whole_lives_of_jobs_are_as_described() -> None:
    for life in (a_life_in_full(), a_life_of_refusals()):
        for reply in life.replies:
            message = encode_reply(reply, command_id=command_id(1), job_id="job")
            assert not differences(message, f"reply.{wire_name(type(reply))}")
        for seq, event in enumerate(life.history, start=1):
            recorded = RecordedEvent(
                job_id="job", seq=seq, recorded_at=THE_EPOCH, command_id=command_id(seq), part=0, event=event
            )
            assert not differences(encode_event(recorded), f"event.{wire_name(type(event))}")


def test_each_command_is_answered_as_described() -> None:
    life = a_life_in_full()
    seen = {wire_name(type(reply)) for reply in life.replies}
    assert seen == set(ANSWERS.values())


def test_a_message_that_differs_is_not_as_described() -> None:
    message = json.loads(command_message(do.AllowBatchSize(batch_size=32)))
    for wrong in ({"schema": "2.0"}, {"type": "delete_job"}, {"job_id": "a/b"}, {"body": {"batch_size": "many"}}):
        assert differences(json.dumps(message | wrong).encode(), "command.allow_batch_size")


def a_life_in_full() -> JobLife:
    """A job that gets every command, and refuses none."""
    life = JobLife()
    life.register(num_pruning_rounds=1)
    for _ in range(8):
        trial = life.begin()
        life.send(do.RenewLease(trial_number=trial.trial_number, trial_id=trial.trial_id))
        life.report(trial, cost=10.0, metric=float("nan"))
        life.converge(trial, cost=100.0)
    lapsing = life.begin()
    row = life.rows[lapsing.trial_number]
    assert row.lease_expires_at is not None
    life.now = row.lease_expires_at
    life.send(
        do.ExpireLease(trial_number=row.trial_number, trial_id=row.trial_id, lease_expires_at=row.lease_expires_at)
    )
    life.finish(life.begin(), Outcome.INFEASIBLE, "out_of_memory: CUDA out of memory")
    measured = (do.PowerMeasurement(power_limit_w=300.0, average_power_w=280.0, samples_per_s=1000.0),)
    life.send(do.ReportPowerProfile(batch_size=32, hardware=A100, measurements=measured))
    probes = (do.EpochCostProbe(batch_size=16, time_s=1.0, energy_j=1.0, variance=0.01),)
    probing = life.begin()
    life.send(
        do.ReportEpochCosts(trial_number=probing.trial_number, trial_id=probing.trial_id, probes=probes, time_s=0.1)
    )
    life.finish(probing, Outcome.INTERRUPTED, "killed")
    life.send(do.AllowBatchSize(batch_size=64))
    life.send(do.GrantJob(login="bob", right=Right.TRAIN))
    life.send(do.GiveJob(login="carol"))
    life.register(version="v2")
    assert life.happened(JobRespecified)[-1].inherited is not None
    life.send(do.DescribeJob())
    life.send(do.DeleteJob())
    return life


def a_life_of_refusals() -> JobLife:
    """A job that finds nothing that converges, and is asked what it refuses."""
    life = JobLife()
    life.send(do.DescribeJob())
    life.register(batch_sizes=[16, 32], default_batch_size=32, max_epochs=1)
    for _ in range(12):
        life.report(life.begin(), cost=10.0)
    life.send(do.RegisterJob(spec={"eta_knob": float("nan")}))
    life.send(do.AllowBatchSize(batch_size=17))
    return life


KINDS = (("command", COMMANDS), ("reply", REPLIES), ("event", all_events()))
