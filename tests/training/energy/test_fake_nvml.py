"""The fake pynvml is like the real one (nvidia-ml-py), wherever both can be asked without a GPU."""

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.fakes import gpus as fake_gpus


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    fake_gpus.install(monkeypatch, tmp_path)
    return sys.modules["pynvml"]


@pytest.fixture
def real() -> ModuleType:
    path = next(
        Path(folder, "pynvml.py")
        for folder in sys.path
        if Path(folder) != fake_gpus.FOLDER and Path(folder, "pynvml.py").is_file()
    )
    spec = importlib.util.spec_from_file_location("real_pynvml", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["real_pynvml"] = module  # it looks itself up while it is loaded
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["real_pynvml"]
    return module


def names(module: ModuleType, prefix: str) -> Iterator[str]:
    return (name for name in vars(module) if name.startswith(prefix))


def test_constants_are_the_real_ones(fake: ModuleType, real: ModuleType) -> None:
    ours = {name: getattr(fake, name) for name in names(fake, "NVML_")}

    assert len(ours) > 30
    assert ours == {name: getattr(real, name) for name in ours}


def test_errors_are_the_real_ones(fake: ModuleType, real: ModuleType) -> None:
    for name in names(fake, "NVML_ERROR_"):
        code = getattr(fake, name)
        ours, theirs = fake.NVMLError(code), real.NVMLError(code)
        assert type(ours).__name__ == type(theirs).__name__
        assert (ours.value, type(ours).__mro__[1:2]) == (theirs.value, (fake.NVMLError,))
        if code in real.NVMLError._errcode_to_string:
            assert str(ours) == str(theirs)
    assert isinstance(fake.NVMLError_NotSupported(), fake.NVMLError)


def test_functions_take_what_the_real_ones_take(fake: ModuleType, real: ModuleType) -> None:
    functions = list(names(fake, "nvml"))

    assert len(functions) > 15
    for name in functions:
        ours, theirs = (inspect.signature(getattr(module, name)).parameters.values() for module in (fake, real))
        assert [each.kind for each in ours] == [each.kind for each in theirs], name
        assert [each.default is each.empty for each in ours] == [each.default is each.empty for each in theirs], name


def test_without_a_driver_both_fail_alike(fake: ModuleType, real: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BSO_FAKE_NVML")
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a driver")

    for module in (fake, real):
        with pytest.raises(module.NVMLError_LibraryNotFound):
            module.nvmlInit()
        with pytest.raises(module.NVMLError_Uninitialized):
            module.nvmlDeviceGetCount()
