"""What another policy or knob would have cost a job, judged by its own recorded trainings.

``history`` makes a ``record`` of a folded log: its trainings, and what they show. ``world`` makes them a problem for
``bso.simulator``, and ``answers`` lets the simulator play alternatives in it and compares what they cost.
"""
