"""A simulation spread over the actors of a Ray cluster, each with some edges or some clients."""

from sfedhp.engine.ray.actors import check_reachable, on_ray

__all__ = ["check_reachable", "on_ray"]
