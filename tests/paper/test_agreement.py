import pytest

from sfedhp.paper.agreement import agreement, reading_table, sign_tables
from sfedhp.paper.distant_cells import distant_cells
from sfedhp.paper.rows import rows
from tests.support.small_experiments import experiment


@pytest.fixture
def found(study, made):
    """One cell 0.83 below the paper's 97.83, one 3.07 above its 94.93 by the best round."""
    one = study(sfedhp=[experiment(client_proximity=20.0, edge_proximity=20.0)])
    return rows([one], [made(one, "sfedhp", 0, pm=[97.0], gm=[98.0, 90.0])])


def test_cells_that_never_ran_are_counted(found):
    every = agreement(found)
    assert (every.wanted, len(every.rows), every.missing) == (162, 2, 160)
    assert [every.within(points) for points in (0.5, 1, 2.5, 4)] == [0, 1, 1, 2]
    assert agreement(found, ["table2"], ["sfedhp"], ["gm"]).wanted == 5
    assert agreement(found, ["table3"]).rows == []
    assert agreement(found, reading="neighbouring").rows == []
    assert agreement([]).missing == 162


def test_the_signs_show_a_bias(found):
    nets, cifar = sign_tables(found)
    lines = {line[0]: line[1:] for line in nets.lines}
    # mean, median, above, below, four distances, mean of the last five
    assert lines["sFedHP PM"] == ("1 of 20", "-0.83", "-0.83", "0", "1", "0", "1", "1", "1", "-0.83")
    assert lines["sFedHP GM"] == ("1 of 20", "+3.07", "+3.07", "1", "0", "0", "0", "0", "0", "-0.93")
    assert lines["FedAvg GM"] == ("0 of 4", *9 * "–")
    assert lines["all"][:2] == ("2 of 108", "+1.12")
    assert "FedAvg PM" not in lines  # the paper has none
    assert cifar.lines == (("all", "0 of 54", *9 * "–"),)
    assert {len(line) for line in nets.lines} == {len(nets.heads)}


def test_readings_stand_side_by_side(found, study, made):
    written = study("table2-as-written", reading="as-written", fedavg=[experiment("fedavg")])
    table = reading_table(found + rows([written], [made(written, "fedavg", 0, gm=[96.0, 92.0])]))
    lines = {line[0]: line[1:] for line in table.lines}
    assert lines["balanced, tables 2–5, all methods"] == (
        *("2 of 108", "1.95"),
        *("0 (0 %)", "1 (50 %)", "1 (50 %)", "1 (50 %)"),
    )
    assert lines["as-written, tables 2–5, all methods"][:3] == ("1 of 108", "4.37", "0 (0 %)")
    assert lines["neighbouring, tables 6–7 (CIFAR-10), sFedHP"] == ("0 of 20", *5 * "–")
    # No cell ran under two readings; then one does, and the others are left out of the comparison.
    assert not any("both ran" in name for name in lines)
    beside = study("table2-as-written", reading="as-written", sfedhp=[experiment(client_proximity=20.0)])
    table = reading_table(found + rows([beside], [made(beside, "sfedhp", 0, gm=[96.0, 92.0])]))
    lines = {line[0]: line[1:] for line in table.lines}
    assert lines["balanced, where balanced and as-written both ran"][:2] == ("1 of 1", "3.07")
    assert lines["as-written, where balanced and as-written both ran"][:2] == ("1 of 1", "1.07")


def test_cells_far_from_the_papers_are_listed_by_reading(found):
    words = "our curve passes the paper's number at round 20"
    assert distant_cells(found).lines == (("MNIST S1 sFedHP GM", "94.93", "98.00", "+3.07", words),)
    assert not distant_cells(found, "as-written").lines
