"""`sfedhp reproduce`: what it runs, shows, writes and refuses.

The studies are run once for this file; each test gets a copy of their folder.
"""

import gzip
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from sfedhp.cli import main
from tests.support.json_lines import json_lines
from tests.support.studies import TINY

KEYS = {
    *("table", "dataset", "setting", "method", "lam", "alpha", "metric", "reading", "paper"),
    *("ours_last", "ours_validated", "ours_best", "sd", "seeds"),
}


@pytest.fixture
def small(here: Path) -> Path:
    (here / "experiments").mkdir()
    (here / "experiments" / "table2.toml").write_text(TINY, encoding="utf-8")
    return here


def reproduce(folder: Path, *words: str) -> None:
    """Run studies in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(main, ["reproduce", *words, "--device", "cpu"], prog_name="sfedhp")
    finally:
        os.chdir(before)
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def one_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one study was run with two seeds."""
    folder = tmp_path_factory.mktemp("one_study")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "table2.toml").write_text(TINY, encoding="utf-8")
    reproduce(folder, "table2", "--seeds", "2")
    return folder


@pytest.fixture
def ran(here: Path, one_study: Path) -> Path:
    """A copy of `one_study`."""
    shutil.copytree(one_study, here, dirs_exist_ok=True)
    return here


def tables_of(text: str) -> str:
    """What is printed before the summaries, which are of all tables."""
    return text.split("Agreement by reading")[0]


def test_run_then_show(small, sfedhp):
    done = sfedhp("reproduce", "table2", "--seeds", "2", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "Table 2: MNIST, Setting 1, balanced" in done.output
    assert (small / "results" / "table2.jsonl").exists()
    assert "FedAvg GM" in (small / "runs" / "reproduction.html").read_text(encoding="utf-8")
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
    assert "| FedAvg GM |" in (small / "page.md").read_text(encoding="utf-8")


def test_fast_has_records_of_its_own(small, sfedhp):
    assert sfedhp("reproduce", "table2", "--fast", "--only", "fedavg").exit_code == 0
    records = json_lines(small / "runs" / "reproduce-fast" / "table2.jsonl")
    assert [record["variant"] for record in records] == ["fedavg"]
    assert not (small / "results").exists()


def test_fast_has_a_page_of_its_own(ran, sfedhp):
    page = (ran / "runs" / "reproduction.html").read_bytes()
    done = sfedhp("reproduce", "table2", "--fast", "--only", "fedavg")
    assert done.stderr.endswith("The page: runs/reproduction-fast.html\n")
    assert "FedAvg GM" in (ran / "runs" / "reproduction-fast.html").read_text(encoding="utf-8")
    assert (ran / "runs" / "reproduction.html").read_bytes() == page
    assert sfedhp("reproduce", "--fast", "--show", "--html", "own.html").exit_code == 0
    assert (ran / "own.html").exists()


@pytest.mark.parametrize("words", [("table2",), ("table2", "--fast"), ("--show",)])
@pytest.mark.parametrize(
    ("option", "path", "said"),
    [
        ("--html", "experiments", "--html experiments is a folder: name a file."),
        ("--markdown", "experiments/", "--markdown experiments is a folder: name a file."),
        ("--html", "..", "--html .. is a folder: name a file."),
        (
            "--html",
            "tiny.npz/a/page.html",
            "--html tiny.npz/a/page.html cannot be written because {here}/tiny.npz is a file: "
            "choose another.",
        ),
        (
            "--markdown",
            "busy/page.md",
            "--markdown busy/page.md cannot be written because {here}/busy/images is a file: choose another.",
        ),
    ],
)
def test_where_no_page_can_be_written_nothing_is_run(small, sfedhp, words, option, path, said):
    (small / "busy").mkdir()
    (small / "busy" / "images").write_text("here")
    (small / "results").mkdir()
    (small / "results" / "table2.jsonl").touch()
    before = sorted(small.rglob("*"))
    refused = sfedhp("reproduce", *words, option, path)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == f"error: {said.format(here=small)}\n"
    assert sorted(small.rglob("*")) == before


def test_where_nothing_may_be_written_nothing_is_run(small, sfedhp, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != small)
    refused = sfedhp("reproduce", "table2", "--html", "new/page.html")
    assert refused.exit_code == 2
    assert refused.stderr == (
        f"error: --html new/page.html cannot be written because {small} is not writable: choose another.\n"
    )
    assert not (small / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Say what to reproduce"),
        (("table9",), "There is nothing called 'table9' to reproduce"),
        (("table3",), "name the folder of the experiment files with --experiments"),
    ],
)
def test_refusals(small, sfedhp, words, said):
    refused = sfedhp("reproduce", *words)
    assert refused.exit_code == 2
    assert said in refused.output
    assert not (small / "results").exists()


