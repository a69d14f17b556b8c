"""Train an image classifier on CIFAR-100, ImageNet, or any folder of images; each run is one recurrence of the job.

    python train.py --smoke                                              # generated images, some seconds, no GPU
    python train.py --cifar100 ~/data/cifar-100-binary --arch shufflenet
    torchrun --nproc-per-node 8 train.py --folder ~/data/imagenet --arch resnet50 --amp bfloat16 --workers 8
    bso recur 20 -- python train.py --cifar100 ~/data/cifar-100-binary --power-limit cost

Data parallel under torchrun. With `--checkpoint FILE` a training that was ended before its time (SIGTERM, a lost
machine) is resumed by the next run, in the same trial. Needs torch; Pillow for `--folder`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from arguments import SMOKE, parsed

from bso_client import (
    Accumulation,
    BatchSizeOptimizer,
    CannotResume,
    Cost,
    Energy,
    JobSpec,
    LearningRate,
    MaxSlowdown,
    PowerLimitOptimizer,
    Time,
    Trial,
)

try:
    import torch
    from checkpoint import Checkpoint
    from data import ImageData, cifar100, folder, generated
    from models import make_model
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Subset
except ImportError as missing:
    sys.exit(f"this example needs torch ({missing}): pip install torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is the same for every trial."""

    data: ImageData
    device: torch.device
    checkpoint: Checkpoint
    arguments: Namespace


def main() -> None:
    """Train until there is a model."""
    logging.basicConfig(format="%(message)s")
    arguments = parsed()
    device = begin(arguments)
    torch.manual_seed(arguments.seed)
    data = load(arguments)
    make_model(
        arguments.arch, classes=data.classes, image_size=data.image_size
    )  # a wrong name ends here, not in a trial
    checkpoint = Checkpoint(arguments.checkpoint)
    setting = Setting(data=data, device=device, checkpoint=checkpoint, arguments=arguments)
    spec = JobSpec(
        job_id=arguments.job_id or f"{data.name}-{arguments.arch.replace(':', '-')}",
        batch_sizes=arguments.batch_sizes,
        default_batch_size=arguments.default_batch_size,
        target_metric=arguments.target or data.target,
        max_epochs=arguments.max_epochs,
        eta_knob=arguments.eta_knob,
    )
    rate = LearningRate(
        arguments.learning_rate,
        reference_batch_size=arguments.reference_batch_size,
        rule=arguments.learning_rate_rule,
    )
    with BatchSizeOptimizer(spec, learning_rate=rate) as bso:
        if checkpoint.saved is not None:
            bso.load_state_dict(checkpoint.saved["bso"])
        try:
            for trial in bso.trials():
                train(bso, trial, setting)
        except CannotResume as error:
            sys.exit(f"{error} ({arguments.checkpoint} is of no use any more: delete it)")
    if is_parallel():
        distributed.destroy_process_group()


def train(bso: BatchSizeOptimizer, trial: Trial, setting: Setting) -> None:
    """One training with one batch size."""
    data, device, checkpoint, arguments = setting.data, setting.device, setting.checkpoint, setting.arguments
    accumulation = trial.accumulation(arguments.max_micro_batch_size)
    training, validation = loaders(data, accumulation.micro_batch_size, arguments)
    model = make_model(arguments.arch, classes=data.classes, image_size=data.image_size).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=trial.learning_rate, momentum=0.9, weight_decay=arguments.weight_decay
    )
    schedule = schedule_of(optimizer, arguments)
    scaler = torch.amp.GradScaler(device.type, enabled=arguments.amp == "float16")
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    checkpoint.restore(parts)
    step = Step(DistributedDataParallel(model) if is_parallel() else model, optimizer, scaler, accumulation, setting)
    with trial, power_limit(bso, accumulation, arguments) as power:
        while not trial.finished:
            if is_parallel():
                training.sampler.set_epoch(int(trial.epoch))
            train_epoch(step, power.steps(training) if power else training)
            schedule.step()
            trial.on_evaluate(accuracy(model, validation, device))  # on every rank
            say(f"  epoch {trial.epoch:g}: accuracy {trial.metric:.3f}, cost {trial.cost:.3g} J")
            if not trial.finished:
                with bso.paused():  # saving is no part of the training's cost
                    checkpoint.save(parts, bso)
    checkpoint.forget()
    how = f"batch size {trial.batch_size}, {accumulation.steps} x {accumulation.micro_batch_size} on each rank"
    say(f"trial {trial.trial_number}: {how}, {trial.epoch:g} epochs: {trial.outcome_reason}")


