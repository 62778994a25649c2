"""The paper's convergence theory as software: constants, conditions, bounds, and what practice allows."""

from sfedhp.theory.checking import Check, check
from sfedhp.theory.constants import Constants
from sfedhp.theory.lines import Line

__all__ = ["Check", "Constants", "Line", "check"]
