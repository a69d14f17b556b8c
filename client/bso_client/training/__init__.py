"""A training as a pure state: what can happen to it, what it sends then, what it decides when nobody answers.

state          the frozen value, its phases, and what it has consumed, a resumed training included
start          how it begins: asked for, alone, or from a checkpoint
transitions    what happens to it then: (state, event) -> Step
recurrence     the attempts of one occasion: what to try alone, and when a loop over trials ends
checkpoint     the state as plain data, and back
"""
