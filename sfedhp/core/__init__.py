"""Errors, options, keys, vectors and files: the lowest layer, which imports no other package of sfedhp."""
