"""The grammar of a grid: values that multiply, keys that move together, seeds."""

import re

import pytest

from sfedhp.core.errors import InputError
from sfedhp.runs.grid import grid


def test_values_multiply_and_joined_keys_move_together():
    points = grid(["exp.toml", "rounds=5", "a.x+a.y=1,2", "b=u,v", "seeds=2"])
    assert len(points) == 8
    assert points[0].words == ("exp.toml", "rounds=5", "a.x=1", "a.y=1", "b=u", "seed=0")
    assert points[1].words[-1] == "seed=1"
    assert points[-1].words == ("exp.toml", "rounds=5", "a.x=2", "a.y=2", "b=v", "seed=1")
    assert points[0].name == "x=1,y=1,b=u"


@pytest.mark.parametrize("file", ["g/x=5,y=5,seed=0/c.toml", "a+b=1/c.toml", "seeds=2/c.toml", "x=1/c.toml"])
def test_a_file_is_no_part_of_the_grid(file):
    points = grid([file, "x=1,2", "seeds=2"])
    assert [point.words[0] for point in points] == [file] * 4
    assert points[0] == ((("x", "1"),), (file, "x=1", "seed=0"))


def test_without_anything_to_vary_there_is_one_run():
    assert grid(["rounds=5"]) == [((), ("rounds=5",))]


@pytest.mark.parametrize("word", ["seeds=0", "seeds=two", "seeds=1,2"])
def test_a_wrong_number_of_seeds_is_refused(word):
    with pytest.raises(InputError, match="is not a number of repeats"):
        grid([word])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["seeds=2", "seed=5"], "seed is given twice, in seeds=2 and in seed=5: leave one of them out."),
        (["seed=1,2", "seeds=2"], "seed is given twice"),
        (["seeds=2", "seeds=3"], "seed is given twice"),
        (["a.x+a.y=1,2", "a.y=3"], "a.y is given twice, in a.x+a.y=1,2 and in a.y=3"),
        (["a.y=3", "a.x+a.y=1,2"], "a.y is given twice"),
        (["a.x=1,2", "a.x=3,4"], "a.x is given twice"),
        (["a.x+a.x=1,2"], "a.x is given twice"),
        (["algorithm=fedavg,sfedhp", "algorithm.name=pfedme"], "algorithm.name is given twice"),
        (["a.x=0.1,0.1"], "a.x=0.1,0.1 has the same value twice: give each once."),
    ],
)
def test_nothing_is_given_twice(words, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        grid(words)


def test_what_does_not_vary_may_be_said_again():
    assert grid(["rounds=5", "rounds=6", "a=1,2"])[0].words == ("rounds=5", "rounds=6", "a=1")


def test_a_list_in_brackets_is_one_value():
    assert [point.words for point in grid(["drop=[a,b]"])] == [("drop=[a,b]",)]
    assert [point.words for point in grid(["drop=[a,b],[c],d"])] == [
        ("drop=[a,b]",),
        ("drop=[c]",),
        ("drop=d",),
    ]


def test_a_list_of_names_and_several_values_are_told_apart():
    with pytest.raises(
        InputError, match=r"write data.drop=\[a,b\] for the list, or data.drop=\[a\],\[b\] to try"
    ):
        grid(["data.drop=a,b"])
    assert [point.words for point in grid(["data.drop=[a,b]"])] == [("data.drop=[a,b]",)]
    assert len(grid(["data.drop=[a],[b]"])) == 2
    assert len(grid(["clients_per_edge=2,4"])) == 2
