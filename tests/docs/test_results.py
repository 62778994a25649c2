"""What the results page says is what the records say."""

import json

from click.testing import CliRunner

from sfedhp.cli import main
from tests.support.paths import ROOT
from tests.support.tools import load_tool

PAGE = (ROOT / "docs/results.md").read_text(encoding="utf-8")


def test_the_trade_off_table_is_made_from_the_records():
    tradeoff = load_tool("tradeoff")
    records = tradeoff.read(ROOT / tradeoff.RECORDS)
    assert tradeoff.table(records) in PAGE
    assert {each["variant"] for each in records} <= tradeoff.VARIANTS.keys()
    for name in {each["variant"] for each in records}:
        mine = [each for each in records if each["variant"] == name]
        assert sorted(each["seed"] for each in mine) == [0, 1, 2], name
        assert {each["rounds"] for each in mine} == {800}


def test_the_plot_is_drawn_from_the_records(tmp_path):
    tradeoff = load_tool("tradeoff")
    tradeoff.draw(tradeoff.read(ROOT / tradeoff.RECORDS), tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    for name in tradeoff.DRAWN:
        assert f">{name}<" in drawn
    assert "images/tradeoff.svg" in PAGE


def test_the_first_look_is_that_of_its_record():
    names = {
        "sfedhp": "sFedHP (λ = 20)",
        "fedavg": "FedAvg",
        "hierfavg": "HierFAVG",
        "fedprox": "FedProx (μ = .001)",
        "perfedavg": "Per-FedAvg",
        "pfedme": "pFedMe (λ = 15)",
        "heurfedamp": "HeurFedAMP",
        "pfedgp": "pFedGP",
    }
    for row in json.loads((ROOT / "results/compare-mnist-dnn-100.json").read_text()):
        cells = [names[row["algorithm"]]]
        for kind in ("pm", "em", "gm"):
            value = row[f"{kind}_last"]
            cells.append("–" if value is None else f"{value:.1f}")
        assert f"| {' | '.join(cells)} |" in PAGE


def test_the_reproduction_page_is_written_from_the_records(tmp_path):
    page = tmp_path / "reproduction.md"
    words = ["reproduce", "--show", "--markdown", str(page), "--html", str(tmp_path / "page.html")]
    folders = ["--records", str(ROOT / "results"), "--experiments", str(ROOT / "experiments")]
    done = CliRunner().invoke(main, [*words, *folders])
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
