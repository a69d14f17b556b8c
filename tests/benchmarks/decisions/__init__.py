"""How well the policies decide: made truths, noises and defaults, measured traces, moves and new versions.

``seeds`` says which luck is for choosing and which for reporting, ``worlds`` what is simulated, ``jobs`` what one
simulated job shows, ``rows`` what many of them say together. ``groups`` are jobs that move, get a new version, meet no
noise (``known_noise``: and the policy knows that), or probe epoch costs (``probed``), ``regrets`` what they waste.
``report`` writes the page, with ``group_report`` and ``markdown``; ``__main__`` runs all of it.
"""
