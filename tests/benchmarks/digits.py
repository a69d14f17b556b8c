"""A real training: a small network learns to read scikit-learn's handwritten digits by mini-batch SGD, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float32]
Labels = NDArray[np.int64]

HIDDEN_UNITS = 256
MOMENTUM = np.float32(0.9)
LEARNING_RATE = 0.03  # at batch size 64
VALIDATION_IMAGES = 400
SHARE_OF_THE_DAY = 0.9
_SIDE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The data of one recurrence: images as rows of 64 brightnesses from 0 to 1."""

    images: Images
    labels: Labels
    validation_images: Images
    validation_labels: Labels


def split_for(*, seed: int, recurrence: int) -> Split:
    """The data as they are on one occasion: other training images every time, as a recurring job's data change.

    The validation images stay the same, so that the target means the same each time. Each image comes in nine
    versions, shifted by up to one pixel.
    """
    images, labels = _all_digits()
    order = np.random.default_rng(seed).permutation(len(labels))
    validation, rest = order[:VALIDATION_IMAGES], order[VALIDATION_IMAGES:]
    training = np.random.default_rng([seed, recurrence]).permutation(rest)[: int(len(rest) * SHARE_OF_THE_DAY)]
    return Split(
        images=_shifted(images[training]),
        labels=np.tile(labels[training], 9),
        validation_images=_shifted(images[validation]),
        validation_labels=np.tile(labels[validation], 9),
    )


class Classifier:
    """A network with one hidden layer of rectified linear units, trained on cross-entropy.

    The learning rate follows the square root of the batch size, so that the noise of a step's direction
    stays about the same (Krizhevsky 2014, section 5).
    """

    def __init__(self, *, batch_size: int, seed: int) -> None:
        self._batch_size = batch_size
        self._random = np.random.default_rng(seed)
        self._learning_rate = np.float32(LEARNING_RATE * np.sqrt(batch_size / 64))
        self._hidden = self._weights(_SIDE * _SIDE, HIDDEN_UNITS)
        self._hidden_bias = np.zeros(HIDDEN_UNITS, np.float32)
        self._output = self._weights(HIDDEN_UNITS, 10)
        self._output_bias = np.zeros(10, np.float32)
        self._parameters = (self._hidden, self._hidden_bias, self._output, self._output_bias)
        self._velocities = tuple(np.zeros_like(parameter) for parameter in self._parameters)

    def train_epoch(self, split: Split) -> None:
        """Go once through the training images in random order, one step per batch."""
        order = self._random.permutation(len(split.labels))
        for start in range(0, len(order), self._batch_size):
            batch = order[start : start + self._batch_size]
            self._step(split.images[batch], split.labels[batch])

    def accuracy(self, split: Split) -> float:
        """The share of validation images that are read correctly."""
        hidden = np.maximum(split.validation_images @ self._hidden + self._hidden_bias, 0)
        read = self._scores(hidden).argmax(axis=1)
        return float((read == split.validation_labels).mean())

    def _step(self, images: Images, labels: Labels) -> None:
        hidden = images @ self._hidden
        hidden += self._hidden_bias
        np.maximum(hidden, 0, out=hidden)
        slope = _softmax(self._scores(hidden))
        slope[np.arange(len(labels)), labels] -= 1
        slope /= len(labels)
        hidden_slope = slope @ self._output.T
        hidden_slope *= hidden > 0
        gradients = (images.T @ hidden_slope, hidden_slope.sum(axis=0), hidden.T @ slope, slope.sum(axis=0))
        for parameter, velocity, gradient in zip(self._parameters, self._velocities, gradients, strict=True):
            np.multiply(velocity, MOMENTUM, out=velocity)
            np.subtract(velocity, self._learning_rate * gradient, out=velocity)
            np.add(parameter, velocity, out=parameter)

    def _scores(self, hidden: Images) -> Images:
        scores: Images = hidden @ self._output
        scores += self._output_bias
        return scores

    def _weights(self, inputs: int, outputs: int) -> Images:
        """Random weights after He et al. (ICCV 2015)."""
        weights = self._random.standard_normal((inputs, outputs), dtype=np.float32)
        weights *= np.float32(np.sqrt(2 / inputs))
        return weights


def use_one_core() -> Any:
    """Compute on one core from now on, so that trainings side by side do not disturb one another's cost."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # publishes no types

    return threadpool_limits(1)


@cache
def _all_digits() -> tuple[Images, Labels]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (np.asarray(pixels) / 16).astype(np.float32).reshape(-1, _SIDE, _SIDE), np.asarray(labels, np.int64)


def _shifted(images: Images) -> Images:
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    places = [(row, column) for row in range(3) for column in range(3)]
    versions = [padded[:, row : row + _SIDE, column : column + _SIDE] for row, column in places]
    return np.concatenate(versions).reshape(-1, _SIDE * _SIDE)


def _softmax(scores: Images) -> Images:
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores
