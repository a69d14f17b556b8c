"""The smaller parts: failures, command ids, notes, what was consumed."""

import errno
import json
import os
import uuid
from pathlib import Path
from typing import TypeVar

import pytest

from bso.domain.trial import OUT_OF_MEMORY, reason_code
from bso_client import Outcome
from bso_client.delivery.outbox import new_command_id
from bso_client.failures import ending_of
from bso_client.job_spec import JobSpec
from bso_client.notes import Note, Notebook
from bso_client.training.recurrence import Failure, first_recurrence
from bso_client.training.state import Consumption, TrainingState
from tests.unit.client.doubles import HARDWARE, job_spec

E = TypeVar("E", bound=BaseException)


def named(module: str, name: str, base: type[Exception]) -> type[Exception]:
    """An exception class of a library that need not be installed."""
    return type(name, (base,), {"__module__": module, "__qualname__": name})


def caused(error: E, *, by: BaseException) -> E:
    """The error as `raise error from by` leaves it."""
    innermost: BaseException = error
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    innermost.__cause__ = by
    return error


def handled(error: E, *, while_handling: BaseException) -> E:
    """The error as a handler that fails leaves it."""
    error.__context__ = while_handling
    return error


@pytest.mark.parametrize(
    "error",
    [
        named("torch", "OutOfMemoryError", RuntimeError)("CUDA out of memory. Tried to allocate"),
        named("torch.cuda", "OutOfMemoryError", RuntimeError)(""),
        named("mine", "Wrapped", named("torch", "OutOfMemoryError", RuntimeError))("x"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("MPS backend out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        named("jaxlib.xla_extension", "XlaRuntimeError", RuntimeError)("RESOURCE_EXHAUSTED: Out of memory while"),
        named("tensorflow.python.framework.errors_impl", "ResourceExhaustedError", Exception)(
            "RESOURCE_EXHAUSTED: OOM when allocating"
        ),
        named("torch", "AcceleratorError", RuntimeError)("CUDA error: out of memory\nSearch for `cudaErrorMemory..."),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        named("torch.distributed", "DistBackendError", RuntimeError)(
            "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.27.5\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
        ),
        named("torch.distributed", "DistBackendError", RuntimeError)(
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 24 bytes"
        ),
        RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`"),
        named("numba.cuda.cudadrv.driver", "CudaAPIError", Exception)("[2] ... CUDA_ERROR_OUT_OF_MEMORY"),
        RuntimeError("No executable batch size found, reached zero."),
        caused(ValueError("the step failed"), by=RuntimeError("CUDA out of memory. Tried to allocate")),
        caused(caused(ValueError("outer"), by=KeyError("inner")), by=RuntimeError("CUDA out of memory")),
        ExceptionGroup("ranks", [RuntimeError("CUDA out of memory"), RuntimeError("CUDA out of memory")]),
    ],
    ids=[
        *("torch", "torch.cuda", "derived", "cuda", "mps", "cublas", "jax", "tensorflow"),
        *("torch accelerator", "cudnn", "nccl", "nccl without a reason", "cusolver", "numba", "accelerate"),
        *("its cause", "the cause of its cause", "group"),
    ],
)
def test_an_accelerator_out_of_memory_makes_the_batch_size_infeasible(error: Exception) -> None:
    outcome, reason = ending_of(error)
    assert (outcome, reason_code(reason)) == (Outcome.INFEASIBLE, OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "MemoryError"),
        (ValueError("out of memory"), "ValueError: out of memory"),
        (RuntimeError("shapes differ"), "RuntimeError: shapes differ"),
        (
            RuntimeError("CUSOLVER_STATUS_NOT_INITIALIZED, when calling `cusolverDnCreate(handle)`"),
            "RuntimeError: CUSOLVER_STATUS_NOT_INITIALIZED, when calling `cusolverDnCreate(handle)`",
        ),
        (
            RuntimeError("Cuda failure 700 'illegal memory access': Failed to CUDA calloc async 24 bytes"),
            "RuntimeError: Cuda failure 700 'illegal memory access': Failed to CUDA calloc async 24 bytes",
        ),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (caused(KeyboardInterrupt(), by=RuntimeError("CUDA out of memory")), "KeyboardInterrupt"),
        (handled(KeyError("fallback"), while_handling=RuntimeError("CUDA out of memory")), "KeyError: 'fallback'"),
        (
            ExceptionGroup("two", [RuntimeError("CUDA out of memory"), KeyError()]),
            "ExceptionGroup: two (2 sub-exceptions)",
        ),
    ],
    ids=[
        "host memory",
        "other words",
        "other",
        "cusolver is not initialised",
        "nccl after another failure",
        "interrupt",
        "interrupt over memory",
        "a handler failed",
        "mixed group",
    ],
)
def test_everything_else_is_an_interruption(error: BaseException, reason: str) -> None:
    assert ending_of(error) == (Outcome.INTERRUPTED, reason)


def test_a_long_reason_is_cut() -> None:
    assert len(ending_of(ValueError("x" * 10_000))[1]) == 500


def test_command_ids_are_uuids_of_version_7_and_sort_by_time() -> None:
    made = [uuid.UUID(new_command_id()) for _ in range(100)]

    assert {each.version for each in made} == {7}
    assert {each.variant for each in made} == {uuid.RFC_4122}
    assert len(set(made)) == 100
    times = [each.int >> 80 for each in made]
    assert times == sorted(times)


def test_energy_stays_unknown_once_a_part_is_unknown() -> None:
    consumed = Consumption().plus(time_s=1.0, energy_j=None).plus(time_s=1.0, energy_j=5.0)

    assert consumed == Consumption(time_s=2.0, energy_j=None)


def ended(batch_size: int, cost: float, outcome: Outcome = Outcome.CONVERGED) -> TrainingState:
    spec = job_spec().resolve()
    return TrainingState(
        job_id="job",
        key="key",
        batch_size=batch_size,
        reason="",
        spec=spec,
        hardware=HARDWARE,
        cost=cost,
        outcome=outcome,
    )


def test_the_note_keeps_the_cheapest_converged_batch_size() -> None:
    note = Note(job_id="job", spec=job_spec().resolve())
    for progress in (
        ended(64, 50.0),
        ended(32, 60.0),
        ended(128, 10.0, Outcome.COST_EXCEEDED),
        ended(32, 40.0),
        ended(32, 45.0),
    ):
        note = note.with_result(progress, first_recurrence(None))

    assert (note.best_batch_size, note.best_cost) == (32, 45.0)


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    note = Note(
        job_id="job",
        spec=job_spec().resolve(),
        best_batch_size=32,
        best_cost=1.5,
        ended="key",
        ended_as="converged (it is good)",
        recurrence_id="monday",
        failed=(Failure(batch_size=64, is_out_of_memory=True),),
    )
    Notebook(tmp_path).write(note)

    assert Notebook(tmp_path).read("job") == note
    assert Notebook(tmp_path).read("other") is None
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["job.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"format": 9}), json.dumps({"format": 1, "job_id": "job"})])
def test_a_broken_note_is_a_warning(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.json").write_text(text)

    assert Notebook(tmp_path).read("job") is None
    assert [getattr(record, "action", "") for record in caplog.records] == ["note_failed"]


def test_a_state_directory_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "jobs").write_text("a file where a folder should be")
    Notebook(tmp_path).write(Note(job_id="job", spec=JobSpec(batch_sizes=[1], default_batch_size=1).resolve()))

    assert [getattr(record, "action", "") for record in caplog.records] == ["note_failed"]


def test_a_note_that_cannot_be_written_to_its_end_leaves_the_old_one_and_no_other_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = JobSpec(batch_sizes=[1], default_batch_size=1).resolve()
    Notebook(tmp_path).write(Note(job_id="job", spec=spec))
    monkeypatch.setattr("os.fsync", full_disk)
    Notebook(tmp_path).write(Note(job_id="job", spec=spec, best_batch_size=1, best_cost=2.0))

    assert Notebook(tmp_path).read("job") == Note(job_id="job", spec=spec)
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["job.json"]
    assert "No space left" in caplog.text


def full_disk(_handle: int) -> None:
    """What a disk says that has no room for what was written."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
