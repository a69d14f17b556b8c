"""The help of `bso worker`: what it says of a setting can be typed as it stands there."""

import re

from typer.testing import CliRunner

from bso_cli.main import app


def test_an_asterisk_of_an_example_is_printed() -> None:
    printed = CliRunner().invoke(app, ["worker", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert '{"*": {"commands_per_s": 50}' in re.sub(r"[\s│]+", " ", printed)
