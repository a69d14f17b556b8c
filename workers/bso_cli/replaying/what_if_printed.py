"""What ``bso replay what-if`` prints: what is known of each batch size, what alternatives would cost, and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bso.domain.hardware import EnergyMethod
from bso.domain.quantities import NOTHING, counted, joules, more_or_less, percent, seconds
from bso.replay.what_if.record import End
from bso_cli.jobs_printed import ENERGY_IS_ASSUMED
from bso_cli.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from bso.replay.what_if.answers import AlternativeTotals, Estimate
    from bso.replay.what_if.record import Record

_KNOWN = "A training: what it costs to the target, and the interval that holds its true mean with 95%."
_MEANS = (
    "Means; in brackets the range of 95% of the simulated lives. Costs use the alternative's own eta, and so do the "
    "costs that they are compared with."
)


def known_table(record: Record) -> Table:
    """What is known of each batch size, and what is not."""
    is_assumed = record.hardware.energy_method is EnergyMethod.ASSUMED
    right = ("batch size", *(end.value if end is not End.CENSORED else "stopped" for end in End), "a training")
    made = Table(
        f"{record.job_id}, version {record.version_number}, on {record.hardware.describe()}",
        *right,
        "what it shows",
        right=right,
        flexible=("what it shows",),
        notes=[_KNOWN, *([ENERGY_IS_ASSUMED] if is_assumed else [])],
    )
    for size in record.batch_sizes:
        style = "bold green" if size == record.cheapest else "dim" if record.why_unknown(size) else None
        counts = (str(record.count(size, end)) for end in End)
        made.add_row(str(size), *counts, _cost(record, size), _shown(record, size), style=style)
    return made


def _cost(record: Record, size: int) -> str:
    standing = record.standing(size)
    if standing is None:
        return NOTHING
    if not record.count(size, End.CONVERGED):
        return f"over {joules(standing.low)}"
    return f"{joules(standing.cost)} ({_range(joules(standing.low), joules(standing.high))})"


def _shown(record: Record, size: int) -> str:
    """What the trainings of a batch size show in words."""
    standing, cheapest = record.standing(size), record.cheapest
    if standing is None:
        return f"left out: {why}" if (why := record.why_unknown(size)) else "does not fit in memory"
    if size == cheapest:
        return "cheapest so far"
    if standing.is_higher:
        return f"costs more than {cheapest}"
    if standing.more is None:
        return f"too near {cheapest} to tell"
    return f"{counted(standing.more, 'more training')} to tell from {cheapest}"


def answers_table(record: Record, found: Sequence[AlternativeTotals], *, seeds: int, recurrences: int) -> Table:
    """What really happened, and what each alternative would have cost."""
    right = ("cost", "against as it is", "takes")
    made = Table(
        f"A recurrence, in the mean of {recurrences}, {counted(seeds, 'seed')}",
        "what if",
        *right,
        right=right,
        flexible=("what if",),
        notes=[_MEANS],
    )
    if record.models:
        paid = record.paid_price.scaled(1.0 / record.models)
        paid_j = paid.energy_j if record.has_energy(record.known_batch_sizes) else None
        takes = _taken(record, paid_j, paid.time_s, len(record.paid) / record.models)
        made.add_row("as recorded", joules(record.cost(paid)), "", takes)
        made.add_section()
    for answer in found:
        energy_j = None if answer.energy_j is None else answer.energy_j.mean
        made.add_row(
            answer.alternative.name,
            _with_interval(answer.cost_j, joules),
            "" if answer.more_cost_share is None else _with_interval(answer.more_cost_share, more_or_less),
            _taken(record, energy_j, answer.time_s.mean, answer.trials.mean),
        )
        made.add_section()
    return made


def choices(record: Record, found: Sequence[AlternativeTotals]) -> Iterator[str]:
    """The shares of the trainings that each alternative gives to each batch size, a line each."""
    tried = Counter(trial.batch_size for trial in record.paid)
    yield "Shares of the trainings, by batch size:"
    yield f"    as recorded: {_shares({size: tried[size] / tried.total() for size in sorted(tried)})}"
    for answer in found:
        yield f"    {answer.alternative.name}: {_shares(answer.choices)}"


def notes(record: Record, found: Sequence[AlternativeTotals]) -> Iterator[str]:
    """What a reader should know before believing the tables."""
    as_it_is = found[0].alternative
    for answer in found[1:]:
        share = answer.more_cost_share
        if share is not None and share.low < 0 < share.high:
            yield f"{answer.alternative.name}: in some lives it costs more than the job as it is, in others less."
    converged = {size: record.count(size, End.CONVERGED) for size in as_it_is.batch_sizes}
    if once := [size for size, count in converged.items() if count == 1]:
        yield (
            f"Of {_listed(once)} a single training has reached its target: trainings are assumed to vary as those of "
            f"all batch sizes do, by {percent(record.epochs_spread.deviation)} in epochs and by "
            f"{percent(record.cost_spread.deviation)} in what an epoch costs."
        )
    if stopped := [size for size, count in converged.items() if not count and record.count(size, End.CENSORED)]:
        yield (
            f"Of {_listed(stopped)} no training has reached its target: half of the lives assume that one more epoch "
            "would have been enough, the others that it never converges."
        )
    if (default := record.spec.default_batch_size) not in as_it_is.batch_sizes:
        yield f"The job's default batch size {default} is left out: lives begin with another."
    if record.earlier_trials:
        yield f"The log begins after trial {record.earlier_trials}: earlier ones are not considered."


def as_json(record: Record, found: Sequence[AlternativeTotals], *, seeds: int, recurrences: int) -> dict[str, Any]:
    """Everything as one object: joules, seconds and trainings of a recurrence, shares as numbers from 0 to 1."""
    return {
        "job_id": record.job_id,
        "version_number": record.version_number,
        "hardware": record.hardware.describe(),
        "hardware_key": record.hardware.key,
        "recurrences": recurrences,
        "seeds": seeds,
        "recorded": {
            "trials": len(record.paid),
            "models": record.models,
            "time_s": record.paid_price.time_s,
            "energy_j": record.paid_price.energy_j if record.has_energy(record.known_batch_sizes) else None,
            "earlier_trials": record.earlier_trials,
        },
        "batch_sizes": [
            {
                "batch_size": size,
                **{end.value: record.count(size, end) for end in End},
                "standing": record.standing(size),
                "unknown": record.why_unknown(size),
            }
            for size in record.batch_sizes
        ],
        "alternatives": found,
    }


def _taken(record: Record, energy_j: float | None, time_s: float, trials: float) -> Sequence[str]:
    """Energy, unless it was assumed, time and trainings, a line each."""
    energy = ["energy unknown" if energy_j is None else joules(energy_j)]
    if record.hardware.energy_method is EnergyMethod.ASSUMED:
        energy = []
    return [*(f"{taken}," for taken in (*energy, seconds(time_s))), f"{trials:.2f} trainings"]


def _with_interval(estimate: Estimate, words: Callable[[float], str]) -> Sequence[str]:
    return [words(estimate.mean), f"({_range(words(estimate.low), words(estimate.high))})"]


def _range(low: str, high: str) -> str:
    """Both ends, once if they are the same, with one unit if that is the same."""
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if unit == high.partition(' ')[2] else low} to {high}"


def _shares(choices: Mapping[int, float]) -> str:
    return ", ".join(f"{size}: {percent(share)}" for size, share in choices.items() if share)


def _listed(sizes: Sequence[int]) -> str:
    *others, last = map(str, sizes)
    return f"{', '.join(others)} and {last}" if others else last
