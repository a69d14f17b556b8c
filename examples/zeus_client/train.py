"""A training with Zeus' own client (zeus 0.16), unmodified, whose batch size bso chooses.

    bso serve &
    pip install 'zeus[bso]==0.16.0' scikit-learn torch
    python examples/zeus_client/train.py

ZEUS_SERVER_URL is where `bso serve` listens. Needs an NVIDIA GPU, which Zeus' monitor measures, and torch, by which
it waits for the GPU.
"""

from __future__ import annotations

import os
import sys

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier
    from zeus.monitor import ZeusMonitor
    from zeus.optimizer.batch_size import BatchSizeOptimizer, JobSpec
    from zeus.optimizer.batch_size.exceptions import ZeusBSOTrainFailError
except ImportError as missing:
    sys.exit(
        f"this example needs Zeus' client and scikit-learn ({missing}): pip install 'zeus[bso]==0.16.0' scikit-learn"
    )

MAX_EPOCHS = 100

bso = BatchSizeOptimizer(
    monitor=ZeusMonitor(gpu_indices=[0]),
    server_url=os.environ.get("ZEUS_SERVER_URL", "http://127.0.0.1:8000"),
    job=JobSpec(
        job_id="digits-zeus",
        job_id_prefix="digits",
        batch_sizes=[16, 32, 64, 128, 256],
        default_batch_size=64,
        target_metric=0.95,
        max_epochs=MAX_EPOCHS,
    ),
)
batch_size = bso.get_batch_size()
images, digits = load_digits(return_X_y=True)
train_images, test_images, train_digits, test_digits = train_test_split(images / 16, digits, test_size=400)
model = MLPClassifier((64,), solver="sgd", batch_size=batch_size, learning_rate_init=0.01 * (batch_size / 16) ** 0.5)
bso.on_train_begin()
try:
    for _epoch in range(MAX_EPOCHS):
        model.partial_fit(train_images, train_digits, classes=range(10))
        bso.on_evaluate(model.score(test_images, test_digits))
        if bso.training_finished:
            break
except ZeusBSOTrainFailError as failure:
    sys.exit(f"{failure}")
sys.stdout.write(f"batch size {batch_size} reached {model.score(test_images, test_digits):.3f}\n")
