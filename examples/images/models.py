"""Networks for images in plain torch, by name; torchvision's, where it is installed, as torchvision:NAME."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

import torch
from torch import nn

SMALL = 64
"""Images up to this many pixels wide are not made smaller before the first block."""


def make_model(name: str, *, classes: int, image_size: int) -> nn.Module:
    """A fresh network: one of ``NAMES``, or torchvision:NAME."""
    if name.startswith("torchvision:"):
        return _of_torchvision(name.removeprefix("torchvision:"), classes)
    if name not in _NETWORKS:
        sys.exit(f"--arch {name}: expected one of {', '.join(NAMES)}, or torchvision:NAME")
    return _NETWORKS[name](classes, image_size <= SMALL)


class BasicBlock(nn.Module):
    """Two convolutions, around which the images are carried."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(before, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, width, 3)
        )
        self.carry = _carry(before, width * self.expansion, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The next images."""
        return torch.relu(self.body(images) + self.carry(images))


class Bottleneck(nn.Module):
    """A convolution between two narrow ones, around which the images are carried."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(before, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, width * self.expansion, 1),
        )
        self.carry = _carry(before, width * self.expansion, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The next images."""
        return torch.relu(self.body(images) + self.carry(images))


class ShuffleBlock(nn.Module):
    """ShuffleNet V2's (Ma et al. 2018): half of the channels pass, the other half is convolved, both are mixed."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.halves = stride == 1
        half = width // 2
        entering = before // 2 if self.halves else before
        self.body = nn.Sequential(
            *_convolution(entering, half, 1),
            nn.ReLU(inplace=True),
            *_convolution(half, half, 3, stride, groups=half),
            *_convolution(half, half, 1),
            nn.ReLU(inplace=True),
        )
        self.side = nn.Sequential()
        if not self.halves:
            self.side = nn.Sequential(
                *_convolution(before, before, 3, stride, groups=before),
                *_convolution(before, half, 1),
                nn.ReLU(inplace=True),
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The next images."""
        passing, entering = images.chunk(2, dim=1) if self.halves else (images, images)
        return nn.functional.channel_shuffle(torch.cat((self.side(passing), self.body(entering)), dim=1), 2)


def resnet(
    block: type[BasicBlock | Bottleneck], widths: Sequence[int], depths: Sequence[int]
) -> Callable[[int, bool], nn.Module]:
    """A maker of residual networks (He et al. 2015): ``depths`` blocks of each width."""

    def make(classes: int, is_small: bool) -> nn.Module:  # noqa: FBT001  # a maker's two arguments
        layers, channels = _stem(widths[0], is_small=is_small), widths[0]
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for position in range(depth):
                layers.append(block(channels, width, 2 if stage and not position else 1))
                channels = width * block.expansion
        return _with_head(layers, channels, classes)

    return make


def shufflenet(widths: Sequence[int], depths: Sequence[int], last: int = 1024) -> Callable[[int, bool], nn.Module]:
    """A maker of ShuffleNets V2."""

    def make(classes: int, is_small: bool) -> nn.Module:  # noqa: FBT001  # a maker's two arguments
        layers, channels = _stem(24, is_small=is_small, size=3), 24
        for width, depth in zip(widths, depths, strict=True):
            for position in range(depth):
                layers.append(ShuffleBlock(channels, width, 1 if position else 2))
                channels = width
        return _with_head([*layers, *_convolution(channels, last, 1), nn.ReLU(inplace=True)], last, classes)

    return make


_NETWORKS: dict[str, Callable[[int, bool], nn.Module]] = {
    "resnet8": resnet(BasicBlock, (16, 32, 64), (1, 1, 1)),
    "resnet20": resnet(BasicBlock, (16, 32, 64), (3, 3, 3)),
    "resnet18": resnet(BasicBlock, (64, 128, 256, 512), (2, 2, 2, 2)),
    "resnet50": resnet(Bottleneck, (64, 128, 256, 512), (3, 4, 6, 3)),
    "shufflenet": shufflenet((116, 232, 464), (4, 8, 4)),
}
NAMES = tuple(_NETWORKS)


def _convolution(before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, size, stride, padding=size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(after)]


def _carry(before: int, after: int, stride: int) -> nn.Module:
    is_same = before == after and stride == 1
    return nn.Identity() if is_same else nn.Sequential(*_convolution(before, after, 1, stride))


def _stem(width: int, *, is_small: bool, size: int = 7) -> list[nn.Module]:
    if is_small:
        return [*_convolution(3, width, 3), nn.ReLU(inplace=True)]
    return [*_convolution(3, width, size, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]


def _with_head(layers: list[nn.Module], channels: int, classes: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _of_torchvision(name: str, classes: int) -> nn.Module:
    try:
        models = importlib.import_module("torchvision.models")
        network: nn.Module = models.get_model(name, num_classes=classes)
    except (ImportError, RuntimeError, ValueError) as error:
        sys.exit(f"--arch torchvision:{name}: {error} (without torchvision: --arch {' or '.join(NAMES)})")
    return network
