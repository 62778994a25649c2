"""Traffic counters."""

from __future__ import annotations

import json

from sfedhp.deploy.messaging.traffic import Traffic, stack


def test_counters_add_up():
    traffic = Traffic(2)
    traffic.add("down", 1, 100, 1, 7)
    traffic.missing["x"] += 2
    again = Traffic(2, json.loads(json.dumps(traffic.to_dict())))
    again.merge(traffic.to_dict())
    assert again.entry("down").bytes.tolist() == [0, 200]
    assert again.entry("down").nonzeros.tolist() == [0, 14]
    assert again.missing == {"x": 4}
    assert stack([traffic, again], "down").messages.tolist() == [[0, 1], [0, 2]]
