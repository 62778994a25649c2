"""Reproduction from Python: studies are read, run and judged, and pages written, without the command line."""

import json
import subprocess
import sys

import pytest

import sfedhp.paper as paper
from sfedhp.core.errors import InputError
from sfedhp.paper.rows import row_to_dict
from tests.support.studies import TINY

SMALL = TINY.replace('reading = "balanced"', 'reading = "balanced"\nchoice_rounds = 1').replace(
    "algorithm.edge_rounds=2", "algorithm.edge_rounds=2 algorithm.personal_rate=0.01,0.05"
)
# Modules of the command line and of extras cannot be imported.
CODE = """
import json, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"click", "pydantic", "rich", "matplotlib"} or name.startswith("sfedhp.cli"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import torch
torch.set_num_threads(1)
from sfedhp.core.files import write_text
from sfedhp.paper import Effort, make_page, read_results, read_studies, run_studies
studies = read_studies("experiments", ["table2"])
progress = []
done = run_studies(studies, "records", Effort(seeds=2, device="cpu"), report=progress.append)
results = read_results(studies, "records")
page = make_page(results)
page.write_html("pages/page.html")
page.write_markdown("pages/page.md")
rows = [[row.variant, row.kind, row.seeds, row.paper] for row in results.rows]
claims = [[claim.statement, claim.verdict] for claim in results.claims]
print(json.dumps([done, progress[-1].done, progress[-1].total, rows, claims]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the experiment file of a small study."""
    folder = tmp_path_factory.mktemp("api")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "table2.toml").write_text(SMALL, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def answer(folder):
    """What a program printed that ran the study where nothing of the command line is installed."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_study_is_run_and_judged_without_the_command_line(answer):
    done, rounds, total, rows, claims = answer
    # Two seeds: FedAvg for 3 rounds, two trials of 1 round each, then the chosen one for 3.
    assert (done, rounds, total) == (True, 16, 16)
    assert rows == [
        ["fedavg", "gm", 2, 91.63],
        ["sfedhp λ=20", "pm", 2, 97.83],
        ["sfedhp λ=20", "gm", 2, 94.93],
    ]
    # The table decides the claims about tables as far as it goes, but not whose λ is best; no figure was run.
    judged = [verdict != "not run yet" for _, verdict in claims]
    assert judged == [True, True, False, False, False, True, False] + 12 * [False]


def test_its_pages_are_written(answer, folder):
    assert "<td>FedAvg GM</td>" in (folder / "pages/page.html").read_text(encoding="utf-8")
    text = (folder / "pages/page.md").read_text(encoding="utf-8")
    assert "| FedAvg GM |" in text
    assert "Drawing needs matplotlib: pip install 'sfedhp[report]'." in text
    assert not list((folder / "pages/images").iterdir())


def test_its_records_give_the_same_results_here(answer, folder):
    study = paper.read_study(folder / "experiments" / "table2.toml")
    results = paper.read_results([study], folder / "records")
    assert [[row.variant, row.kind, row.seeds, row.paper] for row in results.rows] == answer[3]
    assert [row_to_dict(row)["table"] for row in results.by_table(["table1"])["table1"]] == ["table1"] * 2
    assert not results.lacks("table2")
    assert results.lacks("table3")
    assert {row.variant for row in results.with_variants(["fedavg"]).rows} == {"fedavg"}
    assert paper.run_studies([study], str(folder / "records"), paper.Effort(seeds=2, device="cpu"))
    assert len(paper.read_records(folder / "records", ["table2"])) == 8


def test_every_public_name_is_there():
    assert all(hasattr(paper, name) for name in paper.__all__)


def test_of_a_collection_what_is_missing_can_be_skipped(folder):
    experiments = folder / "experiments"
    assert [study.name for study in paper.read_studies(experiments, skip_missing=True)] == ["table2"]
    assert [study.name for study in paper.read_studies(experiments, ["table1"], skip_missing=True)] == [
        "table2"
    ]
    for names, skip in ((["all"], False), (["table2", "table3"], True)):
        with pytest.raises(InputError, match=r"There is no .*table3.toml beside table2: "):
            paper.read_studies(experiments, names, skip_missing=skip)


def test_a_study_that_is_known_is_not_read_again(folder, monkeypatch):
    experiments = folder / "experiments"
    known = paper.read_studies(experiments, ["table2"])
    monkeypatch.setattr("sfedhp.paper.studies.read_study", lambda path: pytest.fail(f"{path} is read again"))
    assert paper.read_studies(experiments, ["table2"], known=known)[0] is known[0]
    assert paper.read_studies(experiments, skip_missing=True, known=known) == known
