"""Errors, options, keys, vectors and files: what everything else is written in. Imports no other package."""
