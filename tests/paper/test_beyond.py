"""The studies that are not of the paper: they run from the command line, go on, and end in tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from sfedhp.cli import main
from sfedhp.paper.beyond import beyond_table, gradient_steps, last_five, verdicts
from sfedhp.paper.records import Record, read_records
from sfedhp.paper.studies import BEYOND, COLLECTIONS, read_study
from tests.support.paths import ROOT

SMALL = {  # on the embedded images, a few rounds, small models
    r"rounds = \d+\nedges": "rounds = 2\nedges",
    r"rounds = 800": "rounds = 2",
    r"choice_rounds = \d+": "choice_rounds = 1",
    r"choice_seeds = \d+": "choice_seeds = 1",
    r"seeds = \d+\n": "seeds = 1\n",
    r'source = "\w+"': 'source = "fmnist-mini"',
    r"(train|test)_per_label = \d+\n": "",
    r"validation_per_label = 20": "validation_per_label = 2",
    r'name = "(cnn|dnn|sfedhp[^"]*)"': 'name = "mlr"',
    r"edges = 10\nclients_per_edge = 10": "edges = 2\nclients_per_edge = 2",
    r"every = \d+": "every = 1",
    r"_steps=\d+": "_steps=1",
    r"_rounds=\d+": "_rounds=1",
    r"finish_rate=[\d.]+": "finish_rate=0.05",
    r"=0\.005,0\.02,0\.05": "=0.02,0.05",
    r"=20,25,30": "=20,25",
    r"=0\.7,0\.8,0\.9": "=0.8",
}


@pytest.fixture
def experiments(tmp_path):
    """The studies as they are, but small."""
    folder = tmp_path / "experiments"
    folder.mkdir()
    for name in BEYOND:
        text = (ROOT / "experiments" / f"{name}.toml").read_text(encoding="utf-8")
        for pattern, small in SMALL.items():
            text = re.sub(pattern, small, text)
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


def reproduce(tmp_path, *words):
    paths = ["--experiments", str(tmp_path / "experiments"), "--records", str(tmp_path / "records")]
    result = CliRunner().invoke(main, ["reproduce", *words, *paths, "--device", "cpu"])
    assert result.exit_code == 0, result.output
    return result


def test_arenas_run_continue_and_end_in_tables_beside_what_is_published(experiments, tmp_path):
    reproduce(tmp_path, "arena-pfllib", "--only", "fedavg,fedrep")
    records = tmp_path / "records" / "arena-pfllib.jsonl"
    before = records.read_text()
    result = reproduce(tmp_path, "arena-pfllib", "--only", "fedrep,sfedhp-plus", "--json")
    assert records.read_text().startswith(before), "what was run is not repeated"
    lines = {line["method"]: line for line in json.loads(result.stdout)}
    assert set(lines) == {
        "fedrep",
        "fedrep under edges",
        "sfedhp-plus",
        "sfedhp-plus, one of five joins later",
    }
    assert lines["fedrep"]["published"] == "99.56"
    assert lines["fedrep"]["verdict"].startswith(("within 0.7", "off"))
    assert float(lines["fedrep"]["gap"]) == pytest.approx(float(lines["fedrep"]["best"]) - 99.56, abs=0.011)
    assert lines["sfedhp-plus"]["published"] == lines["sfedhp-plus"]["gap"] == "–"
    assert float(lines["sfedhp-plus, one of five joins later"]["newcomer"]) > 0
    assert float(lines["fedrep under edges"]["worst decile"]) > 0
    assert float(lines["fedrep"]["s/round"]) > 0
    shown = reproduce(tmp_path, "arena-pfllib", "--show").stdout
    assert "not run yet" in shown
    assert "Cost of the table" in shown.replace("\n", " ")
    assert not list((tmp_path / "experiments").glob("*.html")), "the page is the paper's"


def test_all_three_tiers_are_judged_when_every_method_was_run(experiments, tmp_path):
    reproduce(tmp_path, "best-fmnist-s2", "arena-mtgc", "--only", "sfedhp,hierfavg,mtgc")
    study = read_study(experiments / "arena-mtgc.toml")
    records = read_records(tmp_path / "records", [study.name])
    table = beyond_table(study, records)
    assert [line[0] for line in table.lines] == [*study.variants]
    for tier in ("PM", "EM", "GM", "PM's worst decile"):
        assert re.search(rf"{tier}: [-+]\d", table.note), table.note
    best = read_study(experiments / "best-fmnist-s2.toml")
    found = beyond_table(best, read_records(tmp_path / "records", [best.name]))
    assert found.note.count("not run yet") == 4, "not before all methods were run"
    chosen = {each.words for each in read_records(tmp_path / "records", [best.name]) if each.rounds == 2}
    assert len([words for words in chosen if words.startswith("algorithm=sfedhp-plus")]) == 1


def record(variant: str, seed: int = 0, **curves: list[float]) -> Record:
    return Record("s", variant, "", seed, 5, None, "", {}, {"algorithm": {"name": "fedavg"}}, 1.0, curves)


def test_a_verdict_is_the_gap_to_the_best_of_each_tier():
    study = read_study(ROOT / "experiments" / "arena-mtgc.toml")
    study = replace(study, variants={"sfedhp-plus": (), "other": ()})
    ours = [record("sfedhp-plus", pm=[0, 97.0, 97, 97, 97, 97], gm=[84.0], em=[90.0], pm_worst=[92.0])]
    runs = {"sfedhp-plus": ours, "other": [record("other", pm=[98.0], gm=[83.5])]}
    found = verdicts(study, runs)
    assert found == {
        "pm": (-1.0, "other"),
        "em": (0.0, "sfedhp-plus"),
        "gm": (0.0, "sfedhp-plus"),
        "pm_worst": (0.0, "sfedhp-plus"),
    }
    assert last_five([record("a", 0, pm=[1.0]), record("a", 1)], "pm") is None, "a seed lacks it"
    assert verdicts(study, {**runs, "other": []})["pm"] is None


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"name": "sfedhp", "edge_rounds": 20, "personal_steps": 5}, "100"),
        ({"name": "pfedme", "local_rounds": 20, "personal_steps": 5}, "100"),
        ({"name": "hierfavg", "edge_rounds": 20, "local_steps": 5}, "100"),
        ({"name": "ditto", "local_steps": 50, "edge_rounds": 1}, "100"),
        ({"name": "fedrep", "local_steps": 50, "head_steps": 50}, "100"),
        ({"name": "fedavg", "local_steps": 20, "local_epochs": 1}, "1 pass"),
        ({"name": "feddbe", "local_steps": 20, "local_epochs": 1}, "3 passes"),
    ],
)
def test_gradient_steps(options, steps):
    assert gradient_steps(options) == steps


def test_all_does_not_run_what_is_not_of_the_paper():
    assert not set(COLLECTIONS["all"]) & set(BEYOND)
    assert {*COLLECTIONS["best"], *COLLECTIONS["arenas"]} == set(BEYOND)
