"""A job on a real GPU: what each batch size costs, and how soon the default policy finds the one that costs least.

    python -m tests.gpu.study --out study.json

First a sweep: every batch size is trained with several seeds, measured from outside of the optimizer. Then the job
recurs with an optimizer that knows nothing of the sweep. The data are scikit-learn's digits, made larger, shifted,
rotated and noisy, and lie on the GPU; the network is convolutional, and its learning rate grows with the batch size.
Energy and time are the GPU's own and the clock's; nothing of the GPU is set.
"""

# ruff: noqa: T201, TID251  # it prints, and measures time

import argparse
import importlib
import json
import logging
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bso.domain.progress import cost_of
from bso_client import BatchSizeOptimizer, EnergyMonitor, JobSpec, LearningRate, Trial
from tests.integration.client.scripts import recorded_trials

BATCH_SIZES = (64, 128, 256, 512, 768, 1024, 2048, 4096)
DEFAULT_BATCH_SIZE = 256
ETA = 0.5
SIDE = 32
NIGHTS_SHOWN = (10, 20, 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training of the sweep: until the target, or until it was given up."""

    batch_size: int
    seed: int
    epochs: int
    has_converged: bool
    time_s: float
    energy_j: float
    cost: float
    metrics: tuple[float, ...]


class Job:
    """The data, on the GPU, and one training with them."""

    def __init__(self, *, device: str, samples: int, noise: float, width: int, rate: float) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.device, self.width = device, width
        self.rate = LearningRate(rate, reference_batch_size=128, rule="linear")
        generator = self.torch.Generator().manual_seed(0)
        images, labels = self._digits(generator)
        split = 1300  # images of one part are not in the other, in whatever form
        self.training = self._varied(images[:split], labels[:split], samples, noise, generator)
        self.validation = self._varied(images[split:], labels[split:], 4000, noise, generator)

    def _digits(self, generator: Any) -> tuple[Any, Any]:
        load_digits: Any = importlib.import_module("sklearn.datasets").load_digits
        digits = load_digits()
        order = self.torch.randperm(len(digits.target), generator=generator)
        images = self.torch.tensor(digits.images, dtype=self.torch.float32).unsqueeze(1)[order] / 8.0 - 1.0
        return images, self.torch.tensor(digits.target)[order]

    def _varied(self, images: Any, labels: Any, count: int, noise: float, generator: Any) -> tuple[Any, Any]:
        """So many images, each one of those given: enlarged, turned, moved, and under noise."""
        torch = self.torch
        chosen = torch.randint(len(images), (count,), generator=generator)
        angle = (torch.rand(count, generator=generator) - 0.5) * 0.8
        scale = 1.1 + 0.5 * torch.rand(count, generator=generator)
        moved = (torch.rand(count, 2, generator=generator) - 0.5) * 0.6
        turn = torch.stack(
            [
                torch.stack([scale * angle.cos(), -scale * angle.sin(), moved[:, 0]], 1),
                torch.stack([scale * angle.sin(), scale * angle.cos(), moved[:, 1]], 1),
            ],
            1,
        )
        grid = torch.nn.functional.affine_grid(turn, (count, 1, SIDE, SIDE), align_corners=False)
        varied = (
            torch.nn.functional.grid_sample(images[chosen] + 1.0, grid, align_corners=False, padding_mode="zeros") - 1.0
        )
        varied += noise * torch.randn(varied.shape, generator=generator)
        return varied.to(self.device), labels[chosen].to(self.device)

    def model(self) -> Any:
        """A convolutional network."""
        nn = self.torch.nn
        layers: list[Any] = []
        channels = 1
        for width in (self.width, 2 * self.width, 4 * self.width):
            for before in (channels, width):
                layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
            channels = width
        layers += [nn.Flatten(), nn.Linear(channels * (SIDE // 8) ** 2, 10)]
        return nn.Sequential(*layers).to(self.device)

    def epochs(self, batch_size: int, seed: int, *, finished: Callable[[float], bool]) -> None:
        """Train with new weights until ``finished(accuracy)`` says so after an epoch."""
        torch = self.torch
        torch.manual_seed(seed)
        model = self.model()
        images, labels = self.training
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate.at(batch_size), momentum=0.9)
        warm_up = max(1, 10_000 // batch_size)  # steps: large rates want one
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm_up))
        is_over = False
        while not is_over:
            model.train()
            order = torch.randperm(len(labels), device=self.device)
            for first in range(0, len(labels) - batch_size + 1, batch_size):
                batch = order[first : first + batch_size]
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
                schedule.step()
            is_over = finished(self._accuracy(model))

    def _accuracy(self, model: Any) -> float:
        images, labels = self.validation
        model.eval()
        with self.torch.no_grad():
            right = [
                (model(images[first : first + 1000]).argmax(1) == labels[first : first + 1000]).float().mean()
                for first in range(0, len(labels), 1000)
            ]
        return float(sum(right) / len(right))


def measured_run(
    job: Job, monitor: EnergyMonitor, batch_size: int, seed: int, *, target: float, max_epochs: int, max_power_w: float
) -> Run:
    """One training, measured as a whole."""
    metrics: list[float] = []

    def finished(metric: float) -> bool:
        metrics.append(metric)
        return metric >= target or len(metrics) >= max_epochs or not math.isfinite(metric)

    monitor.begin_window("run")
    job.epochs(batch_size, seed, finished=finished)
    window = monitor.end_window("run")
    energy_j, time_s = window.total_energy, window.time
    return Run(
        batch_size=batch_size,
        seed=seed,
        epochs=len(metrics),
        has_converged=metrics[-1] >= target,
        time_s=time_s,
        energy_j=energy_j,
        cost=cost_of(energy_j=energy_j, time_s=time_s, eta_knob=ETA, max_power_w=max_power_w),
        metrics=tuple(metrics),
    )


def mean_costs(runs: Sequence[Run]) -> dict[int, float]:
    """The mean cost [J] of each batch size all of whose trainings converged."""
    sizes = dict.fromkeys(run.batch_size for run in runs)
    of_size = {size: [run for run in runs if run.batch_size == size] for size in sizes}
    return {
        size: statistics.mean(run.cost for run in own)
        for size, own in of_size.items()
        if all(run.has_converged for run in own)
    }


def sweep_lines(runs: Sequence[Run]) -> list[str]:
    """The sweep as a table."""
    means = mean_costs(runs)
    best = min(means.values(), default=math.nan)
    lines = [
        f"{'batch':>6} {'epochs':>16} {'time [s]':>18} {'energy [J]':>20} {'W':>5} {'cost [J]':>9} {'above best':>11}"
    ]
    for size in dict.fromkeys(run.batch_size for run in runs):
        own = [run for run in runs if run.batch_size == size]
        power_w = sum(run.energy_j for run in own) / sum(run.time_s for run in own)
        above = f"{100 * (means[size] / best - 1):+10.1f}%" if size in means else "   not all converged"
        lines.append(
            f"{size:>6} {'/'.join(str(run.epochs) for run in own):>16} "
            f"{'/'.join(f'{run.time_s:.2f}' for run in own):>18} {'/'.join(f'{run.energy_j:.0f}' for run in own):>20} "
            f"{power_w:>5.0f} {statistics.mean(run.cost for run in own):>9.0f} {above}"
        )
    return lines


def night(job: Job, spec: JobSpec, state_dir: Path, outside: EnergyMonitor, number: int) -> dict[str, Any]:
    """One recurrence: the trials that it took, as the optimizer counts them, and as they look from outside."""
    trials: list[dict[str, Any]] = []
    with BatchSizeOptimizer(spec, state_dir=state_dir, recurrence_id=f"night-{number}", learning_rate=job.rate) as bso:
        for trial in bso.trials():
            outside.begin_window("trial")
            with trial:

                def finished(metric: float, trial: Trial = trial) -> bool:
                    trial.on_evaluate(metric)
                    return trial.finished

                job.epochs(trial.batch_size, 1000 * number + trial.attempt, finished=finished)
            window = outside.end_window("trial")
            trials.append(
                {
                    "batch_size": trial.batch_size,
                    "epochs": trial.epoch,
                    "outcome": trial.outcome.value if trial.outcome else None,
                    "cost": trial.cost,
                    "reason": trial.reason,
                    "outside_energy_j": window.total_energy,
                    "outside_time_s": window.time,
                }
            )
    return {"night": number, "trials": trials, "cost": sum(each["cost"] for each in trials)}


def night_line(made: Mapping[str, Any], means: Mapping[int, float]) -> str:
    """A night in a line."""
    best = min(means.values(), default=math.nan)
    tried = ", ".join(
        f"{each['batch_size']}{'' if each['outcome'] == 'converged' else ' (' + str(each['outcome']) + ')'}"
        for each in made["trials"]
    )
    last = made["trials"][-1]["batch_size"]
    above = f"{100 * (means[last] / best - 1):+.1f} %" if last in means else "not in the sweep's means"
    return f"night {made['night']:>2}: {tried:<40} cost {made['cost']:>7.0f} J; {last} is {above} above the best mean"


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=BATCH_SIZES)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each batch size in the sweep (3)")
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--target", type=float, default=0.96, help="accuracy (0.96)")
    parser.add_argument("--max-epochs", type=int, default=30)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--noise", type=float, default=0.7)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.004, help="learning rate at batch size 128 (0.004)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--most-seconds", type=float, default=180.0, help="for the nights; no other begins after that (180)"
    )
    return parser.parse_args()


def sweep(job: Job, monitor: EnergyMonitor, arguments: argparse.Namespace, *, max_power_w: float) -> list[Run]:
    """Every batch size with every seed, the seeds in the outer loop: what drifts, drifts for all sizes."""

    def run(size: int, seed: int, target: float) -> Run:
        return measured_run(
            job, monitor, size, seed, target=target, max_epochs=arguments.max_epochs, max_power_w=max_power_w
        )

    for size in arguments.sizes:  # libraries choose their kernels, once for each shape
        run(size, 0, 0.0)
    return [run(size, seed, arguments.target) for seed in range(arguments.seeds) for size in arguments.sizes]


def recur(
    job: Job, monitor: EnergyMonitor, arguments: argparse.Namespace, folder: Path, means: Mapping[int, float]
) -> list[dict[str, Any]]:
    """The nights, each printed when it is over."""
    spec = JobSpec(
        job_id="study",
        batch_sizes=arguments.sizes,
        default_batch_size=DEFAULT_BATCH_SIZE if DEFAULT_BATCH_SIZE in arguments.sizes else arguments.sizes[0],
        target_metric=arguments.target,
        max_epochs=arguments.max_epochs,
        eta_knob=ETA,
    )
    ends_s = time.monotonic() + arguments.most_seconds
    nights: list[dict[str, Any]] = []
    for number in range(1, arguments.nights + 1):
        if time.monotonic() > ends_s:
            print("the time is over")
            break
        nights.append(night(job, spec, folder / "state", monitor, number))
        print(night_line(nights[-1], means), flush=True)
    return nights


def add_what_was_counted(nights: Sequence[dict[str, Any]], folder: Path) -> None:
    """Energy and time of each trial as the optimizer has recorded them, and how they differ from those outside."""
    trials = [trial for each in nights for trial in each["trials"]]
    recorded = recorded_trials(folder, "study")
    for trial, counted in zip(trials, recorded, strict=True):
        trial |= {"energy_j": counted.energy_j, "time_s": counted.time_s}
    for name in ("energy_j", "time_s"):
        ratios = [each[name] / each[f"outside_{name}"] for each in trials]
        sums = sum(each[name] for each in trials) / sum(each[f"outside_{name}"] for each in trials)
        print(
            f"{name} counted by the optimizer / around the trial: {sums:.3f} of all, "
            f"{min(ratios):.3f} to {max(ratios):.3f} of one"
        )


def main() -> None:
    """Sweep, recur, print, write."""
    began_s = time.monotonic()
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    arguments = parsed()
    job = Job(
        device=arguments.device,
        samples=arguments.samples,
        noise=arguments.noise,
        width=arguments.width,
        rate=arguments.rate,
    )
    folder = arguments.out.parent if arguments.out else Path(tempfile.mkdtemp())
    with EnergyMonitor() as monitor:
        [gpu] = monitor.gpus
        max_power_w, limit_w = gpu.power_limits_w[1], gpu.power_limit_w
        print(f"{gpu.name}, at most {max_power_w:g} W, limit {limit_w:g} W; eta {ETA}, target {arguments.target}")
        runs = sweep(job, monitor, arguments, max_power_w=max_power_w)
        means, swept_s = mean_costs(runs), time.monotonic() - began_s
        print("\n".join(sweep_lines(runs)), flush=True)
        nights = recur(job, monitor, arguments, folder, means)
    for number in NIGHTS_SHOWN:
        if number <= len(nights):
            print("after", night_line(nights[number - 1], means))
    if nights:
        add_what_was_counted(nights, folder)
    all_s = time.monotonic() - began_s
    print(f"swept after {swept_s:.0f} s, done after {all_s:.0f} s")
    if arguments.out is not None:
        report = {
            "arguments": {name: str(value) for name, value in vars(arguments).items()},
            "gpu": {"name": gpu.name, "max_power_w": max_power_w, "limit_w": limit_w},
            "sweep": [asdict(run) for run in runs],
            "mean_costs": means,
            "nights": nights,
            "swept_s": swept_s,
            "all_s": all_s,
        }
        arguments.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
