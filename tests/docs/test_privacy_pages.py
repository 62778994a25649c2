"""The tables of the pages on privacy are those of their records, and what the pages say of them is true."""

import json

import pytest

from tests.support.paths import ROOT
from tests.support.tools import load_tool

COST = json.loads((ROOT / "results/privacy-cost.json").read_text(encoding="utf-8"))["records"]
LEAKS = json.loads((ROOT / "results/privacy-leaks.json").read_text(encoding="utf-8"))["records"]


def test_the_tables_are_those_of_the_records():
    tool = load_tool("privacy")
    for page, table in (
        ("differential-privacy", tool.cost_table(COST)),
        ("audit", tool.leak_table(LEAKS)),
    ):
        assert table in (ROOT / f"docs/{page}.md").read_text(encoding="utf-8"), table


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 10.0])
def test_no_run_spent_more_than_it_says(epsilon):
    spent = [each["spent"] for each in COST if each["epsilon"] == epsilon]
    assert len(spent) == 12
    assert all(0.95 * epsilon < each <= epsilon for each in spent)


def areas(data, epsilon, attack):
    """The mean over seeds of each tier's area."""
    found = {}
    for tier in ("client", "edge", "global"):
        values = [
            finding["area"]["value"]
            for each in LEAKS
            for finding in each["findings"]
            if (each["data"], each["epsilon"], finding["tier"], finding["attack"])
            == (data, epsilon, tier, attack)
        ]
        assert len(values) == 3
        found[tier] = sum(values) / 3
    return found


def test_overfitted_models_tell_and_private_ones_do_not():
    assert min(areas("MNIST", None, "likelihood-ratio").values()) > 0.7
    assert min(areas("breast cancer", None, "likelihood-ratio").values()) > 0.55
    for data in ("MNIST", "breast cancer"):
        for attack in ("threshold", "likelihood-ratio"):
            assert all(abs(area - 0.5) < 0.03 for area in areas(data, 1.0, attack).values()), data
