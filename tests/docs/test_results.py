"""What the results page says is what the records say."""

import json
import re
import statistics
from collections import Counter, defaultdict
from dataclasses import replace
from typing import get_args

import pytest

import sfedhp
from sfedhp import Experiment
from sfedhp.algorithms import SFedHP
from sfedhp.data import DataOptions
from sfedhp.nn.models import ModelOptions
from sfedhp.paper import read_results, read_studies
from sfedhp.paper.verdicts import Verdict
from sfedhp.wire.link import WireOptions
from tests.support import recompute
from tests.support.invoking import invoke
from tests.support.json_lines import json_lines
from tests.support.paths import ROOT
from tests.support.tools import load_tool

VERDICTS = get_args(Verdict)
PAGE = (ROOT / "docs/results.md").read_text(encoding="utf-8")


def test_the_trade_off_table_is_made_from_the_records():
    tradeoff = load_tool("tradeoff")
    records = tradeoff.read(ROOT / tradeoff.RECORDS)
    assert tradeoff.table(records) in PAGE
    assert {each["variant"] for each in records} <= tradeoff.VARIANTS.keys()
    have_three_seeds(by_variant(records))


def test_the_trade_off_over_all_links_has_three_seeds_and_meets_its_goal():
    tradeoff = load_tool("tradeoff")
    have_three_seeds(by_variant(tradeoff.read(ROOT / tradeoff.ALL_LINKS)))
    fewer, gaps = of_all_links()
    assert fewer > 8
    assert max(gaps) < 1


def by_variant(records):
    """Records in a list for each variant."""
    found = defaultdict(list)
    for record in records:
        found[record["variant"]].append(record)
    return found


def have_three_seeds(variants):
    """Each was run to its end with the seeds 0, 1 and 2."""
    for name, records in variants.items():
        assert sorted(each["seed"] for each in records) == [0, 1, 2], name
        assert {each["rounds"] for each in records} == {800}


def of_all_links():
    """How many times fewer bytes float16 and differences send on all links, and the points that they cost."""
    mine = by_variant(json_lines(ROOT / "results" / "tradeoff-all.jsonl"))
    ends = [
        [statistics.fmean(row[key] for each in mine[name] for row in each["curve"][-5:]) for name in mine]
        for key in ("gm", "pm", "em")
    ]
    first, ours = (list(mine).index(name) for name in ("dense", "dense-float16-difference"))
    dense = 800 * 4 * 79_510 * (2 * 20 * 20 + 2 * 4)
    fewer = statistics.fmean(
        dense / sum(each["traffic"].values()) for each in mine["dense-float16-difference"]
    )
    return fewer, [end[first] - end[ours] for end in ends]


def test_what_the_results_page_says_in_words_is_what_its_tables_say():
    text = " ".join(PAGE.split())
    norms = re.findall(r"\| CIFAR-10 S\d [^|]*\| ([\d.]+) \| ([\d.]+) \|", text)
    gaps = [float(local) - float(averaged) for local, averaged in norms]
    assert len(gaps) == 10
    assert f"changes a global model's accuracy by {min(gaps):.0f} to {max(gaps):.0f} points" in text
    tradeoff = load_tool("tradeoff")
    records = tradeoff.read(ROOT / tradeoff.ALL_LINKS)
    lines = {
        line.split("`")[1]: line.split("|")
        for line in tradeoff.table_of_all_links(records).splitlines()
        if line.startswith("| `")
    }
    hours = [float(lines[name][-3]) for name in ("dense", "dense-float16-difference")]
    assert f"shorten the messages of 800 rounds from {hours[0]:.0f} hours to {hours[1]:.0f}." in text
    # bfloat16, and half of the edge rounds: half of the bytes, for more than a point.
    first = tradeoff.fewer_bytes(records, "dense-float16-difference")
    for name in ("dense-bfloat16-difference", "10-rounds-float16-difference"):
        assert 1.75 < tradeoff.fewer_bytes(records, name) / first < 2.25
        assert tradeoff.gaps(records, name)["gm"] < -1
    assert f"send {first:.0f} times fewer bytes on all links, at 0.2 points of accuracy or less" in text


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


