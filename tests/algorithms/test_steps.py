"""What methods say about their steps: names of fields, the values of these, one rule of an even K."""

from dataclasses import dataclass

import pytest

from sfedhp.algorithms import ALGORITHMS, Algorithm, ClientResult, Option, PFedMe, SFedHP, StepRule
from sfedhp.algorithms.steps import caution
from sfedhp.core.options import Count, Rate, Share, Strength
from sfedhp.core.scalars import PerRun


class Keeps(Algorithm):
    def client_step(self, received, personal, task, clock):
        return ClientResult(received)


@dataclass(frozen=True)
class OnePull(Keeps):
    local_rate: Rate = 0.1
    other_rate: Rate = 0.2
    local_steps: Count = 4
    mixing: Share = 0.5
    proximity: Strength = 3.0


@dataclass(frozen=True)
class TwoStrengths(Keeps):
    local_rate: Rate = 0.1
    proximity: Strength = 3.0
    attention: Strength = 1.0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_rate_is_in_a_rule_and_every_option_is_a_field(name):
    method = ALGORITHMS[name]()
    rules = method.step_rules()
    rates = {field for field in vars(method) if field.endswith("_rate")} - {"server_rate"}  # uses no data
    rates -= {"weight_rate"}  # FedALA's steps of weights within 0 and 1
    if not getattr(method, "finish_steps", 1):
        rates -= {"finish_rate"}
    assert {rule.rate.name for rule in rules} == rates
    options = [option for rule in rules for option in (rule.rate, rule.pull, rule.sparsity, rule.repeats)]
    for option in filter(None, options):
        assert option.value == getattr(method, option.name)
    assert any(rule.uses_data for rule in rules)


def test_a_users_method_has_a_step_for_each_rate_pulled_by_its_only_strength():
    pull = Option("proximity", 3.0)
    expected = [StepRule("a local step", Option(name, rate), pull) for name, rate in ALL_RATES]
    assert list(OnePull().step_rules()) == expected
    (alone,) = TwoStrengths().step_rules()
    assert alone.pull is None
    assert alone.pulled_share == 0


ALL_RATES = (("local_rate", 0.1), ("other_rate", 0.2))


def test_a_stack_of_runs_has_no_rules():
    with pytest.raises(TypeError, match="stack of runs"):
        OnePull(local_rate=PerRun([0.1, 0.2])).step_rules()


@pytest.mark.parametrize("kind", [SFedHP, PFedMe])
def test_only_an_even_number_of_steps_on_one_mini_batch_limits_the_pull(kind):
    even, odd = (kind(personal_steps=steps).step_rules() for steps in (4, 5))
    assert [rule.even_steps_limit for rule in even] == [1.0, None]
    assert [rule.even_steps_limit for rule in odd] == [None, None]
    many = StepRule("a step", Option("rate", 1.0), Option("pull", 2.0), repeats=Option("steps", 4))
    assert many.even_steps_limit is None, "each step has a new mini-batch"


def test_the_warning_names_the_options_to_change():
    text = caution(SFedHP(personal_steps=4, client_proximity=20.0).step_rules())
    assert text.startswith("K = 4 is even and ηλ = 1 is not below 1")
    assert text.endswith("an odd algorithm.personal_steps, or a smaller algorithm.personal_rate.")
    assert caution(SFedHP(personal_steps=4, client_proximity=19.0).step_rules()) == ""
