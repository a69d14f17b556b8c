"""Workloads: what is trained, and when a training has succeeded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bso.simulator.csv_files import TraceRow, read_rows

WorkloadKey = tuple[str, str, str]
"""Dataset, network and optimizer: what the rows of a trace are distinguished by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training and its job settings. ``default_batch_size`` is lowered to the largest one that a GPU can run."""

    dataset: str
    network: str
    optimizer: str
    target_metric: float
    max_epochs: int
    default_batch_size: int
    higher_is_better_metric: bool = True

    @property
    def key(self) -> WorkloadKey:
        """What its rows in a trace are distinguished by."""
        return self.dataset, self.network, self.optimizer


WORKLOADS_FILE = "workloads.csv"
WORKLOAD_COLUMNS = ("dataset", "network", "optimizer", "target_metric", "max_epochs", "default_batch_size")
_IS_LOWER_BETTER = {"": False, "false": False, "true": True}

_KNOWN = (
    Workload(
        dataset="cifar100",
        network="shufflenetv2",
        optimizer="adadelta",
        target_metric=0.6,
        max_epochs=100,
        default_batch_size=1024,
    ),
    Workload(
        dataset="squad",
        network="bert_base_uncased",
        optimizer="adamw",
        target_metric=84.0,
        max_epochs=6,
        default_batch_size=32,
    ),
    Workload(
        dataset="librispeech",
        network="deepspeech2",
        optimizer="adamw",
        target_metric=40.0,
        max_epochs=16,
        default_batch_size=256,
        higher_is_better_metric=False,
    ),
    Workload(
        dataset="movielens-1m",
        network="ncf",
        optimizer="adam",
        target_metric=0.41,
        max_epochs=100,
        default_batch_size=1024,
    ),
    Workload(
        dataset="imagenet",
        network="resnet50",
        optimizer="adadelta",
        target_metric=0.65,
        max_epochs=100,
        default_batch_size=256,
    ),
    Workload(
        dataset="sentiment140",
        network="bert_base_uncased",
        optimizer="adamw",
        target_metric=0.84,
        max_epochs=10,
        default_batch_size=128,
    ),
)

KNOWN_WORKLOADS: Mapping[WorkloadKey, Workload] = {workload.key: workload for workload in _KNOWN}
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
