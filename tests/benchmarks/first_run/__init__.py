"""Whether the noise of a first training's gradients predicts how epochs grow with the batch size, with PyTorch on CPU.

    python -m tests.benchmarks.first_run [--quick] [--json FILE]

Needs torch and scikit-learn. Six models are trained to a validation loss with five batch sizes each: with a learning
rate that is tuned for each batch size, on seeds of their own, and with that of the middle one for all. Epochs are
counted in fractions. During trainings with the middle and the smallest batch size the simple noise scale is measured:
over the first epoch, and halfway to the target. What is compared is the slope of ln epochs per octave of batch size.
"""
