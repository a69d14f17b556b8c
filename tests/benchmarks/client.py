"""What a training pays: for each evaluation that it reports, and once for the import."""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from tests.benchmarks.digits import Classifier, split_for, use_one_core
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.floors import fsyncs
from tests.benchmarks.journeys import Driven
from tests.benchmarks.laboratory import Laboratory
from tests.benchmarks.machine import Stopwatch
from tests.benchmarks.rows import row_of, spread, tell
from tests.benchmarks.trials import EMBEDDED, THROUGH_WORKER, endless_trial

EVALUATIONS = 100
TRAINED_WITH = 512
"""A batch size whose epochs are short; a GPU's last minutes."""

IMPORTS = {
    "import json": "import json",
    "import sqlalchemy": "import sqlalchemy",
    "import bso_client": "import bso_client",
}
BASELINE = "pass"
FLOOR = "a row and a commit in SQLite, bare driver"
PATHS = {EMBEDDED: ("embedded", 0), THROUGH_WORKER: ("client", 1), FLOOR: ("floor_fsync", 0)}
"""Names for the rows, and how many workers."""


def measure(laboratory: Laboratory) -> list[Figure]:
    """The time that on_evaluate holds a training up, beside one epoch of a small training; the time of an import."""
    figures = Figures(benchmark="client")
    _measure_evaluations(laboratory, figures)
    _measure_imports(laboratory, figures)
    return figures.found


def _measure_evaluations(laboratory: Laboratory, figures: Figures) -> None:
    crew = laboratory.crew(1)
    evaluations = laboratory.effort.of(EVALUATIONS)
    state_dir = str(laboratory.folder)
    windows: dict[str, Callable[[], Driven]] = {
        EMBEDDED: partial(_evaluated, f"sqlite:///{state_dir}/client.sqlite", state_dir, evaluations),
        THROUGH_WORKER: partial(_evaluated, crew.route.amqp_url, state_dir, evaluations, **crew.route.pids),
        FLOOR: partial(fsyncs, laboratory.folder, evaluations),
    }
    found: dict[str, list[Driven]] = {case: [] for case in windows}
    epochs_ms: list[float] = []
    with use_one_core():
        train = _epoch()
        for _ in range(laboratory.effort.repetitions):
            epochs_ms.append(_milliseconds(train))
            for case, window in windows.items():
                tries = laboratory.tries()
                while tries.want_more:
                    tries.add(window())
                found[case].append(tries.best)
    figures.add("one epoch of a small training, batch size 512", "time", "ms", epochs_ms)
    for case, driven in found.items():
        tell(figures, f"on_evaluate, {case}" if case != FLOOR else FLOOR, driven, peer=FLOOR, peers=found[FLOOR])
        path, workers = PATHS[case]
        laboratory.rows.append(row_of(path, driven, in_flight=1, workers=workers, case=case))


def _evaluated(url: str, state_dir: str, evaluations: int, **pids: Sequence[int]) -> Driven:
    with endless_trial("bench-client", url, state_dir=state_dir) as trial:
        trial.on_evaluate(0.1)
        with Stopwatch(**pids) as watch:
            latencies_s = [_milliseconds(partial(trial.on_evaluate, 0.1)) / 1e3 for _ in range(evaluations)]
        assert trial.epoch == evaluations + 1, "every evaluation was reported"
    return Driven(elapsed=watch.elapsed, latencies_s=tuple(latencies_s), replies=(b"",) * evaluations)


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
        row = {"path": "client", "case": case, "in_flight": 0, "workers": 0}
        laboratory.rows.append(
            {**row, "cpu_ms": spread([mine - other for mine, other in zip(values, bare, strict=True)])}
        )


def _python_cpu_ms(program: str) -> float:
    before = _children_cpu_s()
    command: Sequence[str] = [sys.executable, "-c", program]
    subprocess.run(command, check=True, timeout=60)
    return (_children_cpu_s() - before) * 1e3


def _children_cpu_s() -> float:
    """CPU time of children that have ended; the servers and workers are alive."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