class Step:
    """One update of the weights, out of as many micro batches as the accumulation says."""

    def __init__(
        self, model: nn.Module, optimizer: Any, scaler: Any, accumulation: Accumulation, setting: Setting
    ) -> None:
        self.model = model
        self.accumulation = accumulation
        self._optimizer = optimizer
        self._scaler = scaler
        self._device = setting.device
        self._amp = setting.arguments.amp

    def take(self, images: torch.Tensor, labels: torch.Tensor, *, is_last: bool) -> None:
        """Add a micro batch's gradients; the last one of a batch updates the weights."""
        waits = is_parallel() and not is_last
        with self.model.no_sync() if waits else contextlib.nullcontext():  # ranks exchange gradients once per update
            with autocast(self._device, self._amp):
                scores = self.model(images.to(self._device, non_blocking=True))
                loss = nn.functional.cross_entropy(scores, labels.to(self._device, non_blocking=True))
            self._scaler.scale(loss / self.accumulation.steps).backward()
        if is_last:
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self._optimizer.zero_grad()


def train_epoch(step: Step, batches: Iterable[Any]) -> None:
    """Go over this rank's share of the training images once."""
    step.model.train()
    for (images, labels), is_last in step.accumulation.over(batches):
        step.take(images, labels, is_last=is_last)


@torch.no_grad()
def accuracy(model: nn.Module, loader: Any, device: torch.device) -> float:
    """The share of images, all ranks' together, whose class is found."""
    model.eval()
    counts = torch.zeros(2, device=device)
    for images, labels in loader:
        right = model(images.to(device)).argmax(1) == labels.to(device)
        counts += torch.tensor([right.sum(), right.numel()], device=device)
    if is_parallel():
        distributed.all_reduce(counts)
    return float(counts[0] / counts[1])


def load(arguments: Namespace) -> ImageData:
    """The images that the arguments ask for."""
    if arguments.cifar100 is not None:
        return cifar100(arguments.cifar100)
    if arguments.folder is not None:
        return folder(arguments.folder, size=arguments.image_size)
    return generated(arguments.generated, classes=SMOKE.classes, size=SMOKE.image_size)


def loaders(data: ImageData, micro_batch_size: int, arguments: Namespace) -> tuple[Any, Any]:
    """What brings this rank's training and validation images."""
    rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if is_parallel() else (0, 1)
    sampler: Any = DistributedSampler(data.training) if is_parallel() else RandomSampler(data.training)
    shared = {"num_workers": arguments.workers, "pin_memory": torch.cuda.is_available()}
    own = Subset(data.validation, range(rank, len(data.validation), ranks))
    return DataLoader(data.training, micro_batch_size, sampler=sampler, **shared), DataLoader(own, 256, **shared)


def schedule_of(optimizer: torch.optim.Optimizer, arguments: Namespace) -> Any:
    """The rate rises for some epochs, which large batches need, then falls as a cosine until the last epoch."""
    rest = max(1, arguments.max_epochs - arguments.warmup_epochs)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, total_iters=max(1, arguments.warmup_epochs))
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rest)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [arguments.warmup_epochs])


def autocast(device: torch.device, amp: str) -> Any:
    """Where the type of numbers is chosen for each operation; nothing without --amp."""
    return contextlib.nullcontext() if amp == "none" else torch.autocast(device.type, getattr(torch, amp))


def power_limit(bso: BatchSizeOptimizer, accumulation: Accumulation, arguments: Namespace) -> Any:
    """What finds the GPU's best power limit meanwhile; None inside without --power-limit."""
    if arguments.power_limit == "off":
        return contextlib.nullcontext()
    selections = {"cost": Cost(), "energy": Energy(), "time": Time(), "slowdown": MaxSlowdown(1.1)}
    return PowerLimitOptimizer(
        bso,
        selection=selections[arguments.power_limit],
        step_w=arguments.power_limit_step,
        samples_per_step=accumulation.micro_batch_size,
    )


def begin(arguments: Namespace) -> torch.device:
    """Join torchrun's process group, if there is one; returns the device to train on."""
    if "RANK" not in os.environ:
        return torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if not torch.cuda.is_available() or arguments.device == "cpu":
        distributed.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", device_id=device)
    return device


def is_parallel() -> bool:
    """Whether this is one of several ranks."""
    return distributed.is_available() and distributed.is_initialized()


def say(words: str) -> None:
    """Print, once for all ranks."""
    if not is_parallel() or distributed.get_rank() == 0:
        print(words, flush=True)


if __name__ == "__main__":
    main()
