"""The loaders under torchrun: two processes over gloo, one trial."""

import itertools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from bso.domain.trial import Outcome
from bso_client import RELAUNCH
from tests.integration.client.scripts import recorded_trials
from tests.servers import PATIENCE_S

PREAMBLE = """
import json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset, RandomSampler, TensorDataset
from bso_client import *
from bso_client.integrations.torch import EvaluationLoader, TrainingLoader

dist.init_process_group("gloo")
rank = dist.get_rank()
numbers = TensorDataset(torch.arange(100.0))
spec = JobSpec(job_id="job", policy="pruning_thompson",
    batch_sizes=[8, 16, 32], default_batch_size=16, target_metric=0.9, max_epochs=2)
bso = BatchSizeOptimizer(spec, rank_timeout=120.0)

def values(loader):
    return [batch.tolist() for (batch,) in loader]

def note(**what):
    Path(os.environ["SAID"], f"rank-{rank}.json").write_text(json.dumps(what))

"""


def flat(batches: list[list[float]]) -> list[float]:
    """The numbers, one after the other."""
    return list(itertools.chain.from_iterable(batches))


def run(folder: Path, body: str) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """Run a script in two processes; returns how it ended, and what each rank has written."""
    script = folder / "script.py"
    script.write_text(PREAMBLE + textwrap.dedent(body))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
    environ |= {"BSO_STATE_DIR": str(folder / "state"), "BSO_ENERGY": "assumed", "SAID": str(folder)}
    environ |= {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False)
    noted = [folder / f"rank-{rank}.json" for rank in range(2)]
    return done, [json.loads(path.read_text()) if path.exists() else None for path in noted]


def test_each_rank_loads_its_part_with_its_share_of_the_batch_size(tmp_path: Path) -> None:
    done, (first, second) = run(
        tmp_path,
        """
        for trial in bso.trials():
            train_loader = TrainingLoader(numbers, trial, shuffle=True, drop_last=True)
            eval_loader = EvaluationLoader(numbers, train_loader, batch_size=64)
            epochs, evaluated = [], []
            with trial:
                for epoch in train_loader.epochs():
                    epochs.append(values(train_loader))
                    evaluated.append(values(eval_loader))
                    train_loader.report_metric([[0.1, 0.3], [0.8, 1.0]][epoch][rank])
        note(epochs=epochs, evaluated=evaluated, metric=trial.metric, batch=[trial.batch_size, trial.local_batch_size])
        """,
    )

    assert done.returncode == 0, done.stderr
    assert first["batch"] == second["batch"] == [16, 8]
    for epoch in range(2):
        parts = [flat(noted["epochs"][epoch]) for noted in (first, second)]
        assert [len(batch) for batch in first["epochs"][epoch]] == [8] * 6
        assert not set(parts[0]) & set(parts[1])
    assert first["epochs"][0] != first["epochs"][1], "each epoch has another order"
    evaluated = [flat(noted["evaluated"][0]) for noted in (first, second)]
    assert sorted(evaluated[0] + evaluated[1]) == [float(number) for number in range(100)]
    assert first["metric"] == second["metric"] == pytest.approx(0.9), "the mean of all ranks"
    (trial,) = recorded_trials(tmp_path)
    assert (trial.outcome, trial.reports) == (Outcome.CONVERGED, 2)


def test_a_model_trains_data_parallel_through_a_failure_and_an_out_of_memory_on_one_rank(tmp_path: Path) -> None:
    done, (first, second) = run(
        tmp_path,
        """
        inputs = torch.randn(160, 2, generator=torch.Generator().manual_seed(1))
        data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
        sizes = []
        for trial in bso.trials():
            sizes.append(trial.batch_size)
            torch.manual_seed(1)
            model = DistributedDataParallel(torch.nn.Linear(2, 2))
            updates = torch.optim.SGD(model.parameters(), lr=0.5)
            train_loader = TrainingLoader(data, trial, shuffle=True, max_micro_batch_size=2)
            with trial:
                for epoch in train_loader.epochs():
                    for (batch, answers), is_last in train_loader.accumulation.over(train_loader):
                        if trial.attempt == 1 and rank == 1:
                            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
                        model.require_backward_grad_sync = is_last and trial.attempt > 1
                        loss = torch.nn.functional.cross_entropy(model(batch), answers)
                        (loss / train_loader.accumulation.steps).backward()
                        if is_last:
                            updates.step()
                            updates.zero_grad()
                    with torch.no_grad():
                        right = [int((model.module(batch).argmax(1) == answers).sum()) for batch, answers in
                                 EvaluationLoader(data, train_loader)]
                    train_loader.report_metric(sum(right) / 80)
        weights = [model.module.weight.tolist()]
        note(sizes=sizes, weights=weights, converged=trial.converged, steps=train_loader.accumulation.steps)
        """,
    )

    assert done.returncode == 0, done.stderr
    assert first == second, "the ranks have trained one model"
    assert (first["sizes"], first["converged"], first["steps"]) == ([16, 8], True, 2)
    outcomes = [trial.outcome for trial in recorded_trials(tmp_path)]
    assert outcomes == [Outcome.INFEASIBLE, Outcome.CONVERGED]


def test_a_failure_of_the_one_loop_script_ends_every_rank_with_the_code_for_another_launch(tmp_path: Path) -> None:
    _done, noted = run(
        tmp_path,
        """
        train_loader = TrainingLoader(numbers, bso)
        try:
            for epoch in train_loader.epochs():
                train_loader.report_metric(0.1)
        except SystemExit as ended:
            note(code=ended.code, epoch=epoch)
            raise
        """,
    )

    assert noted == [{"code": RELAUNCH, "epoch": 1}] * 2
    assert [trial.outcome for trial in recorded_trials(tmp_path)] == [Outcome.NOT_CONVERGED]


