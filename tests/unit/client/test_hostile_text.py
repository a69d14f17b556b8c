"""Text of others in a training's own log, and in what a script prints of its trial."""

import io
import logging
import pkgutil
from collections.abc import Iterator

import pytest

import bso_broker
import bso_client
from bso.domain.replies import Problem
from bso.domain.trial import Outcome
from bso.log_records import show_hidden
from bso_client import TrainFailed
from bso_client.errors import Refused, Unreachable
from bso_client.failures import described
from tests.defences.hostile_text import hostile, obeyed

BAD = hostile("PWNED")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a script's own handler writes, whose format shows all that a record has."""
    stream, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s %(job_id)s", defaults={"job_id": ""}))
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)


def own_loggers() -> list[str]:
    """The loggers of the client, and those of the modules below it that log."""
    modules = [f"bso_broker.{one.name}" for one in pkgutil.iter_modules(bso_broker.__path__)]
    return ["bso", *(name for name in modules if hasattr(pkgutil.resolve_name(name), "logger"))]


def test_each_logger_of_ours_shows_hidden_characters() -> None:
    assert len(own_loggers()) > 5
    assert [name for name in own_loggers() if show_hidden not in logging.getLogger(name).filters] == []
    assert bso_client.__all__


def test_a_record_of_ours_is_one_line_for_every_handler(log: io.StringIO) -> None:
    logger = logging.getLogger("bso")
    logger.warning("it said: %s, %r", BAD, BAD, extra={"job_id": BAD}, stack_info=True)
    try:
        raise ValueError(BAD)
    except ValueError:
        logger.exception("a report was given up")
    assert obeyed(log.getvalue()) == []
    assert log.getvalue().count("PWNED") == 4
    starts = [line for line in log.getvalue().splitlines() if not line.startswith("    ")]
    assert [line.split()[0] for line in starts] == ["WARNING", "ERROR"]


class Wordless:
    def __str__(self) -> str:
        raise OSError("it has no words")


def test_a_record_that_has_no_words_raises_nothing_at_who_logs() -> None:
    record = logging.LogRecord("bso", logging.WARNING, __file__, 1, "it said %s", (Wordless(),), None)
    assert show_hidden(record)
    assert record.msg == "it said %s"


ERRORS = [
    ValueError(BAD),
    Unreachable(BAD),
    Refused(Problem(type="refused", title=BAD, detail=BAD, fields={BAD: BAD})),
    TrainFailed(batch_size=8, trial_number=1, outcome=Outcome.CANCELLED, reason=BAD, should_retry=False),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_is_one_line_in_words(error: Exception) -> None:
    assert obeyed(described(error)) == []
    assert "\n" not in described(error)
    assert isinstance(error, ValueError) or obeyed(str(error)) == []
