"""The command that goes on with what is left to publish, as it is printed when publishing is broken off."""

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bso.replay.publication import Wanted
from bso_cli.moments import moment_from
from bso_cli.replaying.publishing import PublishOptions, as_typed, command_for

NOW = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)


def test_it_keeps_what_was_asked_for_with_ages_as_points_in_time() -> None:
    since, before = moment_from("7d", now=NOW), moment_from("1h", now=NOW)
    wanted = Wanted(jobs=["a", "b"], types=["trial_ended", "job_deleted"], since=since, before=before, after=412)
    words = shlex.split(command_for(wanted, PublishOptions(rate=5.0)))
    assert words[:9] == ["bso", "replay", "publish", "a", "b", "--type", "trial_ended", "--type", "job_deleted"]
    assert words[9::2] == ["--since", "--before", "--after", "--rate"]
    later = NOW + timedelta(days=1)
    assert [moment_from(words[n], now=later) for n in (10, 12)] == [since, before]
    assert words[14::2] == ["412", "5.0"]


def test_it_says_nothing_that_was_not_asked_for() -> None:
    assert command_for(Wanted(after=7), PublishOptions()) == "bso replay publish --after 7"
    exported = PublishOptions(source=Path("my export.jsonl"), as_json=True)
    assert command_for(Wanted(), exported) == "bso replay publish --from 'my export.jsonl' --json"


def test_no_password_is_shown() -> None:
    addresses = {"--url": "amqps://op:s:e@cret@broker/v", "--database-url": "sqlite:////var/lib/bso.sqlite"}
    shown = ["--url", "amqps://op:***@broker/v", "--database-url", "sqlite:////var/lib/bso.sqlite"]
    assert as_typed(addresses) == shown
    options = PublishOptions(url=addresses["--url"], database_url=addresses["--database-url"])
    assert shlex.split(command_for(Wanted(), options))[3:] == shown
    assert as_typed({"--url": "amqp://broker:5672/"}) == ["--url", "amqp://broker:5672/"]
