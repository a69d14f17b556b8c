"""How far predicted slopes are from measured ones, per octave of the batch size."""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.benchmarks.decisions.markdown import markdown
from tests.benchmarks.first_run.cases import Case
from tests.benchmarks.first_run.noise_scale import best_scale, fitted_slope, predicted, slopes
from tests.benchmarks.first_run.trainings import Measured, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of one way to predict slopes of ln epochs per octave: between neighbouring batch sizes, and of the line."""

    pairs: Sequence[float]
    lines: Sequence[float]


def errors_of(measured: Measured, guesses: Sequence[Mapping[int, float]]) -> Errors:
    """Predicted minus measured slopes; each guess is of ln epochs by batch size, up to a constant."""
    means = measured.means()
    pairs, lines = [], []
    for guess in guesses:
        there = {size: guess[size] for size in means}
        pairs += [ours - real for ours, real in zip(slopes(there), slopes(means), strict=True)]
        lines.append(fitted_slope(there) - fitted_slope(means))
    return Errors(pairs=pairs, lines=lines)


def guesses_of(case: Case, measured: Measured, other_slopes: Sequence[float]) -> dict[str, list[dict[int, float]]]:
    """Ln epochs by batch size, by the way to predict them; noise scales once for each training that measured one."""
    sizes = case.batch_sizes

    def by_noise(size: int, scale_of: Callable[[Run], float]) -> list[dict[int, float]]:
        return [predicted(sizes, scale_of(run)) for run in measured.runs[size] if run.norms]

    mean = statistics.fmean(other_slopes) if other_slopes else 0.0
    return {
        "first epoch, middle size": by_noise(case.middle, Run.early),
        "halfway, middle size": by_noise(case.middle, Run.halfway),
        "first epoch, smallest size": by_noise(sizes[0], Run.early),
        "halfway, smallest size": by_noise(sizes[0], Run.halfway),
        "slope 0": [dict.fromkeys(sizes, 0.0)],
        "mean slope of the other models": [{size: mean * math.log2(size) for size in sizes}],
        "best noise scale in hindsight": [predicted(sizes, best_scale(measured.means()))],
    }


def standard_errors(measured: Measured) -> tuple[list[float], float]:
    """Of the measured slopes between neighbours, and of the slope of the line."""
    variances = measured.variances()
    sizes = list(variances)
    pairs = [
        math.sqrt(variances[size] + variances[larger]) / math.log2(larger / size)
        for size, larger in itertools.pairwise(sizes)
    ]
    places = [math.log2(size) for size in sizes]
    spread = sum((place - statistics.fmean(places)) ** 2 for place in places)
    weights = [(place - statistics.fmean(places)) / spread for place in places]
    line = math.sqrt(sum(weight**2 * variances[size] for weight, size in zip(weights, sizes, strict=True)))
    return pairs, line


def rms(values: Sequence[float]) -> float:
    """The root of their mean square."""
    return math.sqrt(statistics.fmean(value**2 for value in values))


def measured_table(found: Mapping[str, tuple[Case, Mapping[str, Measured]]]) -> str:
    """What was measured of each model: epochs, their slope, and noise scales."""
    rows = []
    for name, (case, by_rule) in found.items():
        for rule, measured in by_rule.items():
            means, (_, line) = measured.means(), standard_errors(measured)
            epochs = [f"{math.exp(means[size]):.2f}" if size in means else "-" for size in case.batch_sizes]
            scales = [
                f"{statistics.median(scale_of(run) for run in measured.runs[size] if run.norms):.0f}"
                for size in (case.middle, case.batch_sizes[0])
                for scale_of in (Run.early, Run.halfway)
            ]
            rows.append(
                [
                    name,
                    rule,
                    " ".join(epochs),
                    f"{fitted_slope(means):.2f} ± {line:.2f}",
                    *scales,
                    f"{best_scale(means):.0f}",
                ]
            )
    header = ["model", "rates", "epochs, smallest to largest", "slope ± standard error"]
    scales = ["first epoch, middle", "halfway, middle", "first epoch, smallest", "halfway, smallest", "in hindsight"]
    return markdown([*header, *(f"noise scale: {each}" for each in scales)], rows)


def errors_table(found: Mapping[str, tuple[Case, Mapping[str, Measured]]], rule: str) -> tuple[str, dict[str, Any]]:
    """Mean absolute errors of slopes between neighbours by model, and means over models; the same as figures."""
    lines = {name: fitted_slope(by_rule[rule].means()) for name, (_, by_rule) in found.items()}
    errors: dict[str, dict[str, Errors]] = {}
    for name, (case, by_rule) in found.items():
        others = [slope for other, slope in lines.items() if other != name]
        for way, guesses in guesses_of(case, by_rule[rule], others).items():
            errors.setdefault(way, {})[name] = errors_of(by_rule[rule], guesses)
    noise = {name: standard_errors(by_rule[rule]) for name, (_, by_rule) in found.items()}
    chance = [rms(noise[name][0]) for name in found]
    rows = []
    for way, by_name in errors.items():
        absolute = [statistics.fmean(map(abs, by_name[name].pairs)) for name in found]
        square = statistics.fmean(rms(one.pairs) ** 2 for one in by_name.values())
        whole = [
            statistics.fmean(absolute),
            math.sqrt(square),
            math.sqrt(max(0.0, square - rms(chance) ** 2)),
            statistics.fmean(statistics.fmean(map(abs, one.lines)) for one in by_name.values()),
        ]
        rows.append([way, *(f"{each:.2f}" for each in [*absolute, *whole])])
    cells = [*(f"{each:.2f}" for each in chance), "", f"{rms(chance):.2f}", ""]
    rows.append(["standard error of measured slopes", *cells, f"{rms([line for _, line in noise.values()]):.2f}"])
    headings = ["all: mean absolute", "all: rms", "all: rms without chance", "all: of the line"]
    header = [f"error per octave, {rule} rates", *found, *headings]
    figures = {way: {name: asdict(one) for name, one in by_name.items()} for way, by_name in errors.items()}
    return markdown(header, rows), figures
