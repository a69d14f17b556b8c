"""What other policies and knobs would have cost a job, judged by its own recorded trainings.

``recorded`` takes the trainings out of a folded log, ``lasting`` estimates how many epochs they take although some were
stopped before their target, ``worlds`` makes problems of that which the simulator can play, ``alternatives`` says what
is played, ``playing`` plays it, and ``answers`` counts what came of it, with bounds and intervals.
"""
