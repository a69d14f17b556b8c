"""An integration without its library says how to get it."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("library", "module", "command"),
    [
        ("transformers", "transformers", r"pip install 'transformers\[torch\]'"),
        ("transformers", "transformers_power", r"pip install 'transformers\[torch\]'"),
        ("lightning", "lightning", "pip install lightning"),
        ("pytorch_lightning", "pytorch_lightning", "pip install pytorch-lightning"),
    ],
)
def test_the_import_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, library: str, module: str, command: str
) -> None:
    monkeypatch.delitem(sys.modules, f"bso_client.integrations.{module}", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(ImportError, match=command):
        importlib.import_module(f"bso_client.integrations.{module}")
