"""Train a classifier of handwritten digits in numpy; each run of this script is one recurrence of the job.

    python examples/digits/train_numpy.py

Run it again and again: each run learns from the earlier ones which batch size costs least. No server is needed; what
was learnt stands in the state directory that the first run names. Needs scikit-learn, for the data.
"""

from __future__ import annotations

import argparse
import logging
import sys

import numpy as np
from numpy.typing import NDArray

from bso_client import BatchSizeOptimizer, JobSpec

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("this example needs scikit-learn, for the handwritten digits: pip install scikit-learn")

Matrix = NDArray[np.float64]


class Perceptron:
    """One hidden layer, softmax, and mini-batch gradient descent."""

    def __init__(self, *, hidden: int, learning_rate: float, generator: np.random.Generator) -> None:
        self._generator = generator
        self._learning_rate = learning_rate
        self._first = generator.normal(0.0, 0.1, (64, hidden))
        self._second = generator.normal(0.0, 0.1, (hidden, 10))

    def train_epoch(self, images: Matrix, labels: NDArray[np.int64], batch_size: int) -> None:
        """Go over all images once, in batches."""
        order = self._generator.permutation(len(images))
        for batch in np.array_split(order, max(1, len(images) // batch_size)):
            self._step(images[batch], labels[batch])

    def accuracy(self, images: Matrix, labels: NDArray[np.int64]) -> float:
        """The share of images that are read right."""
        guesses = (np.maximum(images @ self._first, 0.0) @ self._second).argmax(axis=1)
        return float((guesses == labels).mean())

    def _step(self, images: Matrix, labels: NDArray[np.int64]) -> None:
        hidden = np.maximum(images @ self._first, 0.0)
        scores = hidden @ self._second
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(labels)), labels] -= 1.0
        error = chances / len(labels)
        back = error @ self._second.T * (hidden > 0.0)
        self._second -= self._learning_rate * hidden.T @ error
        self._first -= self._learning_rate * images.T @ back


def main() -> None:
    """Train until there is a model that reads 95 % of the digits."""
    digits = load_digits()
    images, labels = digits.data / 16.0, digits.target
    generator = np.random.default_rng()
    order = generator.permutation(len(images))
    training, validation = order[:1400], order[1400:]

    bso = BatchSizeOptimizer(
        JobSpec(
            job_id="digits-numpy",
            batch_sizes=[8, 16, 32, 64, 128, 256],
            default_batch_size=64,
            target_metric=0.95,
            max_epochs=60,
        )
    )
    for trial in bso.trials():  # until one has reached the target
        model = Perceptron(hidden=128, learning_rate=0.2, generator=generator)
        with trial:
            while not trial.finished:
                model.train_epoch(images[training], labels[training], trial.batch_size)
                trial.on_evaluate(model.accuracy(images[validation], labels[validation]))
        print(
            f"trial {trial.trial_number}: batch size {trial.batch_size}, epoch {trial.epoch:g}, "
            f"cost {trial.cost:.3g} J: {trial.outcome_reason}"
        )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("bso").setLevel(logging.INFO)
    main()
