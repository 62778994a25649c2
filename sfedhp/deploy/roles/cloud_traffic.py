"""The traffic of a cloud round: the cloud's own, and what its edges report of theirs."""

from __future__ import annotations

from typing import Any

from sfedhp.deploy.messaging.traffic import Traffic, stack
from sfedhp.deploy.site import Site
from sfedhp.runs.record_file import Row
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import Entry, columns


class RoundTraffic:
    """Collects the traffic of all tiers and turns it into columns of the history."""

    def __init__(self, site: Site, size: int):
        self._site, self._size = site, size  # d, weights of a model
        self._edges: dict[str, Traffic] = {}  # what each edge reported in this round

    def add(self, seat: int, metadata: dict[str, Any]) -> None:
        """Add the traffic between an edge and its clients to what the edge reported of this round before.

        Raises:
            ValueError: it is the traffic of other clients.
        """
        if "books" in metadata:
            if metadata["books"]["missing"].keys() - set(self._site.clients_of(seat)):
                raise ValueError("they count clients of another edge")
            name, clients = self._site.below[seat], len(self._site.clients_of(seat))
            self._edges.setdefault(name, Traffic(clients)).merge(metadata["books"])

    def close(self, own: Traffic) -> tuple[Row, dict[str, Any]]:
        """The columns of the round, and bytes by member for the ledger; then start the next round.

        Args:
            own: the traffic between the cloud and its members.
        """
        tiers = self._site.experiment.algorithm.tiers
        up, missing = Direction.to_cloud(tiers), own.missing
        training: dict[Direction, Entry] = {up.down: own.entry("down"), up: own.entry("up")}
        scoring = {f"score_{up.down}": own.entry("score_down"), f"score_{up}": own.entry("score_up")}
        rare = {
            f"{what}_{direction}": own.entry(f"{what}_{flow}")
            for what in ("sum", "key")
            for flow, direction in (("down", up.down), ("up", up))
        }
        if tiers == 3:
            sizes = ((name, len(self._site.clients_of(edge))) for edge, name in enumerate(self._site.below))
            edges = [self._edges.get(name) or Traffic(clients) for name, clients in sizes]
            for flow, direction in (("down", Direction.EDGE_CLIENT), ("up", Direction.CLIENT_EDGE)):
                training[direction] = stack(edges, flow)
                scoring[f"score_{direction}"] = stack(edges, f"score_{flow}")
                rare |= {f"{what}_{direction}": stack(edges, f"{what}_{flow}") for what in ("sum", "key")}
            for edge in edges:
                missing.update(edge.missing)
        self._edges.clear()
        row: Row = {name: total.item() for name, total in columns(training, self._size, 0).items()}
        scoring |= {name: entry for name, entry in rare.items() if entry.bytes.any()}
        row |= {f"bytes_{name}": int(entry.bytes.sum()) for name, entry in scoring.items()}
        row["missing"] = dict(missing)
        return row, {name: entry.bytes.tolist() for name, entry in (training | scoring).items()}
