"""A recorded run is run again, here: its first rounds give the recorded accuracies."""

import os
from dataclasses import replace

import pytest

import sfedhp
from sfedhp.config import from_dict
from sfedhp.paper.records import read_records
from tests.support.paths import ROOT

RESULTS = ROOT / "results"


@pytest.mark.skipif(not os.environ.get("SFEDHP_DATA"), reason="SFEDHP_DATA names no folder with MNIST")
@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("study", "variant", "rounds"),
    [
        ("table2", "hierfavg", 20),
        pytest.param("table3", "fedavg", 20, marks=pytest.mark.slow),
        pytest.param("table2-neighbouring", "sfedhp λ=20", 20, marks=pytest.mark.slow),
        pytest.param("table2-neighbouring", "sfedhp λ=20", 40, marks=pytest.mark.slow),
    ],
)
def test_the_first_rounds_of_a_recorded_cell_come_again(study, variant, rounds):
    recorded = read_records(RESULTS, [study])
    (record,) = [each for each in recorded if each.variant == variant and each.seed == 0]
    assert record.config["model"]["name"] == "dnn"
    assert record.rounds == 800
    experiment = replace(from_dict(record.config), rounds=rounds, device="cpu")
    assert experiment.evaluation.every == 20
    run = sfedhp.run(experiment)
    found = [row for row in run.history if "gm" in row]
    assert len(found) == rounds // 20
    for place, row in enumerate(found):
        assert row["round"] == record.curve["round"][place]
        for kind in ("gm", "pm"):
            if record.curve.get(kind):
                assert row[kind] == pytest.approx(record.curve[kind][place], abs=1.0)
