"""Workloads: what is trained, and when a training has succeeded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bso.simulator.csv_files import TraceRow, read_rows

USUAL_SAMPLES = 50_000
"""In an epoch of a workload of which nothing else is known."""
WorkloadKey = tuple[str, str, str]
"""Dataset, network and optimizer: what the rows of a trace are distinguished by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training and its job settings. ``default_batch_size`` is lowered to the largest one that a GPU can run.

    ``samples``: in an epoch.
    """

    dataset: str
    network: str
    optimizer: str
    target_metric: float
    max_epochs: int
    default_batch_size: int
    higher_is_better_metric: bool = True
    samples: int = USUAL_SAMPLES

    @property
    def key(self) -> WorkloadKey:
        """What its rows in a trace are distinguished by."""
        return self.dataset, self.network, self.optimizer


WORKLOADS_FILE = "workloads.csv"
WORKLOAD_COLUMNS = ("dataset", "network", "optimizer", "target_metric", "max_epochs", "default_batch_size")
_IS_LOWER_BETTER = {"": False, "false": False, "true": True}

_LOWER_IS_BETTER = ("librispeech",)

KNOWN_WORKLOADS: Mapping[WorkloadKey, Workload] = {
    (dataset, network, optimizer): Workload(
        dataset=dataset,
        network=network,
        optimizer=optimizer,
        target_metric=target_metric,
        max_epochs=max_epochs,
        default_batch_size=default_batch_size,
        higher_is_better_metric=dataset not in _LOWER_IS_BETTER,
        samples=samples,
    )
    for dataset, network, optimizer, target_metric, max_epochs, default_batch_size, samples in (
        ("cifar100", "shufflenetv2", "adadelta", 0.6, 100, 1024, 50_000),
        ("squad", "bert_base_uncased", "adamw", 84.0, 6, 32, 87_599),
        ("librispeech", "deepspeech2", "adamw", 40.0, 16, 256, 28_539),
        ("movielens-1m", "ncf", "adam", 0.41, 100, 1024, 4_970_845),
        ("imagenet", "resnet50", "adadelta", 0.65, 100, 256, 1_281_167),
        ("sentiment140", "bert_base_uncased", "adamw", 0.84, 10, 128, 1_600_000),
    )
}
"""Workloads of the Zeus paper (NSDI '23) with the settings of its artifact."""


def known_workloads(folder: Path) -> tuple[Workload, ...]:
    """Those of the paper, and those that ``workloads.csv`` in a folder of traces describes, if it is there.

    The file counts where both know a dataset. Raises InvalidTrace, which names the line.
    """
    path = folder / WORKLOADS_FILE
    known = {workload.dataset: workload for workload in KNOWN_WORKLOADS.values()}
    if path.exists():
        known.update(read_workloads(path))
    return tuple(known.values())


def read_workloads(path: Path) -> Mapping[str, Workload]:
    """The workloads of a file, by dataset. Raises InvalidTrace, which names the line."""
    found: dict[str, Workload] = {}
    for row in read_rows(path, WORKLOAD_COLUMNS):
        workload = Workload(
            dataset=row.text("dataset"),
            network=row.text("network"),
            optimizer=row.text("optimizer"),
            target_metric=row.number("target_metric"),
            max_epochs=row.count("max_epochs"),
            default_batch_size=row.count("default_batch_size"),
            higher_is_better_metric=not _is_lower_better(row),
            samples=row.count("samples") if row.fields.get("samples", "").strip() else USUAL_SAMPLES,
        )
        if workload.dataset in found:
            raise row.invalid("dataset", "another one in each line")
        found[workload.dataset] = workload
    return found


def _is_lower_better(row: TraceRow) -> bool:
    said = row.fields.get("lower_is_better", "").strip().lower()
    if said not in _IS_LOWER_BETTER:
        raise row.invalid("lower_is_better", "true, false or empty")
    return _IS_LOWER_BETTER[said]