@pytest.mark.no_cover  # runs lines that other tests cover
def test_the_reproduction_page_is_written_from_the_records(tmp_path):
    page = tmp_path / "reproduction.md"
    words = ["reproduce", "--show", "--markdown", str(page), "--html", str(tmp_path / "page.html")]
    folders = ["--records", str(ROOT / "results"), "--experiments", str(ROOT / "experiments")]
    done = invoke(*words, *folders)
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")


MEASURED = (ROOT / "README.md").read_text(encoding="utf-8").split("## Measured results")[1].split("\n## ")[0]
PAPER_POINT, SPEED_POINT, BYTES_POINT = (
    MEASURED.split(f"- **{words}")[1].split("\n\n")[0] for words in ("The paper", "Speed", "Bytes")
)


@pytest.mark.no_cover
def test_readme_and_the_results_page_are_written_from_the_records():
    measured = load_tool("measured")
    results = read_results(read_studies(ROOT / "experiments"), ROOT / "results")
    for name in measured.PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text.count("<!-- measured: ") == text.count("<!-- /measured -->") > 0
        assert measured.fill(text, results) == text, f"{name} is stale: python tools/measured.py"


def numbers(text: str) -> list[str]:
    """The numbers of a text, without those in addresses, names and settings."""
    plain = re.sub(r"\]\([^)]*\)|`[^`]*`|H200|CIFAR-10|T = 800", "", " ".join(text.split()))
    return re.findall(r"(?<![\w.])\d+(?:[  ]\d{3})*(?:\.\d+)?", plain)


def test_the_figures_of_readme_about_the_paper_are_computed_by_other_means():
    every = recompute.every_run()
    rows = recompute.rows(every)
    nets = [row for row in rows if row.runs.table in ("table2", "table3", "table4", "table5")]
    cifar = [row for row in rows if row.runs.table in ("table6", "table7")]
    own = [row for row in nets if row.runs.method == "sfedhp"]
    judged = recompute.claims(every, "balanced")
    verdict_counts = Counter(verdict for verdict, _ in judged.values())
    _, best = judged["Best global model"]
    gaps = [recompute.distances(some, "balanced") for some in (nets, cifar, own)]

    def near(some, points):
        return sum(abs(gap) <= points for gap in some)

    # The paper has 108 accuracies in tables 2 to 5 and 54 in tables 6 and 7.
    said = [
        *(len(gaps[0]), 108, near(gaps[0], 2.5), 2.5, near(gaps[0], 1), 1, len(gaps[2]), near(gaps[2], 2), 2),
        *(108 - len(gaps[0]), 54 - len(gaps[1]), 54, len(judged), 3),
    ]
    said += [verdict_counts[word] for word in VERDICTS if verdict_counts[word]]
    _, equal_work = recompute.claims(every, "neighbouring")["Best global model at equal work"]
    for cells, steps in ((best, [100, 20]), (equal_work, [])):
        known = [cell for cell in cells if cell.mean is not None]
        if known:
            means = [cell.mean or 0.0 for cell in known]
            said += [sum(cell.outcome == "true" for cell in known), len(known)]
            said += [f"{abs(min(means)):.1f}", f"{abs(max(means)):.1f}"]
        if len(known) < len(cells):
            said += [len(cells) - len(known), len(cells)]
        said += steps
    assert numbers(PAPER_POINT) == [str(number) for number in said]


