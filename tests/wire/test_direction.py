"""The names of directions."""

import json

import pytest

from sfedhp.wire.cost import LinksOptions
from sfedhp.wire.direction import Direction


def test_a_direction_is_its_name_in_columns_and_files():
    assert f"bytes_{Direction.CLIENT_EDGE}" == "bytes_client_edge"
    assert json.dumps({Direction.CLOUD_EDGE: 1}) == '{"cloud_edge": 1}'
    by_name: dict[str, int] = {Direction.EDGE_CLOUD: 1}
    assert by_name["edge_cloud"] == 1
    assert Direction("edge_client") is Direction.EDGE_CLIENT


def test_every_link_of_a_config_has_its_two_directions():
    up = [direction for direction in Direction if direction.is_up]
    assert up == list(LinksOptions.__dataclass_fields__)
    assert {*up, *(direction.down for direction in up)} == set(Direction)
    for direction in up:
        assert direction.down.split("_") == direction.split("_")[::-1]
        assert not direction.down.is_up


@pytest.mark.parametrize("direction", Direction)
def test_the_cloud_is_at_the_ends_that_name_it(direction):
    assert direction.at_cloud == ("cloud" in direction)


def test_which_direction_depends_on_the_tiers():
    assert Direction.to_cloud(3) is Direction.EDGE_CLOUD
    assert Direction.from_client(3) is Direction.CLIENT_EDGE
    assert Direction.to_cloud(2) is Direction.from_client(2) is Direction.CLIENT_CLOUD


def test_the_directions_of_a_summary_are_those_with_bytes_in_its_order():
    summary = [
        "pm",
        "bytes_total",
        "bytes_edge_client",
        "formula_edge_client",
        "bytes_cloud_edge",
        "bytes_x_y",
    ]
    assert Direction.sent_in(summary) == [Direction.EDGE_CLIENT, Direction.CLOUD_EDGE]
    assert [direction.text for direction in Direction.sent_in(summary)] == ["edge → client", "cloud → edge"]
