"""A training as a pure state: what can happen to it, what it sends then, what it decides when nobody answers.

state          the frozen value and its phases
beginning      how it begins: asked for, alone, or from a checkpoint
transitions    what happens to it then: (state, event) -> Step
evaluation     what a script may say of an evaluation
recurrence     the attempts of one occasion: what to try alone, and when a loop over trials ends
consumption    time and energy, and how a resumed training continues its totals
checkpoint     the state as plain data, and back
"""
