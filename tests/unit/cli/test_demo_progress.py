"""The lines that the demo prints while it runs."""

from io import StringIO

import pytest
from rich.console import Console

from bso.domain.trial import Outcome
from bso_cli.demo.progress import DemoProgress
from bso_cli.demo.training import News


@pytest.mark.parametrize(("epoch", "said"), [(1, "1 epoch, 12 J"), (2, "2 epochs, 12 J"), (12, "12 epochs, 12 J")])
def test_a_line_counts_the_epochs_of_a_trial_that_has_ended(epoch: int, said: str) -> None:
    console = Console(width=120, file=StringIO())
    with DemoProgress(console, recurrences=1, has_choice=True) as progress:
        progress.show(
            News(
                recurrence=1,
                trial_number=3,
                batch_size=64,
                epoch=epoch,
                accuracy=0.9,
                cost=12.0,
                choice="64 is the default",
                outcome=Outcome.CONVERGED,
            )
        )
    assert isinstance(console.file, StringIO)
    [line] = [line for line in console.file.getvalue().splitlines() if "trial" in line]
    assert f" {said}" in " ".join(line.split())
    assert "1 epochs" not in line
    assert line.endswith("64 is the default")
