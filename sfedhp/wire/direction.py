"""The directions of messages between tiers: the names of links in configs, columns and files."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Direction(StrEnum):
    """From which tier to which; the value is its name in columns and files, as in `bytes_client_edge`.

    A link between two tiers has two directions; the config names it by the one up, as `links.client_edge`.
    """

    CLIENT_EDGE = "client_edge"
    EDGE_CLIENT = "edge_client"
    EDGE_CLOUD = "edge_cloud"
    CLOUD_EDGE = "cloud_edge"
    CLIENT_CLOUD = "client_cloud"
    CLOUD_CLIENT = "cloud_client"

    @property
    def is_up(self) -> bool:
        """Whether messages go from members to their server."""
        return self in _DOWN_OF

    @property
    def down(self) -> Direction:
        """The direction down on the same link, for a direction up."""
        return _DOWN_OF[self]

    @property
    def at_cloud(self) -> bool:
        """Whether the cloud is at one of the two ends."""
        return self not in (Direction.CLIENT_EDGE, Direction.EDGE_CLIENT)

    @property
    def text(self) -> str:
        """The direction as tables and charts write it: client → edge."""
        return self.replace("_", " → ")

    @classmethod
    def sent_in(cls, row: Iterable[str]) -> list[Direction]:
        """The directions whose bytes are among these columns of a history, or keys of a summary."""
        named = {f"bytes_{direction}": direction for direction in cls}
        return [named[name] for name in row if name in named]

    @classmethod
    def to_cloud(cls, tiers: int) -> Direction:
        """From the cloud's members to the cloud, in a method of three tiers or two."""
        return cls.EDGE_CLOUD if tiers == 3 else cls.CLIENT_CLOUD

    @classmethod
    def from_client(cls, tiers: int) -> Direction:
        """From a client to its server, in a method of three tiers or two."""
        return cls.CLIENT_EDGE if tiers == 3 else cls.CLIENT_CLOUD


_DOWN_OF = {
    Direction.CLIENT_EDGE: Direction.EDGE_CLIENT,
    Direction.EDGE_CLOUD: Direction.CLOUD_EDGE,
    Direction.CLIENT_CLOUD: Direction.CLOUD_CLIENT,
}
