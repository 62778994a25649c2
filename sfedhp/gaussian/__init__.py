"""Gaussian processes for pFedGP: a tree of binary classifiers for each client, over one shared kernel."""
