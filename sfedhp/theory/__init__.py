"""The paper's convergence theory as software: constants, conditions, bounds and practical limits.

`check(experiment)` evaluates all of it for one experiment, before it runs.
"""

from sfedhp.theory.check import Check, check
from sfedhp.theory.constants import Constants
from sfedhp.theory.line import Line

__all__ = ["Check", "Constants", "Line", "check"]
