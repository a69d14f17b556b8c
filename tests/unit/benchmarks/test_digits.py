"""The training that benchmarks measure beside is a real one."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.benchmarks.digits import Classifier, Split, split_for, use_one_core


@pytest.fixture(scope="module", autouse=True)
def one_core() -> Iterator[None]:
    with use_one_core():
        yield


@pytest.fixture(scope="module")
def split() -> Split:
    return split_for(seed=0, recurrence=1)


def epochs_to(target: float, *, batch_size: int, split: Split) -> int:
    model = Classifier(batch_size=batch_size, seed=1)
    for epoch in range(1, 30):
        model.train_epoch(split)
        if model.accuracy(split) >= target:
            return epoch
    return 30


def test_it_learns_to_read(split: Split) -> None:
    model = Classifier(batch_size=32, seed=1)
    before = model.accuracy(split)
    model.train_epoch(split)
    assert before < 0.3
    assert model.accuracy(split) > 0.8


def test_a_larger_batch_size_needs_more_epochs(split: Split) -> None:
    assert epochs_to(0.9, batch_size=1024, split=split) > epochs_to(0.9, batch_size=32, split=split)


def test_the_same_seed_gives_the_same_training(split: Split) -> None:
    accuracies = []
    for _ in range(2):
        model = Classifier(batch_size=256, seed=3)
        model.train_epoch(split)
        accuracies.append(model.accuracy(split))
    assert accuracies[0] == accuracies[1]


def test_each_recurrence_has_other_training_data_and_the_same_target(split: Split) -> None:
    other = split_for(seed=0, recurrence=2)
    assert not np.array_equal(split.images, other.images)
    assert np.array_equal(split.validation_images, other.validation_images)


def test_no_validation_image_is_trained_on(split: Split) -> None:
    middle = slice(4 * len(split.labels) // 9, 5 * len(split.labels) // 9)  # the versions that are not shifted
    trained = {image.tobytes() for image in split.images[middle]}
    count = len(split.validation_labels)
    validated = {image.tobytes() for image in split.validation_images[4 * count // 9 : 5 * count // 9]}
    assert not trained & validated
