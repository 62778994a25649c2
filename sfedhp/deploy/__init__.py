"""Federations on separate machines, over NVIDIA FLARE (the extra `sfedhp[deploy]`).

FLARE authenticates each site by its certificate and transports bytes. `sfedhp.engine.roles` decides who
trains when and how replies are combined, as in a simulation. Only `flare` and `provisioning` import FLARE.
"""
