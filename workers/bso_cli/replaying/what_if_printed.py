"""What ``bso replay what-if`` prints: what is known of the batch sizes, what alternatives would have cost, and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bso.domain.hardware import EnergyMethod
from bso.domain.quantities import NOTHING, joules, more_or_less, percent, seconds
from bso.replay.what_if.answers import Estimate
from bso.replay.what_if.recorded import CONVERGED_RUNS_NEEDED, End
from bso.replay.what_if.worlds import epoch_price
from bso_cli.jobs_printed import ENERGY_IS_ASSUMED
from bso_cli.tables import Table, table
from bso_cli.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from bso.replay.what_if.alternatives import Alternative
    from bso.replay.what_if.answers import Answer
    from bso.replay.what_if.recorded import Record

_UNKNOWN = "unknown"
_MEANS = (
    "Means, or bounds between which they lie because trainings were stopped; in brackets what 95% of lives have. "
    "Costs are by the alternative's own eta, and so is the one that they are compared with."
)


def known_table(record: Record) -> Table:
    """What was recorded of each batch size, and whether that is enough."""
    is_assumed = record.hardware.energy_method is EnergyMethod.ASSUMED
    energy_column = () if is_assumed else ("energy of an epoch",)
    right = ("batch size", "converged", "stopped", "failed", "time of an epoch", *energy_column)
    made = table(
        f"{record.job_id}, version {record.version_number}, on {record.hardware.describe()}",
        *right,
        "left out",
        right=right,
        flexible=("left out",),
        notes=[ENERGY_IS_ASSUMED] if is_assumed else [],
    )
    for size in _sizes(record):
        why = record.why_unknown(size)
        price = None if why else epoch_price(record, size)
        energy = joules(price.energy_j) if price and record.has_energy([size]) else NOTHING
        made.add_row(
            str(size),
            *(str(record.count(size, end)) for end in End),
            seconds(price.time_s) if price else NOTHING,
            *([] if is_assumed else [energy]),
            why or "",
            style="dim" if why else None,
        )
    return made


def answers_table(
    record: Record,
    compared: Sequence[Alternative],
    found: Sequence[Answer | None],
    *,
    seeds: int,
    recurrences: int,
) -> Table:
    """What really happened, and what each alternative would have cost."""
    right = ("cost", "against as it is", "takes")
    made = table(
        f"A recurrence, in the mean of {recurrences}, {counted(seeds, 'seed')}",
        "what if",
        *right,
        right=right,
        flexible=("what if",),
        notes=[_MEANS],
    )
    if record.models:
        made.add_row(*_recorded_cells(record))
        made.add_section()
    for one, answer in zip(compared, found, strict=True):
        made.add_row(one.name, *_cells(record, answer, recurrences))
        made.add_section()
    return made


def choices(record: Record, compared: Sequence[Alternative], found: Sequence[Answer | None]) -> Iterator[str]:
    """The shares of the trainings that each alternative gives to each batch size, a line each."""
    yield "Shares of the trainings, by batch size:"
    if record.paid:
        trials = [trial.batch_size for trial in record.paid]
        yield f"    as recorded: {_shares({size: trials.count(size) / len(trials) for size in _sizes(record)})}"
    for one, answer in zip(compared, found, strict=True):
        shares = f"{_UNKNOWN}, since {one.unknown}" if answer is None else _shares(answer.choices)
        yield f"    {one.name}: {shares}"


def notes(record: Record, compared: Sequence[Alternative]) -> Iterator[str]:
    """What a reader should know before believing the table."""
    as_it_is = compared[0]
    count, share = _on_unknown(record, as_it_is)
    if as_it_is.left_out and count:
        yield (
            f"The batch sizes left out had {counted(count, 'recorded trial')}, and {percent(share)} of the recorded "
            "cost; what trying them would add to an alternative is unknown."
        )
    if as_it_is.unknown is None and as_it_is.default_batch_size != record.spec.default_batch_size:
        yield (
            f"The job's default batch size {record.spec.default_batch_size} is left out: "
            f"simulated lives begin with {as_it_is.default_batch_size}."
        )
    if record.untold_trials:
        yield f"The log begins after trial {record.untold_trials}: earlier ones are not considered."
    if as_it_is.unknown is not None:
        yield (
            f"Nothing can be said: no batch size of the job has {CONVERGED_RUNS_NEEDED} converged trainings "
            f"on this hardware{', with their energy' if record.spec.eta_knob else ''}."
        )


def as_json(
    record: Record,
    compared: Sequence[Alternative],
    found: Sequence[Answer | None],
    *,
    seeds: int,
    recurrences: int,
) -> dict[str, Any]:
    """Everything as one object: joules and seconds over all recurrences, shares as numbers from 0 to 1."""
    count, share = _on_unknown(record, compared[0])
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
            "time_s": sum(trial.time_s for trial in record.paid),
            "energy_j": _recorded_energy_j(record),
            "untold_trials": record.untold_trials,
            "trials_of_unknown_batch_sizes": count,
            "cost_share_of_unknown_batch_sizes": share,
        },
        "batch_sizes": [_size(record, size) for size in _sizes(record)],
        "alternatives": [_alternative(record, one, answer) for one, answer in zip(compared, found, strict=True)],
    }


def _sizes(record: Record) -> list[int]:
    return sorted({*record.spec.batch_sizes, *record.tried_batch_sizes})


def _on_unknown(record: Record, as_it_is: Alternative) -> tuple[int, float]:
    """How many recorded trials ran batch sizes that are unknown, and their share of the recorded cost."""
    unknown = [size for size in _sizes(record) if size not in as_it_is.batch_sizes]
    eta = record.spec.eta_knob
    whole = record.paid_for(eta_knob=eta)
    count = sum(trial.batch_size in unknown for trial in record.paid)
    return count, record.paid_for(eta_knob=eta, batch_sizes=unknown) / whole if whole else 0.0


def _has_energy(record: Record) -> bool:
    return record.has_energy(record.known_batch_sizes)


def _recorded_energy_j(record: Record) -> float | None:
    return sum(trial.energy_j for trial in record.paid) if _has_energy(record) else None


def _recorded_cells(record: Record) -> list[str]:
    models, paid = record.models, record.paid
    energy_j = _recorded_energy_j(record)
    return [
        "as recorded",
        joules(record.paid_for(eta_knob=record.spec.eta_knob) / models),
        "",
        _taken(
            record,
            None if energy_j is None else _exactly(energy_j / models),
            _exactly(sum(trial.time_s for trial in paid) / models),
            _exactly(len(paid) / models),
        ),
    ]


def _exactly(value: float) -> Estimate:
    return Estimate(least=value, most=value, low=value, high=value)


def _cells(record: Record, answer: Answer | None, recurrences: int) -> list[str]:
    if answer is None:
        return [_UNKNOWN, "", ""]
    share = answer.more_cost_share
    return [
        _with_interval(answer.cost.over(recurrences), joules),
        "" if share is None else _with_interval(share, more_or_less),
        _taken(
            record,
            None if answer.energy_j is None else answer.energy_j.over(recurrences),
            answer.time_s.over(recurrences),
            answer.trials.over(recurrences),
        ),
    ]


def _taken(record: Record, energy_j: Estimate | None, time_s: Estimate, trials: Estimate) -> str:
    """Energy, where it was measured, time and trainings."""
    energy = ["energy unknown" if energy_j is None else _mean(energy_j, joules)]
    if record.hardware.energy_method is EnergyMethod.ASSUMED:
        energy = []
    return ",\n".join((*energy, _mean(time_s, seconds), _mean(trials, lambda value: f"{value:.2f} trainings")))


def _with_interval(estimate: Estimate, words: Callable[[float], str]) -> str:
    return f"{_mean(estimate, words)}\n({_range(words(estimate.low), words(estimate.high))})"


def _mean(estimate: Estimate, words: Callable[[float], str]) -> str:
    return _range(words(estimate.least), words(estimate.most))


def _range(low: str, high: str) -> str:
    """Both ends, once if they are the same, with one unit if that is the same."""
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if unit == high.partition(' ')[2] else low} to {high}"


def _shares(choices: Mapping[int, float]) -> str:
    return ", ".join(f"{size}: {percent(share)}" for size, share in choices.items() if share)


def _size(record: Record, size: int) -> dict[str, Any]:
    why = record.why_unknown(size)
    price = None if why else epoch_price(record, size)
    return {
        "batch_size": size,
        **{end.value: record.count(size, end) for end in End},
        "epoch_time_s": price and price.time_s,
        "epoch_energy_j": price.energy_j if price and record.has_energy([size]) else None,
        "unknown": why,
    }


def _alternative(record: Record, one: Alternative, answer: Answer | None) -> dict[str, Any]:
    spec = one.spec
    said: dict[str, Any] = {
        "name": one.name,
        "changes": one.changes,
        "policy": spec.policy,
        "eta_knob": spec.eta_knob,
        "beta_knob": spec.beta_knob,
        "window_size": spec.window_size,
        "batch_sizes": one.batch_sizes,
        "default_batch_size": one.default_batch_size,
        "left_out": one.left_out,
        "unknown": one.unknown,
        "recorded_cost_j": None
        if spec.eta_knob and not _has_energy(record)
        else record.paid_for(eta_knob=spec.eta_knob),
    }
    names = ("cost_j", "energy_j", "time_s", "trials", "more_cost_j", "more_cost_share")
    if answer is None:
        return {**said, **dict.fromkeys(names), "choices": None}
    estimates = (
        answer.cost,
        answer.energy_j,
        answer.time_s,
        answer.trials,
        answer.more_cost,
        answer.more_cost_share,
    )
    return {**said, **dict(zip(names, map(_estimate, estimates), strict=True)), "choices": answer.choices}


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"least": estimate.least, "most": estimate.most, "ci95": [estimate.low, estimate.high]}