def test_the_figures_of_readme_about_bytes_are_those_of_the_records():
    records = by_variant(json_lines(ROOT / "results" / "tradeoff.jsonl"))

    def fewer(name):
        return statistics.fmean(record["dense_bytes"] / record["bytes"] for record in records[name])

    def accuracy(name):
        return statistics.fmean(record["summary"]["gm_last"] for record in records[name])

    # 494 710 float32 weights: 20 clients in 20 edge rounds and 4 edges, up and down; pFedMe's 20 clients.
    weights = 4 * 494_710 * 2 * 100 / 1e9
    whole, cloud, rival = weights * (20 * 20 + 4), weights * 4, weights * 20
    lost = accuracy("dense") - accuracy("literal-float16-difference")
    everywhere, gaps = of_all_links()
    assert abs(accuracy("dense") - accuracy("dense-float16-difference")) < 0.05
    assert numbers(BYTES_POINT) == [
        *(f"{whole / rival:.0f}", f"{whole:.1f}", f"{rival:.1f}", "100"),
        *(f"{everywhere:.0f}", f"{min(gaps):.1f}", f"{max(gaps):.1f}", f"{100 * cloud / whole:.0f}"),
        *(f"{fewer('dense-float16-difference'):.1f}", f"{fewer('literal-float16-difference'):.0f}"),
        f"{lost:.1f}",
    ]


def test_the_figures_of_readme_about_speed_are_on_the_performance_page():
    page = " ".join((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split())
    for number in numbers(SPEED_POINT):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]\d)", page), number
    # Of the loop's time: a tenth to a twentieth with fully connected networks, six tenths with vgg.
    _, own = page.split("## The paper's workload: two CPU cores")
    rows = [line.split("|") for line in own.split("| sFedHP, ")[1:]]
    ratios = [float(cells[3]) for cells in rows[:3]]
    assert 10 <= min(ratios) <= max(ratios) <= 20
    _, vgg = page.split("| sFedHP | above | above | above |")
    assert round(1 / float(vgg.split("|")[0]), 1) == 0.6


def test_the_picture_of_speed_has_every_side_of_every_record():
    speed = load_tool("speed")
    drawn = speed.PICTURE.read_text(encoding="utf-8")
    arenas = speed.records("arena").values()
    assert arenas
    for each in [entry for record in arenas for entry in record["entries"]]:
        assert f">{each['seconds_per_round']:.3g} s<" in drawn, each["side"]
    assert f"images/{speed.PICTURE.name}" in (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def test_the_trade_off_over_all_links_counts_every_link():
    tradeoff = load_tool("tradeoff")
    links = ("client_edge", "edge_client", "edge_cloud", "cloud_edge")
    stack = [
        Experiment(
            seed=seed,
            rounds=4,
            algorithm=SFedHP(client_proximity=25.0, edge_proximity=25.0, edge_rounds=2),
            data=DataOptions(source="fmnist-mini", rule="blocks"),
            model=ModelOptions(name="mlr"),
            wire=WireOptions(values="float16", difference=True),
        )
        for seed in (0, 1)
    ]
    ended = tradeoff.sweep_with_all_links(stack, lambda progress: None, every=2)
    exact = sfedhp.sweep([replace(each, wire=replace(each.wire, count="size")) for each in stack])
    for (outcome, traffic), counted in zip(ended, exact, strict=True):
        rows = [[row[f"bytes_{key}"] for key in links] for row in counted.run.history]
        # Of two rounds the second is counted.
        assert [[each[key] for key in links] for each in traffic] == [rows[1], rows[1], rows[3], rows[3]]
        assert rows[0] != rows[1]
        record = tradeoff.record("dense", outcome, traffic)
        assert record["traffic"]["client_edge"] == 2 * rows[1][0] + 2 * rows[3][0]
        assert record["bytes"] == sum(2 * (row[2] + row[3]) for row in (rows[1], rows[3]))
        assert record["curve"][-1]["gm"] == counted.run.history[-1]["gm"]
    head, _, line, _, missing = tradeoff.table_of_all_links([record]).splitlines()
    assert head.count("|") == line.count("|")
    assert missing.count("`") == 2 * (len(tradeoff.OF_ALL_LINKS) - 1)
    assert line.startswith("| `dense` |")
    for name, variant in tradeoff.OF_ALL_LINKS.items():
        made = tradeoff.experiment(variant, 0, 800, "cpu", all_links=True)
        assert (made.wire.tiers, made.data.rule) == ("all", "blocks"), name
