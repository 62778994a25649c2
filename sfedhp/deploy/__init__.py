"""The same roles on machines of their own, over NVIDIA FLARE (the extra `sfedhp[deploy]`).

FLARE gives each site its certificate, lets nobody else in and carries bytes; who trains when, and what
becomes of the answers, is decided by `sfedhp.engine.roles`, as in memory. Only `flare`, `gate` and
`provisioning` import FLARE.
"""
