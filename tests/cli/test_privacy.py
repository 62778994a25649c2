"""What the commands print of a private run."""

import json

import pytest

from sfedhp.cli.output.federation import status_line
from tests.support.json_lines import json_lines

pytest.importorskip("dp_accounting")
PRIVATE = ["algorithm=fedavg", "privacy.noise=30", "rounds=2"]


@pytest.fixture
def words(tiny):
    return [word for word in tiny if not word.startswith(("algorithm.", "rounds="))]


def test_every_page_of_a_run_says_what_it_spent(sfedhp, words, here):
    run = sfedhp("run", *words, *PRIVATE, "--out", "run")
    assert run.exit_code == 0, run.output
    spent = [row["epsilon"] for row in json_lines(here / "run/history.jsonl")]
    sentence = f"ε = {spent[-1]:.3g} and δ = 1e-05 for one row, noise by every client"
    assert spent[0] < spent[1]
    assert sentence in run.stdout
    assert sentence in sfedhp("show", "run").stdout
    assert json.loads(sfedhp("show", "run", "--json").stdout)["summary"]["epsilon"] == spent[-1]
    page = (here / "run/report.html").read_text(encoding="utf-8")
    assert "privacy spent" in page
    assert f"ε = {spent[-1]:.3g}" in page


def test_a_run_without_noise_says_nothing_of_it(sfedhp, words):
    run = sfedhp("run", *words, "algorithm=fedavg", "rounds=1", "--out", "run")
    assert "ε" not in run.stdout
    assert "epsilon" not in sfedhp("show", "run", "--json").stdout


def test_the_status_of_a_site_says_what_it_spent():
    status = {"name": "client-0-0", "time": 0, "round": 2, "epsilon": 1.2345}
    assert "ε = 1.23" in status_line(status)
    assert "ε = 4.57" in status_line({"name": "cloud", "time": 0, "row": {"epsilon": 4.5678}})
    assert "ε" not in status_line({"name": "cloud", "time": 0, "row": {"gm": 50.0}})


def test_a_budget_that_is_spent_ends_the_run_with_a_sentence(sfedhp, words):
    first = sfedhp("run", *words, *PRIVATE, "--out", "run")
    spent = float(first.stdout.partition("ε = ")[2].split()[0])
    bounded = sfedhp(
        "run", *words, *PRIVATE, "rounds=4", f"privacy.epsilon={spent * 1.01}", "--out", "bounded"
    )
    assert bounded.exit_code == 0, bounded.output
    assert "budget is spent" in bounded.stderr
    assert "not finished" in bounded.stdout
    refused = sfedhp("run", *words, "algorithm=fedavg", "privacy.epsilon=1", "--out", "refused")
    assert refused.exit_code == 2
    assert "privacy.noise=" in refused.stderr


def test_audit_needs_a_run(sfedhp, here):
    done = sfedhp("audit", "nowhere")
    assert done.exit_code == 2
    assert "nowhere" in done.stderr
