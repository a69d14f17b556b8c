"""What an exception that ends a training means for its batch size."""

from __future__ import annotations

from bso.domain.foreign_text import shown
from bso.domain.trial import OUT_OF_MEMORY, Outcome

_ACCELERATOR_ERRORS = frozenset(
    {"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "cupy.cuda.memory.OutOfMemoryError"}
)
_RUNTIME_ERRORS = (
    "RuntimeError",
    "AcceleratorError",
    "CudaAPIError",  # numba's
    "XlaRuntimeError",
    "JaxRuntimeError",
    "ResourceExhaustedError",
)
_WORDS = (
    "out of memory",  # torch and NCCL, whatever the accelerator
    "RESOURCE_EXHAUSTED",  # XLA
    "CUDA_ERROR_OUT_OF_MEMORY",
    "_STATUS_ALLOC_FAILED",  # cuBLAS, cuDNN, cuSPARSE, cuSOLVER
    "CUFFT_ALLOC_FAILED",
    "No executable batch size found",  # accelerate, after the micro batch of one sample did not fit either
)
_LONGEST_REASON = 500

OUT_OF_MEMORY_REASON = f"{OUT_OF_MEMORY}: the batch size does not fit in the memory of the GPU or TPU"


def ending_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome of a training that raised, and its reason.

    An accelerator out of memory makes the batch size infeasible. Anything else, MemoryError of the host included,
    says little about it: interrupted.
    """
    if is_out_of_memory(error):
        return Outcome.INFEASIBLE, OUT_OF_MEMORY_REASON
    return Outcome.INTERRUPTED, described(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU or TPU ran out of memory, by the names and words of torch, JAX, TensorFlow and CuPy.

    Also when that is the declared cause (``raise ... from error``), or all that a group of exceptions holds; not when
    it merely came before: a handler that fails has failed for another reason.
    """
    cause: BaseException | None = error
    seen: set[int] = set()
    while isinstance(cause, Exception) and id(cause) not in seen:
        if _says_out_of_memory(cause):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


def _says_out_of_memory(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return all(is_out_of_memory(each) for each in error.exceptions)
    classes = type(error).__mro__
    if any(f"{each.__module__}.{each.__qualname__}" in _ACCELERATOR_ERRORS for each in classes):
        return True
    is_runtime_error = any(each.__name__ in _RUNTIME_ERRORS for each in classes)
    return is_runtime_error and (any(word in str(error) for word in _WORDS) or _is_allocation(str(error)))


def _is_allocation(said: str) -> bool:
    """Whether a library could not allocate and does not say why, as seen on a full GPU; not where it names a reason."""
    if "CUSOLVER_STATUS_INTERNAL_ERROR" in said:
        return "cusolverDnCreate" in said
    return "Cuda failure" not in said and ("Failed to CUDA calloc" in said or "Failed to CUDA malloc" in said)


def described(error: BaseException) -> str:
    """Type and text of an exception in one line, with hidden characters shown."""
    text = shown(" ".join(str(error).split()))
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return words if len(words) <= _LONGEST_REASON else f"{words[: _LONGEST_REASON - 3]}..."
