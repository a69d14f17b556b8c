"""What changes while a job recurs."""

import pytest

from bso.simulator import InvalidSimulation, parse_drift


@pytest.mark.parametrize(
    ("text", "epochs", "epoch_cost"),
    [
        ("", (1, 1, 1), (1, 1, 1)),
        ("epochs:x2.5@50", (1, 2.5, 2.5), (1, 1, 1)),
        ("epoch-cost:x0.5", (1, 1, 1), (0.5, 0.5, 0.5)),
        ("epoch-cost:+1%", (1, 1, 1), (1, 1.01**49, 1.01**99)),
        ("epochs:-2%@50", (1, 1, 0.98**50), (1, 1, 1)),
        ("epochs:x2@20, epochs:x3@100, epoch-cost:x4@100", (1, 2, 6), (1, 1, 4)),
    ],
)
def test_factors_at_the_first_the_50th_and_the_100th_recurrence(
    text: str, epochs: tuple[float, ...], epoch_cost: tuple[float, ...]
) -> None:
    drift = parse_drift(text)
    assert [drift.epochs_factor(number) for number in (1, 50, 100)] == pytest.approx(epochs)
    assert [drift.epoch_cost_factor(number) for number in (1, 50, 100)] == pytest.approx(epoch_cost)


def test_the_optimum_moves_and_moves_back() -> None:
    drift = parse_drift("optimum@50,optimum@60")
    assert [drift.is_mirrored(number) for number in (49, 50, 59, 60)] == [False, True, True, False]


def test_the_optimum_moves_by_places() -> None:
    drift = parse_drift("optimum:+2@50,optimum:-3@60")
    assert [drift.places(number) for number in (49, 50, 59, 60)] == [0, 2, 2, -1]


@pytest.mark.parametrize(
    "text",
    ["epochs", "optimum:2", "optimum:+", "epochs:2", "x2.5@50", "optimum:x2", "epochs:x1.2.3", "epochs:1%", "@3"],
)
def test_what_is_not_understood_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidSimulation, match=r"examples are epochs:x2.5@50"):
        parse_drift(text)


@pytest.mark.parametrize("text", ["epochs:x0", "epochs:-100%", "optimum@0", "epochs:x9999999"])
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidSimulation, match=r"must (multiply|begin)"):
        parse_drift(text)
