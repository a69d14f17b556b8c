"""The tables of ``bso simulate`` on wide and on narrow screens."""

from io import StringIO

from rich.console import Console

from bso.simulator.intervals import MeanEstimate
from bso.simulator.summary import CaseSummary, Measures, Summary
from bso_cli.simulating.printed import tables_of
from tests.benchmarks.simulator import steep_problem

REGRETS = ("20", "50", "100", "full")


def printed_at(width: int) -> list[str]:
    console = Console(width=width, file=StringIO())
    console.print(*tables_of(_summary(), console))
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue().splitlines()


def test_a_wide_screen_shows_one_line_for_each_problem() -> None:
    lines = printed_at(200)
    (line,) = (line for line in lines if line.startswith("movielens-1m/v100 "))
    assert line.split()[:4] == ["movielens-1m/v100", "64", "150", "22.2"]
    assert line.split()[-3:] == ["1.25", "±", "0.11"]
    assert len([line for line in lines if line.startswith("all ")]) == 1


def test_on_a_narrow_screen_two_tables_show_all_of_it_unbroken() -> None:
    lines = printed_at(80)
    assert max(map(len, lines)) <= 80
    headings = " ".join(lines).split()
    for heading in ("best", "n", *(f"@{name}" for name in REGRETS), "run", "oracle", "default", "wrong", "tries"):
        assert heading in headings
    noted = " ".join(lines)
    assert noted.count("22.2 ± 10.4") == 2 * len(REGRETS)  # of the problem, and of all
    assert noted.count("1.25 ± 0.11") == 2
    assert len([line for line in lines if line.startswith("all ")]) == 2


def _summary() -> Summary:
    regret, share = MeanEstimate(mean=22.2, ci95=10.4), MeanEstimate(mean=0.53, ci95=0.1)
    measures = Measures(
        regret=dict.fromkeys(REGRETS, regret),
        cost_over_oracle={"full": share},
        cost_over_default={"full": share},
        wrong_share={"full": share},
        last5_energy_over_default=share,
        last5_time_over_default=share,
        tries_per_recurrence=MeanEstimate(mean=1.25, ci95=0.11),
        worst_run=28.7,
    )
    case = CaseSummary(
        name="movielens-1m/v100", problem=steep_problem(), oracle_batch_size=64, recurrences=150, measures=measures
    )
    return Summary(policy="pruning_thompson", seeds=(0, 1), problems=(case,), total=measures)
