"""The version of the package, which the build and `sfedhp --version` read."""

__version__ = "0.1.0"
