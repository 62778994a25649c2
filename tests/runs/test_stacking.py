"""Which experiments can be stacked, and their one algorithm."""

from dataclasses import replace

from sfedhp.algorithms import SFedHP
from sfedhp.core.scalars import PerRun
from sfedhp.runs.stacking import merge_algorithms, stack_key
from sfedhp.runs.sweep import plan
from tests.support.short_runs import SMALL


def test_only_what_has_one_shape_is_stacked():
    experiments = [
        SMALL,
        replace(SMALL, seed=3),
        replace(SMALL, algorithm=SFedHP(edge_rounds=3)),
        replace(SMALL, algorithm=SFedHP(edge_rounds=2, edge_rate=0.1)),
        replace(SMALL, batch_size=5),
        # A term that is there computes something else than a term that is not.
        replace(SMALL, algorithm=SFedHP(edge_rounds=2, client_sparsity=1e-3)),
    ]
    assert plan(experiments, at_once=8) == [(0, 1, 3), (2,), (4,), (5,)]
    assert plan(experiments, at_once=2) == [(0, 1), (3,), (2,), (4,), (5,)]


def test_equal_values_stay_plain():
    method = merge_algorithms([SFedHP(edge_rate=0.1), SFedHP(edge_rate=0.2)])
    assert isinstance(method, SFedHP)
    assert isinstance(method.edge_rate, PerRun)
    assert method.personal_rate == 0.05


def test_experiments_of_one_key_differ_in_seed_and_in_what_can_differ_per_run():
    assert stack_key(SMALL) == stack_key(replace(SMALL, seed=4))
    assert stack_key(SMALL) == stack_key(replace(SMALL, algorithm=SFedHP(edge_rounds=2, edge_rate=0.3)))
    assert stack_key(SMALL) != stack_key(replace(SMALL, rounds=4))
    assert stack_key(SMALL) != stack_key(replace(SMALL, algorithm=SFedHP(edge_rounds=3)))
