"""What goes wrong with meters. Nothing of it is raised at a training: a window that fails is unmeasured."""

from __future__ import annotations

from bso.domain.errors import Misconfigured


class NoMeter(Misconfigured):
    """No energy meter is readable here; the message names each that was looked for, and what to do about it."""


class MeterFailed(Misconfigured):
    """A meter that could be read before no longer can."""


class NvmlError(MeterFailed):
    """NVML, NVIDIA's management library, refused a call. ``code`` is its own: one of pynvml's NVML_ERROR_*."""

    def __init__(self, said: str, *, code: int) -> None:
        self.code = code
        super().__init__(said)


class NoNvml(NvmlError):
    """There is no NVIDIA driver here, or it does not fit the library: no GPU can be asked anything."""


class NotSupported(NvmlError):
    """This GPU or its driver cannot do this."""


class NoPermission(NvmlError):
    """This needs root, or the right CAP_SYS_ADMIN."""


class GpuLost(NvmlError):
    """The GPU has fallen off the bus, or needs a reset: nothing more will come from it."""


class MigSlice(NvmlError):
    """The GPU is partitioned (MIG), and NVML tells power and energy of the whole GPU only, not of one slice.

    ``model`` and ``memory_mib`` [MiB] are the slice's, as far as they are told.
    """

    def __init__(self, said: str, *, code: int, model: str, memory_mib: int | None) -> None:
        self.model = model
        self.memory_mib = memory_mib
        super().__init__(said, code=code)
