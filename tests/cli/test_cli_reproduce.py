import json
import signal
from pathlib import Path

import pytest

TINY = """
rounds = 3
[data]
source = "fmnist-mini"
[model]
name = "mlr"
[reproduce]
table = "table2"
reading = "2-label"
[reproduce.variants]
fedavg = "algorithm=fedavg"
"sfedhp λ=20" = "algorithm.edge_rounds=2"
"""
KEYS = {
    *("table", "dataset", "setting", "method", "lam", "alpha", "metric", "reading", "paper"),
    *("ours_last", "ours_validated", "ours_best", "sd", "seeds"),
}


@pytest.fixture
def small(here: Path) -> Path:
    (here / "experiments").mkdir()
    (here / "experiments" / "table2.toml").write_text(TINY, encoding="utf-8")
    return here


def test_run_then_show(small, sfedhp):
    done = sfedhp("reproduce", "table2", "--seeds", "2", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "Table 2: MNIST, Setting 1, 2-label" in done.output
    assert (small / "results" / "table2.jsonl").exists()
    assert "fedavg GM" in (small / "runs" / "reproduction.html").read_text(encoding="utf-8")
    shown = sfedhp("reproduce", "table1", "table2", "--show", "--json")
    rows = json.loads(shown.stdout)
    assert all(set(row) >= KEYS for row in rows)
    details = [row for row in rows if row["table"] == "table2"]
    assert [(row["method"], row["metric"], row["seeds"]) for row in details] == [
        ("fedavg", "gm", 2),
        ("sfedhp", "pm", 2),
        ("sfedhp", "gm", 2),
    ]
    assert [row["paper"] for row in details] == [91.63, 97.83, 94.93]
    assert [row["method"] for row in rows if row["table"] == "table1"] == ["fedavg", "sfedhp"]
    everything = sfedhp("reproduce", "--show", "--markdown", "page.md")
    assert everything.exit_code == 0
    assert "| fedavg GM |" in (small / "page.md").read_text(encoding="utf-8")


def test_fast_has_records_of_its_own(small, sfedhp):
    assert sfedhp("reproduce", "table2", "--fast", "--only", "fedavg").exit_code == 0
    lines = (small / "runs" / "reproduce-fast" / "table2.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["variant"] for line in lines] == ["fedavg"]
    assert not (small / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Say what to reproduce"),
        (("table9",), "There is nothing called 'table9' to reproduce"),
        (("table3",), "run this in a checkout"),
    ],
)
def test_refusals(small, sfedhp, words, said):
    refused = sfedhp("reproduce", *words)
    assert refused.exit_code == 2
    assert said in refused.output


def test_a_file_without_variants_is_refused(small, sfedhp):
    (small / "experiments" / "table3.toml").write_text("rounds = 3\n", encoding="utf-8")
    refused = sfedhp("reproduce", "table3")
    assert refused.exit_code == 2
    assert "has no [reproduce] table" in refused.output


def test_an_experiment_file_can_also_be_run_alone(small, sfedhp):
    assert sfedhp("run", "experiments/table2.toml", "rounds=1").exit_code == 0


def test_a_terminal_sees_a_bar(small, sfedhp, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = sfedhp("reproduce", "table2", "--seeds", "1", "--device", "cpu")
    assert done.exit_code == 0
    assert "left" in done.output


def test_figures_are_drawn_beside_the_markdown(small, sfedhp):
    text = TINY.replace('"table2"', '"fig2"').replace("sfedhp λ=20", "sfedhp")
    (small / "experiments" / "fig2.toml").write_text(text, encoding="utf-8")
    done = sfedhp("reproduce", "fig2", "--seeds", "1", "--device", "cpu", "--markdown", "page.md")
    assert done.exit_code == 0, done.output
    assert "![Figure 2" in (small / "page.md").read_text(encoding="utf-8")
    assert (small / "images" / "fig2.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert "<svg" in (small / "runs" / "reproduction.html").read_text(encoding="utf-8")


def test_stopped_by_a_signal_it_goes_on_with_what_is_missing(small, process):
    text = TINY.replace("rounds = 3", "rounds = 2000")
    (small / "experiments" / "table2.toml").write_text(text, encoding="utf-8")
    child = process("reproduce", "table2", "--seeds", "1", "--only", "fedavg")
    for line in child.stderr:
        if "rounds" in line:
            child.send_signal(signal.SIGINT)
            break
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "goes on with the runs that have no record yet" in said
    assert not (small / "results" / "table2.jsonl").exists()
