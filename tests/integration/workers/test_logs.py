"""Logs of a worker."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
import structlog

from bso_broker.connection import BrokerAddress
from bso_broker.publisher import PublishingLink
from bso_workers.logs import configure_logs
from bso_workers.settings import LogFormat
from tests.defences.hostile_text import hostile, obeyed
from tests.servers import eventually_async


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_lines_carry_action_level_and_time() -> None:
    stream = io.StringIO()
    configure_logs(level="info", style="json", stream=stream)
    structlog.get_logger("x").info("decided", action="trial_started", job_id="a-job")
    structlog.get_logger("x").debug("too much")
    logging.getLogger("bso_broker.session").warning("the %s broke", "link", extra={"action": "broker_lost"})
    logging.getLogger("bso_broker.session").debug("too much")
    ours, theirs = map(json.loads, stream.getvalue().splitlines())
    assert (ours["message"], ours["action"], ours["job_id"], ours["level"]) == (
        "decided",
        "trial_started",
        "a-job",
        "info",
    )
    assert (theirs["message"], theirs["action"], theirs["level"]) == ("the link broke", "broker_lost", "warning")
    assert ours["timestamp"].endswith("Z")


def test_each_json_line_begins_with_the_same_keys_whoever_logs_it() -> None:
    stream = io.StringIO()
    configure_logs(level="info", style="json", stream=stream)
    structlog.get_logger("ours").info("decided", job_id="a-job", action="trial_started")
    logging.getLogger("bso_broker.session").warning("broke", extra={"link": "publisher", "action": "broker_lost"})
    logging.getLogger("asyncio").error("a library's own")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {tuple(line)[:5] for line in lines} == {("timestamp", "level", "logger", "action", "message")}
    assert [(line["logger"], line["action"]) for line in lines] == [
        ("ours", "trial_started"),
        ("bso_broker.session", "broker_lost"),
        ("asyncio", None),
    ]


@pytest.mark.parametrize(
    ("code", "words", "level"),
    [
        (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'", "warning"),
        (504, "CHANNEL_ERROR - expected 'channel.open'", "warning"),
        (504, "CHANNEL_ERROR - second 'channel.open' seen", "error"),
        (541, "INTERNAL_ERROR", "error"),
    ],
)
def test_a_broker_that_closes_a_connection_as_it_should_is_no_error(code: int, words: str, level: str) -> None:
    stream = io.StringIO()
    configure_logs(level="info", style="json", stream=stream)
    form = 'Unexpected connection close from remote "%s", Connection.Close(reply_code=%r, reply_text=%r)'
    logging.getLogger("aiormq.connection").error(form, "a connection", code, words)
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["level"], line["logger"]) == (level, "aiormq.connection")
    assert words in line["message"]


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_traceback_shows_no_values_of_variables(style: LogFormat) -> None:
    stream = io.StringIO()
    configure_logs(level="info", style=style, stream=stream)
    password = "hunter2"
    try:
        raise ValueError(len(password))
    except ValueError:
        structlog.get_logger("x").exception("boom", action="crashed")
    assert "ValueError: 7" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_auto_is_for_people_on_a_terminal_and_for_programs_elsewhere() -> None:
    for stream, is_json in ((Terminal(), False), (io.StringIO(), True)):
        configure_logs(level="info", style="auto", stream=stream)
        structlog.get_logger("x").info("hello", action="greeted")
        assert stream.getvalue().startswith("{") is is_json


@pytest.mark.parametrize(
    ("environ", "is_drawn"),
    [({}, True), ({"TERM": "dumb"}, False), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)],
)
def test_colours_are_for_terminals_that_have_them_and_users_who_want_them(
    environ: dict[str, str], is_drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    configure_logs(level="info", style="auto", stream=stream)
    structlog.get_logger("x").info("hello", action="greeted")
    assert ("\x1b[" in stream.getvalue()) is is_drawn


async def test_that_a_broker_cannot_be_reached_is_told_once() -> None:
    stream = io.StringIO()
    configure_logs(level="info", style="json", stream=stream)
    link = PublishingLink(BrokerAddress(url="amqp://guest:guest@127.0.0.1:1/"))
    failures = 0

    def count() -> None:
        nonlocal failures
        failures += link.last_error is not None

    link.on_change = count
    link.start()
    await eventually_async(lambda: failures >= 3)
    await link.stop()
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line["action"] == "broker_unreachable"


BAD = hostile("PWNED")


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_hostile_text_is_shown_in_records_of_any_logger(style: LogFormat, stream: type[io.StringIO]) -> None:
    log = stream()
    configure_logs(level="debug", style=style, stream=log)
    ours, theirs = structlog.get_logger(BAD), logging.getLogger("aiormq.connection")
    ours.info(BAD, action=BAD, job_id=BAD, reasons={BAD: BAD}, names=[BAD], error=ValueError(BAD), **{BAD: 1})
    theirs.error("%s said %r", BAD, BAD, extra={"answer": BAD, BAD: BAD}, stack_info=True)
    logging.getLogger("py.warnings").warning(BAD)
    try:
        raise ValueError(BAD)
    except ValueError:
        ours.exception("it broke", reason=BAD)
        theirs.exception("it broke: %s", BAD)
    written = log.getvalue()
    assert obeyed(written, is_drawn=log.isatty()) == []
    assert written.count("PWNED") > 15
    lines = re.sub(r"\x1b\[[\d;]*m", "", written).splitlines()
    assert len([line for line in lines if line and not line.startswith(" ")]) == 5


def test_programs_read_the_same_from_a_line_as_was_logged() -> None:
    stream = io.StringIO()
    configure_logs(level="info", style="json", stream=stream)
    structlog.get_logger("x").info(BAD, reason=BAD)
    line = json.loads(stream.getvalue())
    assert (line["message"], line["reason"]) == (BAD, BAD)
