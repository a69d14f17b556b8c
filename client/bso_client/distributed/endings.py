"""What ranks report at an evaluation or at the end of a trial, and what that means for all of them. Rules."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from bso.domain.commands import Command, EpochCostProbe
from bso.domain.replies import Reply
from bso.domain.trial import Outcome
from bso_client.distributed.exchange import CarriedError
from bso_client.training.state import Consumption, Notice, Probed


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A reply that rank 0 has received, and the command that it answers."""

    command: Command
    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A rank has called on_evaluate. ``consumed`` is its own since this process began.

    ``received`` are, on rank 0, the replies since the ranks met last; ``probed`` is what this rank has probed, and not
    all ranks before.
    """

    epoch: float
    metric: float
    consumed: Consumption
    is_profiling: bool = False
    is_resumable: bool = False
    received: tuple[Received, ...] = ()
    probed: Probed = field(default_factory=Probed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A rank has left the training. ``is_error``: by an exception. ``received`` and ``probed`` as in Evaluated."""

    outcome: Outcome
    reason: str
    consumed: Consumption
    is_error: bool = False
    is_resumable: bool = False
    received: tuple[Received, ...] = ()
    probed: Probed = field(default_factory=Probed)


Said = Evaluated | Left | CarriedError
_EXCHANGE_DEVIATION = (
    0.2  # of ln cost: what ranks exchange in each step is in no probe, and weighs more in small batches
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the trial ends for all ranks.

    ``is_failure``: the batch size failed, and every rank can take part in the next trial. ``is_broken``: a rank has
    left with another exception, and takes part in nothing any more.
    """

    outcome: Outcome
    reason: str
    is_failure: bool
    is_broken: bool


def notices_of_metrics(said: Sequence[Evaluated]) -> Sequence[Notice]:
    """That ranks evaluate to different metrics, of which that of rank 0 counts; nothing where they agree."""
    shown = [str(each.metric) for each in said]  # two of NaN are alike
    if len(set(shown)) == 1:
        return ()
    words = (
        f"ranks evaluate to different metrics ({', '.join(shown[:8])}): that of rank 0 counts; reduce it over the "
        "ranks first if each evaluates a part of the data"
    )
    return [Notice(level=logging.WARNING, action="metrics_differ", words=words)]


def probed_by_all(found: Sequence[Probed]) -> Probed:
    """What all ranks have probed, at the same time, each with its part of a batch: the means of their epoch costs.

    A batch size that is too large for one rank is too large for all. Where one cannot go on, none does.
    """
    excluded = dict.fromkeys(size for each in found for size in each.out_of_memory)
    of_ranks = [{probe.batch_size: probe for probe in each.probes} for each in found]
    agreed = [size for size in of_ranks[0] if size not in excluded and all(size in probes for probes in of_ranks)]
    energies_j = [each.energy_j for each in found if each.energy_j is not None]
    return Probed(
        probes=tuple(_mean_of([probes[size] for probes in of_ranks]) for size in agreed),
        out_of_memory=tuple(excluded),
        time_s=max(each.time_s for each in found),
        energy_j=sum(energies_j) if len(energies_j) == len(found) else None,
        is_broken=any(each.is_broken for each in found),
    )


def _mean_of(probes: Sequence[EpochCostProbe]) -> EpochCostProbe:
    energies_j = [each.energy_j for each in probes if each.energy_j is not None]
    return EpochCostProbe(
        batch_size=probes[0].batch_size,
        time_s=sum(each.time_s for each in probes) / len(probes),
        energy_j=sum(energies_j) / len(probes) if len(energies_j) == len(probes) else None,
        variance=max(each.variance for each in probes) + (_EXCHANGE_DEVIATION**2 if len(probes) > 1 else 0.0),
    )


def ending_of_all(said: Sequence[Said]) -> Ending | None:
    """The end of the trial if a rank has left it: infeasible weighs more than an error, that more than anything else.

    A rank that ran out of memory makes the batch size infeasible for all; they go on together if no rank has left with
    another exception.
    """
    left = {rank: each for rank, each in enumerate(said) if isinstance(each, Left)}
    if not left:
        return None
    infeasible = {rank: each for rank, each in left.items() if each.outcome is Outcome.INFEASIBLE}
    others = {rank: each for rank, each in left.items() if each.is_error and rank not in infeasible}
    chosen = infeasible or others or left
    rank, first = min(chosen.items())
    is_said_by_all = all(isinstance(each, Left) and each.reason == first.reason for each in said)
    is_plain = rank == 0 or is_said_by_all or first.outcome is Outcome.INFEASIBLE
    return Ending(
        outcome=first.outcome,
        reason=first.reason if is_plain else f"rank {rank}: {first.reason}",
        is_failure=bool(infeasible) and not others,
        is_broken=bool(others),
    )
