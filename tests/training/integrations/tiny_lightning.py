"""The small task as Lightning's modules, for either of its import names."""

from pathlib import Path
from typing import Any

import torch

from bso_client.integrations.lightning_data import TrialDataModule
from tests.training.integrations.tiny_task import FirstTokens, for_ever


def module_class(pl: Any) -> Any:
    """A LightningModule of ``lightning.pytorch`` or ``pytorch_lightning``."""

    class Model(pl.LightningModule):  # type: ignore[misc]  # lightning has no types here
        """Logs the accuracies it is given, one per validation; the last one for ever."""

        def __init__(
            self,
            *accuracies: float,
            largest_batch: int | None = None,
            learning_rate: float = 0.1,
            name: str = "val_acc",
        ) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Embedding(20, 4), torch.nn.Flatten(), torch.nn.Linear(24, 2))
            self.noted = for_ever(accuracies or (0.1,))
            self.largest_batch = largest_batch
            self.learning_rate = learning_rate
            self.name = name
            self.batches_seen: list[int] = []

        def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
            tokens = batch["input_ids"]
            self.batches_seen.append(len(tokens))
            if self.largest_batch is not None and len(tokens) > self.largest_batch:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            loss = torch.nn.functional.cross_entropy(self.net(tokens), batch["labels"])
            self.log("train_loss", loss, on_step=False, on_epoch=True)
            return loss

        def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
            return None

        def on_validation_epoch_end(self) -> None:
            if not self.trainer.sanity_checking:
                self.log(self.name, next(self.noted))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.learning_rate)

    return Model


def data_class(pl: Any) -> Any:
    """A LightningDataModule of either package, with the trial's batch size."""

    class Data(TrialDataModule, pl.LightningDataModule):  # type: ignore[misc]  # as above
        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(FirstTokens(), batch_size=self.batch_size, shuffle=True)

        def val_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(FirstTokens(16, seed=1), batch_size=16)

    return Data


def trainer_options(folder: Path, **chosen: Any) -> dict[str, Any]:
    """A Trainer on the CPU that says little."""
    settled: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 5,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": str(folder),
    }
    return settled | chosen
