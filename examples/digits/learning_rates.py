"""What an unscaled learning rate does to large batch sizes: epochs until a small network reads 95 % of the digits.

    python examples/digits/learning_rates.py [SEEDS [BATCH_SIZE ...]]

Trains with each batch size and each rule for the learning rate, with so many seeds (5), and prints the medians. The
reference is a rate that suits batch size 16. Needs scikit-learn; takes about half a minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings

from bso_client import LearningRate

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier
except ImportError as missing:
    sys.exit(f"this example needs scikit-learn ({missing}): pip install scikit-learn")

BATCH_SIZES = (16, 32, 64, 128, 256, 512, 1024)
TARGET = 0.95
MOST_EPOCHS = 200
REFERENCE = 0.01
"""The rate that is right for batch size 16."""

RULES = {
    "none": LearningRate(REFERENCE, reference_batch_size=16, rule="none"),
    "square_root": LearningRate(REFERENCE, reference_batch_size=16, rule="square_root"),
    "linear": LearningRate(REFERENCE, reference_batch_size=16, rule="linear"),
}


def epochs_to_target(batch_size: int, rate: float, seed: int) -> int | None:
    """Epochs until the target is reached; None if so many as MOST_EPOCHS are not enough."""
    images, digits = load_digits(return_X_y=True)
    split = train_test_split(images / 16, digits, test_size=400, random_state=seed)
    model = MLPClassifier((64,), solver="sgd", batch_size=batch_size, learning_rate_init=rate, random_state=seed)
    for epoch in range(1, MOST_EPOCHS + 1):
        model.partial_fit(split[0], split[2], classes=range(10))
        if model.score(split[1], split[3]) >= TARGET:
            return epoch
    return None


def median_epochs(batch_size: int, rate: float, seeds: int) -> str:
    """The median over seeds as text; "never" where most of them do not reach the target."""
    reached = [epochs_to_target(batch_size, rate, seed) for seed in range(seeds)]
    middle = statistics.median(MOST_EPOCHS + 1 if epochs is None else epochs for epochs in reached)
    return f"{middle:.0f}" if middle <= MOST_EPOCHS else "never"


def main() -> None:
    """Print the table, a line per batch size."""
    warnings.simplefilter("ignore")  # diverging networks make numpy complain, which is what is shown here
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="?", type=int, default=5, metavar="SEEDS")
    parser.add_argument("batch_sizes", nargs="*", type=int, default=BATCH_SIZES, metavar="BATCH_SIZE")
    arguments = parser.parse_args()
    seeds: int = arguments.seeds
    print(f"median epochs to {TARGET:.0%} of the digits, {seeds} seeds; in brackets the learning rate")
    print(f"{'batch size':>10}" + "".join(f"{rule:>22}" for rule in RULES))
    for batch_size in arguments.batch_sizes:
        rates = [rule.at(batch_size) for rule in RULES.values()]
        cells = [f"{median_epochs(batch_size, rate, seeds)} ({rate:.3g})" for rate in rates]
        print(f"{batch_size:>10}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