def test_what_is_wrong_on_one_rank_is_raised_on_both_and_nobody_waits(tmp_path: Path) -> None:
    done, noted = run(
        tmp_path,
        """
        errors = []
        train_loader = TrainingLoader(numbers, bso)
        for epoch in train_loader.epochs():
            try:
                train_loader.report_metric("a word" if rank == 1 else 0.5)
            except InvalidReport as error:
                errors.append(str(error))
            train_loader.report_metric(0.95)
        note(errors=errors, outcome=train_loader.trial.outcome.value)
        """,
    )

    assert done.returncode == 0, done.stderr
    assert [each["outcome"] for each in noted] == ["converged", "converged"]
    assert all("a metric is one number, got the text" in each["errors"][0] for each in noted)


def test_a_sampler_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    done, noted = run(
        tmp_path,
        """
        try:
            TrainingLoader(numbers, bso, sampler=RandomSampler(numbers))
        except InvalidSetting as error:
            note(error=str(error))
        """,
    )

    assert done.returncode == 0, done.stderr
    assert all("each of the 2 ranks would load the same samples" in each["error"] for each in noted)


def test_a_stream_that_divides_itself_gives_every_rank_as_many_batches(tmp_path: Path) -> None:
    done, noted = run(
        tmp_path,
        """
        class Stream(IterableDataset):
            def __iter__(self):
                return ((torch.tensor(float(number)),) for number in range(rank, 101, 2))

        train_loader = TrainingLoader(Stream(), bso, samples_per_epoch=100)
        for epoch in train_loader.epochs():
            batches = values(train_loader)
            train_loader.report_metric(0.95)
        note(lengths=[len(batch) for batch in batches], first=batches[0][0])
        """,
    )

    assert done.returncode == 0, done.stderr
    assert noted == [{"lengths": [8, 8, 8, 8, 8, 8, 3], "first": 0.0}, {"lengths": [8, 8, 8, 8, 8, 8, 2], "first": 1.0}]


def test_uneven_shares_train_one_model_with_as_many_steps_on_each_rank(tmp_path: Path) -> None:
    done, (first, second) = run(
        tmp_path,
        """
        inputs = torch.randn(160, 2, generator=torch.Generator().manual_seed(1))
        data = TensorDataset(inputs, (inputs.sum(1) > 0).long(), torch.arange(160))
        spec = JobSpec(job_id="job", batch_sizes=[13, 31], default_batch_size=13, target_metric=0.9, max_epochs=9)
        bso = BatchSizeOptimizer(spec, uneven=True, rank_timeout=20.0)
        for trial in bso.trials():
            torch.manual_seed(1)
            model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
            updates = torch.optim.SGD(model.parameters(), lr=0.5)
            train_loader = TrainingLoader(data, trial, shuffle=True)
            eval_loader = EvaluationLoader(data, train_loader)
            epochs = []
            with trial:
                for epoch in train_loader.epochs():
                    epochs.append([])
                    for batch, answers, numbers in train_loader:
                        epochs[-1].append(numbers.tolist())
                        updates.zero_grad()
                        torch.nn.functional.cross_entropy(model(batch), answers).backward()
                        updates.step()
                    model.eval()
                    with torch.no_grad():  # in the wrapper, which exchanges the buffers in each step
                        right = [int((model(batch).argmax(1) == answers).sum()) for batch, answers, _ in eval_loader]
                    model.train()
                    train_loader.report_metric(sum(right) / 80)
        note(weights=model.module[0].weight.tolist(), converged=trial.converged, epochs=epochs,
             batch=[trial.batch_size, trial.local_batch_size], of_all=train_loader.accumulation.batch_size)
        """,
    )

    assert done.returncode == 0, done.stderr
    assert first["weights"] == second["weights"], "the ranks have trained one model"
    assert (first["converged"], first["batch"], second["batch"]) == (True, [13, 7], [13, 6])
    assert first["of_all"] == second["of_all"] == 13
    for mine, theirs in zip(first["epochs"], second["epochs"], strict=True):
        assert [len(batch) for batch in mine] == [7] * 12 + [2]
        assert [len(batch) for batch in theirs] == [6] * 12 + [2]
        assert sorted(flat(mine) + flat(theirs)) == list(range(160))


def test_a_sampler_of_equal_parts_is_refused_for_uneven_shares(tmp_path: Path) -> None:
    done, noted = run(
        tmp_path,
        """
        from torch.utils.data import DistributedSampler
        from bso_client.integrations.torch import ProportionalSampler
        spec = JobSpec(job_id="job", batch_sizes=[13], default_batch_size=13, target_metric=0.9)
        errors = []
        bso = BatchSizeOptimizer(spec, uneven=True)
        for trial in bso.trials():
            proportional = ProportionalSampler(numbers, 13)
            for arguments in (
                {"sampler": DistributedSampler(numbers)},
                {"max_micro_batch_size": 2},
                {"sampler": proportional, "drop_last": True},
            ):
                try:
                    TrainingLoader(numbers, trial, **arguments)
                except InvalidSetting as error:
                    errors.append(str(error))
            break
        note(errors=errors)
        """,
    )

    assert done.returncode == 0, done.stderr
    for each in noted:
        equal_parts, micro_batches, dropping = each["errors"]
        assert (
            "would make different numbers of steps: leave sampler out, and a ProportionalSampler is made" in equal_parts
        )
        assert "cannot be divided equally among 2 ranks, as micro batches and trainers need" in micro_batches
        assert dropping.endswith("pass drop_last=True to the ProportionalSampler")
