"""How well the policies decide in a noisy world: made truths, noises and defaults, and measured traces.

``seeds`` says which luck is for choosing and which for reporting, ``worlds`` what is simulated, ``jobs`` what one
simulated job shows, ``rows`` what many of them say together, ``report`` writes the page; ``__main__`` runs all of it.
"""
