"""Who trains: this process alone, or several processes that share the recurrences between them."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from bso.domain.errors import BsoError
from bso_cli.demo.training import DemoJob, News, train

if TYPE_CHECKING:
    from bso_cli.demo.progress import DemoProgress

LOOK_S = 1.0


class TrainingDied(BsoError):
    """A training process ended without finishing its work."""


def train_alone(job: DemoJob, numbers: range, progress: DemoProgress) -> None:
    """Train one recurrence after the other in this process."""
    from bso_cli.demo.digits import use_one_core

    with use_one_core():
        for recurrence in numbers:
            train(job, recurrence=recurrence, tell=progress.show)
            progress.recurrence_ended()


def train_together(job: DemoJob, numbers: range, progress: DemoProgress, *, processes: int) -> None:
    """Train in several processes at once, each taking the next recurrence when it is free.

    Raises what a training raised, or TrainingDied.
    """
    context = multiprocessing.get_context("spawn")
    work: Any = context.SimpleQueue()
    news: Any = context.Queue()
    for recurrence in [*numbers, *[None] * processes]:
        work.put(recurrence)
    crew = [context.Process(target=_work, args=(job, work, news), daemon=True) for _ in range(processes)]
    try:
        for process in crew:
            process.start()
        _follow(news, crew, progress, recurrences=len(numbers))
        for process in crew:
            process.join()
    finally:
        for process in crew:
            process.kill()


def _work(job: DemoJob, work: Any, news: Any) -> None:
    from bso_cli.demo.digits import use_one_core

    try:
        with use_one_core():
            while (recurrence := work.get()) is not None:
                train(job, recurrence=recurrence, tell=news.put)
                news.put(None)
    except BsoError as error:
        news.put(str(error))
    except KeyboardInterrupt:
        return


def _follow(news: Any, crew: Sequence[BaseProcess], progress: DemoProgress, *, recurrences: int) -> None:
    take: Callable[..., News | str | None] = news.get
    while recurrences:
        try:
            said = take(timeout=LOOK_S)
        except queue.Empty:
            if not any(process.is_alive() for process in crew):
                raise TrainingDied("the training processes ended before their work was done; see above") from None
            continue
        if isinstance(said, News):
            progress.show(said)
        elif isinstance(said, str):
            raise TrainingDied(said)
        else:
            recurrences -= 1
            progress.recurrence_ended()
