"""The flat methods, as Zeus has them: one batch size per process, relaunched by ``bso recur`` when it has failed.

    bso recur 5 -- python examples/digits/train_flat_methods.py

A training that cannot loop inside one process (its launcher allocates memory once, say) asks for a batch size, and
exits with code 75 when that has failed: ``bso recur`` then launches it again, with another one. Needs
scikit-learn, for the data and the classifier.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from bso_client import BatchSizeOptimizer, JobSpec

try:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import SGDClassifier
except ImportError:
    sys.exit("this example needs scikit-learn: pip install scikit-learn")


def main(bso: BatchSizeOptimizer) -> None:
    """Train with one batch size. TrainFailed ends this function: nothing after it runs."""
    digits = load_digits()
    images, labels = digits.data / 16.0, digits.target
    generator = np.random.default_rng()
    order = generator.permutation(len(images))
    training, validation = order[:1400], order[1400:]

    batch_size = bso.get_batch_size()
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.02 * batch_size / 32)
    bso.on_train_begin()
    while not bso.training_finished:
        shuffled = generator.permutation(training)
        for batch in np.array_split(shuffled, len(shuffled) // batch_size):
            model.partial_fit(images[batch], labels[batch], classes=np.arange(10))
        bso.on_evaluate(model.score(images[validation], labels[validation]))
    print(f"batch size {batch_size}: there is a model")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    optimizer = BatchSizeOptimizer(
        JobSpec(
            job_id="digits-flat",
            batch_sizes=[16, 32, 64, 128, 256],
            default_batch_size=64,
            target_metric=0.93,
            max_epochs=20,
        )
    )
    with optimizer.relaunching():  # exits with code 75 when another batch size is to be tried
        main(optimizer)
