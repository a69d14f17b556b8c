"""A small convolutional network for grey images of any size."""

from __future__ import annotations

import torch
from torch import nn


class Network(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(4),
            nn.Flatten(),
            nn.Linear(32 * 16, 64),
            nn.ReLU(),
            nn.Linear(64, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of each class."""
        return self.layers(images)
