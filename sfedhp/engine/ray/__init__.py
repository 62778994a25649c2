"""A simulation spread over the actors of a Ray cluster, each with some edges or some clients."""

from sfedhp.engine.ray.actors import on_ray
from sfedhp.engine.ray.cluster import check_reachable

__all__ = ["check_reachable", "on_ray"]