@pytest.mark.parametrize("words", [(), ("table2",), ("table1",), ("table2", "--json")])
def test_what_is_not_there_cannot_be_shown(small, sfedhp, words):
    refused = sfedhp("reproduce", *words, "--show", "--records", "nothere")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: nothere holds no records: name their folder with --records, or")
    (small / "nothere").mkdir()
    assert sfedhp("reproduce", *words, "--show", "--records", "nothere").exit_code == 2
    assert not (small / "runs").exists()


@pytest.mark.parametrize("words", [(), ("table2",), ("table1",), ("table2", "fig3")])
def test_experiments_that_are_not_there_cannot_be_shown(ran, sfedhp, words):
    refused = sfedhp("reproduce", *words, "--show", "--experiments", "nothere")
    assert refused.exit_code == 2
    assert "There is no nothere/table2.toml: name the folder of the experiment" in refused.stderr


def test_a_table_without_a_file_is_refused_and_those_there_are_are_named(ran, sfedhp):
    refused = sfedhp("reproduce", "table2", "table3", "--show")
    assert refused.exit_code == 2
    assert "There is no experiments/table3.toml beside table2: name the folder" in refused.stderr
    for words in ((), ("all",), ("table1",), ("table1", "table2")):
        assert sfedhp("reproduce", *words, "--show").exit_code == 0


@pytest.mark.parametrize("words", [("table2",), ("table2", "--show"), ("--show",), ("table2", "--fast")])
def test_a_variant_that_is_not_there_is_refused(ran, sfedhp, words):
    refused = sfedhp("reproduce", *words, "--only", "fedavg,foo")
    assert refused.exit_code == 2
    assert refused.stderr == "error: No variant begins with 'foo': there are fedavg; sfedhp λ=20.\n"


def test_some_variants_can_be_shown_alone(ran, sfedhp):
    shown = sfedhp("reproduce", "table2", "--show", "--only", "sfedhp", "--json")
    assert {row["method"] for row in json.loads(shown.stdout)} == {"sfedhp"}
    text = tables_of(sfedhp("reproduce", "table2", "--show", "--only", "sfedhp").stdout)
    assert "sFedHP λ=20 GM" in text
    assert "FedAvg GM" not in text


def test_records_go_to_a_new_folder_but_not_to_a_file(small, sfedhp):
    words = ("reproduce", "table2", "--seeds", "1", "--only", "fedavg", "--device", "cpu")
    assert sfedhp(*words, "--records", "new/place").exit_code == 0
    assert (small / "new/place/table2.jsonl").exists()
    refused = sfedhp(*words, "--records", "experiments/table2.toml")
    assert (refused.exit_code, "is a file: name a folder" in refused.stderr) == (2, True)
    for option in ("--records", "--html", "--markdown", "--experiments"):
        refused = sfedhp(*words, option, "")
        assert (refused.exit_code, f"{option} is empty" in refused.stderr) == (2, True)


def test_a_file_with_a_slip_is_refused_by_its_line_before_anything_runs(small, sfedhp):
    (small / "experiments" / "table3.toml").write_text(TINY.replace("[model]", "[model"), encoding="utf-8")
    for target in ("table3", "table2"):
        refused = sfedhp("reproduce", target)
        assert refused.exit_code == 2
        assert "experiments/table3.toml is not valid TOML: " in refused.stderr
        assert "(at line 5, column 7)" in refused.stderr
    assert not (small / "results").exists()


