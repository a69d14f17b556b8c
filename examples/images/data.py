"""Images with their classes: CIFAR-100, a folder with one folder for each class as ImageNet's, or generated ones."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
CIFAR_ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
CIFAR_RECORD = 2 + 3 * 32 * 32  # coarse label, fine label, the red, green and blue pixels
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}

Image = torch.Tensor
"""Of shape [3, height, width]; bytes as it was read, else about normal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageData:
    """What to train on, and to validate with. ``image_size`` in pixels; ``target`` is an accuracy worth having."""

    name: str
    classes: int
    image_size: int
    target: float
    training: Dataset[Any]
    validation: Dataset[Any]


class InMemory(Dataset[Any]):
    """Images of one size that fit in memory."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, *, augment: Callable[[Image], Image]) -> None:
        self._images = images
        self._labels = labels
        self._augment = augment

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        return normal(self._augment(self._images[index])), int(self._labels[index])


class Folder(Dataset[Any]):
    """Image files in one folder for each class; classes are numbered in the order of their names."""

    def __init__(self, path: Path, *, size: int, crop: Callable[[Any, int], Any]) -> None:
        self.classes = sorted(entry.name for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
        self._files = [
            (file, number)
            for number, name in enumerate(self.classes)
            for file in sorted((path / name).rglob("*"))
            if file.suffix.lower() in SUFFIXES
        ]
        if not self._files:
            sys.exit(f"{path} holds no images: expected a folder for each class, with its image files inside")
        self._size = size
        self._crop = crop

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        from PIL import Image as Picture

        file, number = self._files[index]
        try:
            with Picture.open(file) as picture:
                cropped = self._crop(picture.convert("RGB"), self._size)
        except OSError as error:
            raise OSError(f"{file} cannot be read as an image: {error}") from error
        pixels = torch.frombuffer(bytearray(cropped.tobytes()), dtype=torch.uint8)
        return normal(pixels.view(self._size, self._size, 3).permute(2, 0, 1)), number


def normal(image: Image) -> Image:
    """Bytes as numbers about 0."""
    return (image / 255.0 - MEAN) / DEVIATION


def unchanged(image: Image) -> Image:
    """The image, for validation."""
    return image


def shifted(image: Image) -> Image:
    """The image moved by up to an eighth in any direction, and perhaps mirrored."""
    size, margin = image.shape[-1], image.shape[-1] // 8
    padded = nn.functional.pad(image, (margin, margin, margin, margin))
    top, left = random.randint(0, 2 * margin), random.randint(0, 2 * margin)  # noqa: S311  # no secret
    moved = padded[:, top : top + size, left : left + size]
    return moved.flip(-1) if random.random() < 0.5 else moved  # noqa: S311  # no secret


def random_crop(picture: Any, size: int) -> Any:
    """A random part, 8 to 100 % of the area and nearly square, scaled to ``size``, and perhaps mirrored."""
    width, height = picture.size
    area = width * height * random.uniform(0.08, 1.0)  # noqa: S311  # no secret
    ratio = random.uniform(3 / 4, 4 / 3)  # noqa: S311  # no secret
    wide, high = min(width, (area * ratio) ** 0.5), min(height, (area / ratio) ** 0.5)
    left, top = random.uniform(0, width - wide), random.uniform(0, height - high)  # noqa: S311  # no secret
    part = picture.resize((size, size), resample=2, box=(left, top, left + wide, top + high))
    return part.transpose(0) if random.random() < 0.5 else part  # noqa: S311  # no secret


def middle_crop(picture: Any, size: int) -> Any:
    """The square in the middle, seven eighths as long as the shorter side, scaled to ``size``."""
    width, height = picture.size
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return picture.resize((size, size), resample=2, box=(left, top, left + side, top + side))


def cifar100(folder: Path) -> ImageData:
    """The binary version of CIFAR-100, from where its archive was unpacked."""

    def part(name: str, augment: Callable[[Image], Image]) -> InMemory:
        path = folder / f"{name}.bin"
        if not path.is_file():
            sys.exit(f"there is no {path}: unpack {CIFAR_ARCHIVE}, and give its folder (--data DIR/cifar-100-binary)")
        content = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        if not len(content) or len(content) % CIFAR_RECORD:
            sys.exit(
                f"{path} is not CIFAR-100's: expected records of {CIFAR_RECORD} bytes, it has {len(content)} bytes"
            )
        records = content.view(-1, CIFAR_RECORD)
        return InMemory(records[:, 2:].reshape(-1, 3, 32, 32), records[:, 1].long(), augment=augment)

    training, validation = part("train", shifted), part("test", unchanged)
    return ImageData(name="cifar100", classes=100, image_size=32, target=0.6, training=training, validation=validation)


def folder(path: Path, *, size: int) -> ImageData:
    """A folder that holds train/CLASS/... and val/CLASS/..., as ImageNet's and torchvision's ImageFolder."""
    training = Folder(path / "train", size=size, crop=random_crop)
    validation = Folder(path / "val", size=size, crop=middle_crop)
    if training.classes != validation.classes:
        differing = sorted(set(training.classes) ^ set(validation.classes))
        sys.exit(f"{path}: train and val must hold the same classes, they differ in {', '.join(differing[:5])}")
    return ImageData(
        name=path.resolve().name,
        classes=len(training.classes),
        image_size=size,
        target=0.65,
        training=training,
        validation=validation,
    )


def generated(images: int, *, classes: int, size: int, seed: int = 0) -> ImageData:
    """Invented images: each class has a coarse pattern, each image that of its class under much noise."""
    generator = torch.Generator().manual_seed(seed)
    patterns = nn.functional.interpolate(torch.rand(classes, 3, 4, 4, generator=generator), size=size)

    def part(count: int, augment: Callable[[Image], Image]) -> InMemory:
        labels = torch.randint(classes, (count,), generator=generator)
        noisy = 0.25 * patterns[labels] + 0.75 * torch.rand(count, 3, size, size, generator=generator)
        return InMemory((noisy * 255).to(torch.uint8), labels, augment=augment)

    training, validation = part(images, unchanged), part(max(classes, images // 5), unchanged)
    return ImageData(
        name="generated", classes=classes, image_size=size, target=0.9, training=training, validation=validation
    )
