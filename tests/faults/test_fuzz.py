"""The fuzz program, with a few hundred messages."""

import pytest

from tests.faults.fuzz import main


@pytest.mark.slow
def test_nonsense_breaks_nothing_and_every_dead_letter_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--messages", "500", "--seed", "11"]) == 0, capsys.readouterr().out
