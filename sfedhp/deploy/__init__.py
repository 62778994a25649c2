"""Federations on machines of their own, over NVIDIA FLARE (the extra `sfedhp[deploy]`).

FLARE authenticates each site by its certificate and carries bytes; who trains when, and how replies are
combined, is decided by `sfedhp.engine.roles`, as in memory. Only `flare` and `provisioning` import FLARE.
"""
