"""Each role alone."""

from dataclasses import replace

import torch

from sfedhp.algorithms import HierFAVG, PFedMe, SFedHP
from sfedhp.core.types import Clock
from sfedhp.engine.roles import Client, Cloud, Edge, Reply


def client(case, method, **options):
    task = replace(case.task.map(lambda tensor: tensor[0, 0]), statistics=None)
    return Client(method, task, method.client_start(case.initial, task), case.statistics, **options)


def test_a_client_asked_twice_answers_from_what_it_held_before(case):
    """A retry after a lost reply must not train twice."""
    member = client(case, SFedHP(start="carried"))
    member.reply(case.initial, Clock(0, 0))
    first = member.reply(case.initial, Clock(0, 1))
    after = member.personal
    again = member.reply(case.initial, Clock(0, 1))
    assert torch.equal(first.upload, again.upload)
    assert torch.equal(member.personal, after)
    onward = member.reply(case.initial, Clock(0, 2))
    assert not torch.equal(onward.upload, again.upload)


def test_an_edge_without_a_reply_sends_none(case):
    method = SFedHP(edge_rounds=2)
    silent = client(case, method, silent=lambda clock: True)
    edge = Edge(method, [silent, silent], case.statistics)
    assert edge.reply(case.initial, Clock(0)) is None
    cloud = Cloud(method, [edge], case.initial, case.statistics)
    for served in cloud.run(2):
        assert torch.equal(served.state, case.initial)


def test_what_a_client_weighs(case):
    assert client(case, PFedMe(local_rounds=1)).reply(case.initial, Clock(0)).weight == 1.0
    method = replace(PFedMe(local_rounds=1))
    assert method.weighting == "equal"


def edge_of(case, method, seats=2):
    members = []
    for seat in range(seats):
        task = replace(case.task.map(lambda tensor, seat=seat: tensor[0, seat]), statistics=None)
        members.append(Client(method, task, method.client_start(case.initial, task), case.statistics))
    return Edge(method, members, case.statistics)


def test_an_edge_resumes_after_any_of_its_rounds(case):
    """A restarted edge must not begin its cloud round again."""
    method = SFedHP(edge_rounds=4)
    straight = edge_of(case, method)
    expected = straight.reply(case.initial, Clock(0))
    first = edge_of(case, method)
    steps = first.run(first.begin(case.initial), Clock(0))
    half = [next(steps), next(steps)][-1]
    assert half.rounds_done == 2
    second = Edge(method, first.clients, case.statistics)
    *_, last = second.run(half, Clock(0))
    assert last.rounds_done == 4
    found = second.conclude(last)
    assert found is not None
    assert expected is not None
    assert torch.equal(found.upload, expected.upload)
    assert found.weight == expected.weight
    assert list(second.run(last, Clock(0))) == [], "nothing is left to do"


def test_an_edge_whose_last_round_is_lost_weighs_as_in_its_last_real_one(case):
    method = HierFAVG(edge_rounds=3, local_steps=1)
    edge = edge_of(case, method)
    first, second = (member.task.sizes.item() for member in edge.clients)
    edge.clients[0].silent = lambda clock: clock.edge_round == 2
    edge.clients[1].silent = lambda clock: clock.edge_round >= 1
    assert edge.reply(case.initial, Clock(0)).weight == first
    edge.clients[1].silent = lambda clock: clock.edge_round == 2
    assert edge.reply(case.initial, Clock(1)).weight == first + second


def test_a_cloud_resumes_after_its_round(case):
    method = SFedHP(edge_rounds=2)
    straight = Cloud(method, [edge_of(case, method)], case.initial, case.statistics)
    *_, expected = straight.run(3)
    broken = Cloud(method, [edge_of(case, method)], case.initial, case.statistics)
    *_, half = broken.run(1)
    again = Cloud(method, broken.members, case.initial, case.statistics)
    again.served = half
    *_, found = again.run(3, first=1)
    assert torch.equal(found.state, expected.state)


def test_members_that_are_asked_together(case):
    """Members that are reached all at once need not be a sequence."""

    class Silent:
        asked = 0

        def __len__(self):
            return 3

        def request(self, messages, clock, asked):
            self.asked += 1
            assert messages.shape == (3, len(case.initial))
            return [Reply(2 * messages[0], 1.0), None, None]

    members = Silent()
    cloud = Cloud(PFedMe(local_rounds=1), members, case.initial, case.statistics)
    (served,) = cloud.run(1)
    assert members.asked == 1
    assert torch.allclose(served.state, 2 * case.initial)
