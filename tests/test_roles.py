"""Each role alone."""

from dataclasses import replace

import torch

from sfedhp.algorithms import PFedMe, SFedHP
from sfedhp.roles import Client, Cloud, Edge
from sfedhp.types import Clock


def client(case, method, **options):
    task = replace(case.task.map(lambda tensor: tensor[0, 0]), statistics=None)
    return Client(method, task, method.client_start(case.initial, task), case.tail, **options)


def test_a_client_asked_twice_answers_from_what_it_held_before(case):
    """A retry after a lost reply must not train twice."""
    member = client(case, SFedHP(start="carried"))
    member.answer(case.initial, Clock(0, 0))
    first = member.answer(case.initial, Clock(0, 1))
    after = member.personal
    again = member.answer(case.initial, Clock(0, 1))
    assert torch.equal(first.upload, again.upload)
    assert torch.equal(member.personal, after)
    onward = member.answer(case.initial, Clock(0, 2))
    assert not torch.equal(onward.upload, again.upload)


def test_an_edge_that_nobody_answers_stays_silent(case):
    method = SFedHP(edge_rounds=2)
    silent = client(case, method, silent=lambda clock: True)
    edge = Edge(method, [silent, silent], case.tail)
    assert edge.answer(case.initial, Clock(0)) is None
    cloud = Cloud(method, [edge], case.initial, case.tail)
    for served in cloud.run(2):
        assert torch.equal(served.state, case.initial)


def test_what_a_client_weighs(case):
    assert client(case, PFedMe(local_rounds=1)).answer(case.initial, Clock(0)).weight == 1.0
    method = replace(PFedMe(local_rounds=1))
    assert method.weighting == "equal"
