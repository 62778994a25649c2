"""The tables for other programs."""

from __future__ import annotations

import csv
import io

from sfedhp import Experiment, FedAvg
from sfedhp.report.facts import read_facts
from sfedhp.report.tables import csv_table, latex, latex_table
from tests.support.run_folders import write_run


def test_csv_has_a_line_for_each_run_with_its_summary(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"s{seed}", seed=seed)
    facts = read_facts([tmp_path])
    lines = list(csv.DictReader(io.StringIO(csv_table(facts))))
    assert [(line["setting"], line["run"], line["seed"]) for line in lines] == [
        ("sfedhp", "s0", "0"),
        ("sfedhp", "s1", "1"),
    ]
    for line, run in zip(lines, facts.runs, strict=True):
        assert float(line["gm_last"]) == run.summary["gm_last"]


def test_latex_has_means_and_deviations_over_seeds(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"s{seed}", seed=seed)
    write_run(tmp_path / "f", experiment=Experiment(algorithm=FedAvg()))
    facts = read_facts([tmp_path])
    text = latex_table(facts)
    mean = facts.groups[1].estimate("pm_last")
    assert mean is not None
    assert f"    sfedhp & ${mean.mean:.2f} \\pm {mean.deviation:.2f}$ & " in text
    assert "    fedavg & $" in text
    assert text.count("\\\\") == 3
    assert "over 1 to 2 seeds" in text
    for rule in ("\\toprule", "\\midrule", "\\bottomrule", "\\begin{tabular}{lrrr}"):
        assert rule in text


def test_characters_of_latex_are_escaped():
    assert latex("a_b & 5% of $x^2$ {~} \\ #") == (
        r"a\_b \& 5\% of \$x\textasciicircum{}2\$ \{\textasciitilde{}\} \textbackslash{} \#"
    )