@pytest.mark.parametrize("key", ["table", "reading", "variants"])
def test_a_table_that_lacks_something_is_refused(small, sfedhp, key):
    lines = [line for line in TINY.splitlines() if not line.startswith((f"{key} =", f"[reproduce.{key}"))]
    (small / "experiments" / "table3.toml").write_text("\n".join(lines), encoding="utf-8")
    refused = sfedhp("reproduce", "table3")
    assert refused.exit_code == 2
    assert f"table of experiments/table3.toml has no {key}: see" in refused.stderr


def test_on_80_columns_the_tables_can_be_read(ran, sfedhp, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    text = re.sub(r"\x1b\[[\d;]*m", "", sfedhp("reproduce", "table1", "table2", "--show").stdout)
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert "…" not in text
    [row] = [line for line in lines if line.startswith("MNIST S1 sFedHP λ=20 ")]
    # paper ± spread, last five ± interval, best, gap, neighbouring
    numbers = r" +[\d.]+ ± [\d.]+ +[\d.]+ +[+-][\d.]+ .*–"
    assert re.fullmatch(rf"MNIST S1 sFedHP λ=20 +94.93 ± 0.03{numbers}", row)
    [dropped] = {line for line in lines if line.startswith("(no room for: last, validated")}
    assert dropped.endswith("; a wider terminal or --json shows all)")


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


def test_after_a_signal_it_continues_with_what_is_missing(small, process):
    text = TINY.replace("rounds = 3", "rounds = 1000000")
    (small / "experiments" / "table2.toml").write_text(text, encoding="utf-8")
    child = process("reproduce", "table2", "--seeds", "1", "--only", "fedavg")
    for line in child.stderr:
        if "rounds" in line:
            child.send_signal(signal.SIGINT)
            break
    _, said = child.communicate(timeout=600)
    assert child.returncode == 130
    assert "continues with the runs that have no record yet" in said
    assert not (small / "results" / "table2.jsonl").exists()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('fedavg = "algorithm=fedavg"', "fedavg = 3", "The variant fedavg = 3 in experiments/table2.toml"),
        (
            'reading = "balanced"',
            'reading = "balanced"\npaper = "no"',
            "paper = 'no' in experiments/table2.toml",
        ),
        ('reading = "balanced"', 'reading = "balanced"\nchoice_rounds = 1.5', "choice_rounds = 1.5 in"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(ran, sfedhp, before, after, said):
    (ran / "experiments" / "table2.toml").write_text(TINY.replace(before, after), encoding="utf-8")
    refused = sfedhp("reproduce", "--show")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: {said}")
    assert "cannot be used: write" in refused.stderr


def test_records_that_are_not_text_are_refused(ran, sfedhp):
    (ran / "results" / "table2.jsonl").write_bytes(b"\xff\xfe")
    refused = sfedhp("reproduce", "--show")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(
        "error: results/table2.jsonl is not a file of records, because it is not UTF-8 text:"
    )


@pytest.fixture(scope="module")
def three_studies(tmp_path_factory: pytest.TempPathFactory, one_study: Path) -> Path:
    """A folder with three studies of one table, one of which was not run, and a figure."""
    folder = tmp_path_factory.mktemp("three_studies")
    shutil.copytree(one_study, folder, dirs_exist_ok=True)
    other = TINY.replace("fedavg", "hierfavg").replace(
        'reading = "balanced"', 'reading = "as-written"\npaper = false'
    )
    for name in ("table2-extras", "table2-as-written"):
        (folder / "experiments" / f"{name}.toml").write_text(other, encoding="utf-8")
    figure = TINY.replace('"table2"', '"fig2"').replace("sfedhp λ=20", "sfedhp")
    (folder / "experiments" / "fig2.toml").write_text(figure, encoding="utf-8")
    reproduce(folder, "table2-extras", "fig2", "--seeds", "1")
    return folder


@pytest.fixture
def several(here: Path, three_studies: Path) -> Path:
    """A copy of `three_studies`."""
    shutil.copytree(three_studies, here, dirs_exist_ok=True)
    return here


@pytest.mark.parametrize(
    ("targets", "methods"),
    [
        (("table2-extras",), ["hierfavg", "sfedhp", "sfedhp"]),
        (("table2",), ["fedavg", "sfedhp", "sfedhp", "hierfavg", "sfedhp", "sfedhp"]),
        (("table2-extras", "table2"), ["fedavg", "sfedhp", "sfedhp", "hierfavg", "sfedhp", "sfedhp"]),
        (("table2-as-written",), []),
    ],
)
def test_a_study_is_shown_alone_and_a_table_whole(several, sfedhp, targets, methods):
    shown = sfedhp("reproduce", *targets, "--show", "--json")
    assert [row["method"] for row in json.loads(shown.stdout) if row["metric"] != "em"] == methods
    text = tables_of(sfedhp("reproduce", *targets, "--show").stdout)
    assert ("HierFAVG GM" in text, "FedAvg GM" in text) == (
        "hierfavg" in methods,
        "fedavg" in methods,
    )
    said = "Nothing of table2-as-written was run yet.\n"
    assert (said in shown.stderr) is (not methods)


def test_a_target_without_rows_is_named(several, sfedhp):
    shown = sfedhp("reproduce", "fig2", "--show", "--json")
    assert json.loads(shown.stdout) == []
    assert shown.stderr.startswith("fig2 is a figure and has no rows: see the page.\n")
    (several / "results" / "table2.jsonl").unlink()
    (several / "results" / "fig2.jsonl").unlink()
    for target in ("table1", "fig2"):
        assert f"Nothing of {target} was run yet.\n" in sfedhp("reproduce", target, "--show").stderr
    shown = sfedhp("reproduce", "table2", "table1", "--show", "--only", " fedavg , sfedhp")
    assert "Nothing of table1 was run yet for variants that begin with fedavg or sfedhp.\n" in shown.stderr
    assert "Nothing of table2 " not in shown.stderr
    assert "Nothing" not in sfedhp("reproduce", "--show").stderr


@pytest.fixture
def packaged(here, one_study, monkeypatch):
    """An empty folder, and a package with one study and its records as a wheel has them."""
    inside = here.parent / f"{here.name}-package"
    shutil.copytree(one_study / "experiments", inside / "experiments")
    (inside / "records").mkdir()
    for path in (one_study / "results").glob("*.jsonl"):
        (inside / "records" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    monkeypatch.setattr("sfedhp.paper.packaged._INSIDE", inside)
    return inside


def test_the_records_of_the_package_are_shown_without_a_clone(packaged, here, one_study, sfedhp):
    done = sfedhp("reproduce", "table2", "--show", "--json")
    assert done.exit_code == 0, done.stderr
    assert [row["seeds"] for row in json.loads(done.stdout)] == [2, 2, 2]
    assert not (here / "results").exists()


def test_what_the_records_of_the_package_lack_is_run_beside_them(packaged, here, sfedhp):
    before = {path.name: path.read_bytes() for path in (packaged / "records").iterdir()}
    done = sfedhp("reproduce", "table2", "--seeds", "3", "--device", "cpu", "--json")
    assert done.exit_code == 0, done.stderr
    assert "The package's records are now in results: only what they lack is run." in done.stderr
    assert [row["seeds"] for row in json.loads(done.stdout)] == [3, 3, 3]
    lines = (here / "results" / "table2.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3 * len(gzip.decompress(before["table2.jsonl.gz"]).splitlines()) // 2
    assert {path.name: path.read_bytes() for path in (packaged / "records").iterdir()} == before
    again = sfedhp("reproduce", "table2", "--show", "--json")
    assert json.loads(again.stdout) == json.loads(done.stdout)


def test_damaged_compressed_records_are_refused(packaged, sfedhp):
    path = packaged / "records" / "table2.jsonl.gz"
    path.write_bytes(path.read_bytes()[:200])
    done = sfedhp("reproduce", "table2", "--show")
    assert done.exit_code == 2
    assert "table2.jsonl is not a file of records" in done.stderr


def test_the_studies_of_the_package_go_with_its_records_alone(packaged, here, sfedhp):
    (here / "experiments").mkdir()
    (here / "experiments" / "table2.toml").write_text(TINY, encoding="utf-8")
    done = sfedhp("reproduce", "--show")
    assert done.exit_code == 2
    assert "results holds no records" in done.stderr
