"""The fault matrix: many jobs through several workers while faults strike, and what came of it, as figures.

``python -m tests.faults.matrix --help``. Every scenario has a stage of its own: a virtual host, a database, workers as
processes, trainings that import the client, and lanes that send commands themselves. Afterwards the log, the tables,
the stream of events and the answers are held against each other.
"""
