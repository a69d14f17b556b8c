"""Many trainings at once, for benchmarks and tests: each has the whole client and a connection of its own.

members   a program: hundreds of trainings on the event loop of one process
crowd     those processes as they are seen from outside: asked, counted, and audited at the end
outage    a broker that goes down under the crowd, and how the crowd comes back
whole     a program: one training as people write them, with a network, alone in its process
"""
