"""The paper's convergence theory as software: constants, conditions, bounds, and what practice allows."""

from sfedhp.theory.check import Check, check
from sfedhp.theory.constants import Constants
from sfedhp.theory.line import Line

__all__ = ["Check", "Constants", "Line", "check"]
