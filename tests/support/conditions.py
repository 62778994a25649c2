"""The lines of `sfedhp check` about the theorems, for constants that a test gives."""

from sfedhp.theory.conditions import theory_lines
from sfedhp.theory.curvature import Curvature


def lines_by_name(constants, exact):
    """The lines by name; `exact` says whether the constants hold everywhere."""
    curvature = Curvature(constants.smoothness, constants.convexity, exact)
    return {line.name: line for line in theory_lines(constants, curvature)}
