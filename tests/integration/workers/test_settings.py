"""Settings: options, environment, files, and what is said of wrong ones."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bso.domain.quotas import Quota
from bso_workers.bootstrap import warn_of_unchecked_logins
from bso_workers.errors import InvalidSettings
from bso_workers.logs import warn_of_misspelt
from bso_workers.settings import PREFIX, WorkerSettings, read_settings, variables_of

URLS = {"BSO_DATABASE_URL": "mysql://bso:secret@db/bso", "BSO_AMQP_URL": "amqp://bso:secret@broker/"}


def test_the_environment_is_read() -> None:
    settings = read_settings({**URLS, "BSO_BATCH_LIMIT": "7", "BSO_REQUIRE_USER_ID": "true", "BSO_LEASE_S": "90"})
    assert (settings.batch_limit, settings.require_user_id, settings.lease_s) == (7, True, 90.0)
    assert settings.rules.lease_s == 90.0


def test_options_beat_the_environment_and_those_not_given_do_not() -> None:
    settings = read_settings({**URLS, "BSO_BATCH_LIMIT": "7", "BSO_PREFETCH": "70"}, batch_limit=8, prefetch=None)
    assert (settings.batch_limit, settings.prefetch) == (8, 70)


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert read_settings({**URLS, "BSO_HEALTH_PORT": ""}).health_port == 8080


def test_secrets_can_be_files(tmp_path: Path) -> None:
    secret = tmp_path / "database_url"
    secret.write_text("mysql://bso:from-file@db/bso\n", encoding="utf-8")
    environ = {"BSO_AMQP_URL": URLS["BSO_AMQP_URL"], "BSO_DATABASE_URL_FILE": str(secret)}
    assert read_settings(environ).database_url == "mysql://bso:from-file@db/bso"


def test_an_option_beats_a_file(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("5", encoding="utf-8")
    environ = {**URLS, "BSO_BATCH_LIMIT_FILE": str(tmp_path / "limit")}
    assert read_settings(environ, batch_limit=6).batch_limit == 6
    assert read_settings(environ).batch_limit == 5


def test_a_missing_secret_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"BSO_DATABASE_URL_FILE names .*nowhere"):
        read_settings({"BSO_DATABASE_URL_FILE": str(tmp_path / "nowhere")})


def test_a_value_and_a_file_for_it_contradict_each_other() -> None:
    with pytest.raises(InvalidSettings, match="not both"):
        read_settings({**URLS, "BSO_AMQP_URL_FILE": "/run/secrets/amqp_url"})


def test_the_broker_is_also_known_as_the_clients_url() -> None:
    environ = {"BSO_DATABASE_URL": URLS["BSO_DATABASE_URL"], "BSO_URL": "amqp://elsewhere/"}
    assert read_settings(environ).amqp_url == "amqp://elsewhere/"


def test_a_clients_sqlite_file_is_no_broker() -> None:
    with pytest.raises(InvalidSettings, match="BSO_AMQP_URL: not set"):
        read_settings({"BSO_DATABASE_URL": URLS["BSO_DATABASE_URL"], "BSO_URL": "sqlite:////tmp/bso.db"})


def test_operators_are_separated_by_commas() -> None:
    assert read_settings({**URLS, "BSO_OPERATORS": "ada, grace,"}).operators == {"ada", "grace"}
    assert read_settings(URLS, operators=["ada"]).operators == {"ada"}


def test_teams_are_separated_by_commas() -> None:
    assert read_settings({**URLS, "BSO_TEAMS": "vision, nlp,"}).rules.teams == {"vision", "nlp"}
    with pytest.raises(InvalidSettings, match="vision-lab begins like team vision"):
        read_settings({**URLS, "BSO_TEAMS": "vision,vision-lab"})


@pytest.mark.parametrize(("more", "warnings"), [({}, 0), ({"BSO_REQUIRE_USER_ID": "false"}, 1)])
def test_logins_that_nobody_checks_are_warned_of(more: dict[str, str], warnings: int) -> None:
    with capture_logs() as logs:
        warn_of_unchecked_logins(read_settings({**URLS, **more}))
    assert [line["action"] for line in logs] == ["no_login_check"] * warnings


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("BATCH_LIMIT", "0"),
        ("BATCH_LIMIT", "many"),
        ("PREFETCH", "1"),
        ("LEASE_S", "-1"),
        ("LEASE_S", "nan"),
        ("LEASE_S", "inf"),
        ("HEALTH_PORT", "70000"),
        ("LOG_FORMAT", "xml"),
        ("LOG_LEVEL", "loud"),
        ("REQUIRE_USER_ID", "perhaps"),
    ],
)
def test_a_wrong_value_is_refused_and_named(name: str, text: str) -> None:
    with pytest.raises(InvalidSettings, match=rf"(?i){name}"):
        read_settings({**URLS, f"BSO_{name}": text})


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(InvalidSettings, match=r"BSO_AMQP_URL.*BSO_BATCH_LIMIT"):
        read_settings({"BSO_DATABASE_URL": "x", "BSO_BATCH_LIMIT": "0"})


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(read_settings(URLS))
    with pytest.raises(InvalidSettings) as caught:
        read_settings({**URLS, "BSO_BATCH_LIMIT": "0"})
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_every_setting_explains_itself() -> None:
    assert all(field.description for field in WorkerSettings.model_fields.values())


def test_quotas_are_limits_by_login_and_those_not_set_are_everybodys() -> None:
    text = '{"*": {"jobs": 5, "commands_per_s": 50}, "ci": {"jobs": null, "batch_sizes": 9}}'
    rules = read_settings({**URLS, "BSO_QUOTAS": text, "BSO_OPERATORS": "root"}).rules
    assert rules.quota_of("ann") == Quota(jobs=5, commands_per_s=50.0)
    assert rules.quota_of("ci") == Quota(jobs=None, batch_sizes=9, commands_per_s=50.0)
    assert rules.quota_of("root") == rules.quota_of(None) == read_settings(URLS).rules.quota_of("ann") == Quota()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("jobs=5", "expected JSON like"),
        ("[" * 100_000, "expected JSON like"),
        ("[]", "expected limits by login"),
        ('{"*": null}', "expected limits by login"),
        ('{"*": {"job": 5}}', "*.job: is not known"),
        ('{"*": {"jobs": -1}}', "*.jobs: expected 0 or more, got -1"),
        ('{"*": {"jobs": "7"}}', "*.jobs: expected a whole number, got '7'"),
        ('{"*": {"commands_per_s": 0}}', "*.commands_per_s: expected a number above 0, got 0"),
        ('{"*": {"commands_per_s": NaN}}', "*.commands_per_s: expected"),
        ('{"ci": {"jobs": 1}, "ci": {"jobs": 2}}', "a name stands there twice, among ci, ci"),
        ('{" ci": {"jobs": 1}}', "' ci' is no login"),
    ],
)
def test_what_is_no_quota_is_named(text: str, words: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        read_settings({**URLS, "BSO_QUOTAS": text})
    assert "BSO_QUOTAS: " in str(raised.value)
    assert words in str(raised.value)


def test_a_variable_that_looks_like_a_setting_and_is_none_is_warned_of() -> None:
    right = {"BSO_QUOTAS": "{}", "BSO_DATABASE_URL_FILE": "/run/secret", "BSO_LEASE_S": "5"}
    wrong = {
        "BSO_QUOTA": "{}",
        "BSO_OPERATOR": "me",
        "BSO_LEASES": "5",
        "BSO_DATABASEURL": "x",
        "BSO_AMQP_URL_FLE": "x",
    }
    of_others = {
        "BSO_PORT": "tcp://10.0.0.1",
        "BSO_SERVICE_HOST": "10.0.0.1",
        "BSO_GATEWAY_NAMES": "x",
        "BSO_IMAGE": "x",
    }
    with capture_logs() as logs:
        warn_of_misspelt({**right, **wrong, **of_others}, variables_of(WorkerSettings, prefix=PREFIX))
    assert {each["variable"]: each["meant"] for each in logs} == {
        "BSO_QUOTA": "BSO_QUOTAS",
        "BSO_OPERATOR": "BSO_OPERATORS",
        "BSO_LEASES": "BSO_LEASE_S",
        "BSO_DATABASEURL": "BSO_DATABASE_URL",
        "BSO_AMQP_URL_FLE": "BSO_AMQP_URL_FILE",
    }
    assert {each["log_level"] for each in logs} == {"warning"}
