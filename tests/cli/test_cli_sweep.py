"""`sfedhp sweep`: the grammar of a grid, stacks, one table."""

import json

import pytest

from sfedhp.cli.sweep import grid
from sfedhp.types import InputError


def test_values_multiply_and_joined_keys_move_together():
    points = grid(["exp.toml", "rounds=5", "a.x+a.y=1,2", "b=u,v", "seeds=2"])
    assert len(points) == 8
    assert points[0].words == ("exp.toml", "rounds=5", "a.x=1", "a.y=1", "b=u", "seed=0")
    assert points[1].words[-1] == "seed=1"
    assert points[-1].words == ("exp.toml", "rounds=5", "a.x=2", "a.y=2", "b=v", "seed=1")
    assert points[0].name == "x=1,y=1,b=u"


def test_without_anything_to_vary_there_is_one_run():
    assert grid(["rounds=5"]) == [((), ("rounds=5",))]


@pytest.mark.parametrize("word", ["seeds=0", "seeds=two", "seeds=1,2"])
def test_a_wrong_number_of_seeds_is_refused(word):
    with pytest.raises(InputError, match="is no number of repeats"):
        grid([word])


def test_a_sweep_prints_one_line_a_setting(sfedhp, tiny, here):
    result = sfedhp("sweep", *tiny, "algorithm.edge_rate=0.01,0.05", "seeds=2", "--out", "grid")
    assert result.exit_code == 0, result.stderr
    assert "4 runs in 1 stacks" in result.stderr
    lines = [line for line in result.stdout.splitlines() if "±" in line]
    assert [line.split()[0] for line in lines] == ["0.01", "0.05"]
    assert sorted(path.name for path in (here / "grid").iterdir()) == [
        f"edge_rate={rate},seed={seed}" for rate in ("0.01", "0.05") for seed in (0, 1)
    ]
    assert (here / "grid/edge_rate=0.01,seed=1/history.jsonl").exists()


def test_a_sweep_over_methods_as_json(sfedhp, tiny):
    result = sfedhp("sweep", *tiny, "algorithm=fedavg,sfedhp", "--out", "methods", "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [row["algorithm"] for row in rows] == ["fedavg", "sfedhp"]
    assert "2 runs in 2 stacks" in result.stderr


def test_a_run_that_diverges_is_marked(sfedhp, tiny):
    result = sfedhp("sweep", *tiny, "algorithm.edge_rate=0.05,1e30", "--out", "wild")
    assert result.exit_code == 3
    assert "diverged in round" in result.stdout
    assert "0 of 1" in result.stdout


def test_an_unknown_key_is_refused(sfedhp, tiny):
    result = sfedhp("sweep", *tiny, "algorithm.edge_rat=1,2")
    assert result.exit_code == 2
    assert "algorithm.edge_rate" in result.stderr
