"""Pictures of a job as SVG text, for a page, a notebook or a file.

    job_pictures         all pictures that a job's trials are enough for
    trial_pictures       which batch sizes trials had, and what they cost
    recurrence_picture   what each recurrence cost
    savings_picture      the energy that was saved in each month
    curve_pictures       the metric and the cost of trainings over their epochs
    trial_marks          what stands for a trial in a picture
    frame                axes, their labels and titles, and the legend
    scales               where values lie on an axis, and which of them it names
    looks                the class, the colour and the shape of each sort of thing
    svg                  elements, escaped, and the shapes of marks

A picture has no style sheet, no script and no reference to anything outside. Each of its elements has a class, and its
colour as the attribute ``color``, which `fill` and `stroke` take over: a page changes a colour by one rule, such as
``.bso-text { color: #eee }``. Hidden characters in text from outside are shown, and all text is escaped. `CLASSES`
names all classes.
"""

from __future__ import annotations

from bso.drawing.curve_pictures import Curve, curves, progress_of_cost
from bso.drawing.job_pictures import job_pictures
from bso.drawing.looks import CLASSES
from bso.drawing.recurrence_picture import recurrences
from bso.drawing.savings_picture import savings
from bso.drawing.svg import Size
from bso.drawing.trial_marks import Link
from bso.drawing.trial_pictures import choices, costs

__all__ = [
    "CLASSES",
    "Curve",
    "Link",
    "Size",
    "choices",
    "costs",
    "curves",
    "job_pictures",
    "progress_of_cost",
    "recurrences",
    "savings",
]
