"""What a training pays: for each evaluation that it reports, and once for the import."""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tests.benchmarks.digits import Classifier, split_for, use_one_core
from tests.benchmarks.figures import Figure, Figures, percentile
from tests.benchmarks.laboratory import Laboratory
from tests.benchmarks.trials import endless_trial

EVALUATIONS = 100
TRAINED_WITH = 512
"""A batch size whose epochs are short; a GPU's last minutes."""

IMPORTS = {
    "import json": "import json",
    "import sqlalchemy": "import sqlalchemy",
    "import bso_client": "import bso_client",
}
BASELINE = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What a number of evaluations took this process."""

    half_ms: float
    slow_ms: float
    cpu_ms: float


def measure(laboratory: Laboratory) -> list[Figure]:
    """The time that on_evaluate holds a training up, beside one epoch of a small training; the time of an import."""
    figures = Figures(benchmark="client")
    amqp_url, database_url = laboratory.rabbitmq.create_vhost(), laboratory.new_database()
    laboratory.start_workers(1, amqp_url=amqp_url, database_url=database_url)
    urls = {"embedded (SQLite)": f"sqlite:///{laboratory.folder}/client.sqlite", "through broker and worker": amqp_url}
    _measure_evaluations(laboratory, figures, urls)
    _measure_imports(laboratory, figures)
    return figures.found


def _measure_evaluations(laboratory: Laboratory, figures: Figures, urls: dict[str, str]) -> None:
    found: dict[str, list[Evaluated]] = {case: [] for case in urls}
    epochs_ms: list[float] = []
    with use_one_core():
        train = _epoch()
        for _ in range(laboratory.effort.repetitions):
            epochs_ms.append(_milliseconds(train))
            for case, url in urls.items():
                evaluations = laboratory.effort.of(EVALUATIONS)
                found[case].append(_evaluated(url, state_dir=str(laboratory.folder), evaluations=evaluations))
    figures.add("one epoch of a small training, batch size 512", "time", "ms", epochs_ms)
    for case, evaluated in found.items():
        held_up = [one.half_ms for one in evaluated]
        figures.add(f"on_evaluate, {case}", "time", "ms", held_up, peer="that epoch", peer_values=epochs_ms)
        figures.add(f"on_evaluate, {case}", "time, 99 %", "ms", [one.slow_ms for one in evaluated])
        figures.add(f"on_evaluate, {case}", "CPU", "ms", [one.cpu_ms for one in evaluated])


def _evaluated(url: str, *, state_dir: str, evaluations: int) -> Evaluated:
    with endless_trial("bench-client", url, state_dir=state_dir) as trial:
        trial.on_evaluate(0.1)
        cpu_before_s = time.process_time()
        taken_ms = [_milliseconds(partial(trial.on_evaluate, 0.1)) for _ in range(evaluations)]
        cpu_ms = (time.process_time() - cpu_before_s) / evaluations * 1e3
        assert trial.epoch == evaluations + 1, "every evaluation was reported"
    return Evaluated(half_ms=percentile(taken_ms, 0.5), slow_ms=percentile(taken_ms, 0.99), cpu_ms=cpu_ms)


def _epoch() -> Callable[[], object]:
    split = split_for(seed=1, recurrence=1)
    model = Classifier(batch_size=TRAINED_WITH, seed=1)

    def train() -> object:
        model.train_epoch(split)
        return model.accuracy(split)

    train()
    return train


def _milliseconds(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1e3


def _measure_imports(laboratory: Laboratory, figures: Figures) -> None:
    bare: list[float] = []
    found: dict[str, list[float]] = {case: [] for case in IMPORTS}
    for program in (BASELINE, *IMPORTS.values()):
        _python_cpu_ms(program)  # writes the bytecode
    for _ in range(2 * laboratory.effort.repetitions):
        bare.append(_python_cpu_ms(BASELINE))
        for case, program in IMPORTS.items():
            found[case].append(_python_cpu_ms(program))
    figures.add("python -c pass", "CPU", "ms", bare)
    for case, values in found.items():
        figures.add(f'python -c "{case}"', "CPU", "ms", values, peer="python -c pass", peer_values=bare)


def _python_cpu_ms(program: str) -> float:
    before = _children_cpu_s()
    command: Sequence[str] = [sys.executable, "-c", program]
    subprocess.run(command, check=True, timeout=60)
    return (_children_cpu_s() - before) * 1e3


def _children_cpu_s() -> float:
    """CPU time of children that have ended; the servers and workers are alive."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
