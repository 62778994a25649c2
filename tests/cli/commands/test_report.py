"""`sfedhp report`, and the pages that other commands write."""

from __future__ import annotations

from pathlib import Path


def test_the_page_of_a_run_is_named_and_written_again(sfedhp, tiny, here):
    ran = sfedhp("run", *tiny, "--out", "one")
    assert ran.stdout.splitlines()[-1] == "Page: one/report.html"
    first = Path("one/report.html").read_text(encoding="utf-8")
    Path("one/report.html").unlink()
    result = sfedhp("report", "one")
    assert (result.exit_code, result.stdout) == (0, "one/report.html\n")
    assert Path("one/report.html").read_text(encoding="utf-8") == first


def test_json_stays_alone_on_stdout(sfedhp, tiny):
    result = sfedhp("run", *tiny, "--out", "one", "--json")
    assert "report.html" not in result.stdout
    assert "Page: one/report.html" in result.stderr


def test_no_report_writes_none(sfedhp, tiny):
    for words in (["run"], ["compare", "--only", "fedavg"], ["sweep", "seeds=2"]):
        folder = f"{words[0]}-folder"
        result = sfedhp(words[0], *tiny, *words[1:], "--out", folder, "--no-report")
        assert result.exit_code == 0
        assert "Page" not in result.output
        assert not list(Path(folder).rglob("report.html"))


def test_comparisons_and_sweeps_have_one_page(sfedhp, tiny):
    tiny = [word for word in tiny if not word.startswith("algorithm")]
    sfedhp("compare", *tiny, "--only", "fedavg,fedprox", "--out", "all")
    assert [str(path) for path in Path("all").rglob("report.html")] == ["all/report.html"]
    result = sfedhp("sweep", *tiny, "seeds=2", "--out", "grid")
    assert result.stdout.splitlines()[-1] == "Page: grid/report.html"


def test_several_folders_and_formats(sfedhp, tiny):
    for name in ("one", "two"):
        sfedhp("run", *tiny, "--out", name, "--no-report")
    result = sfedhp("report", "one", "two", "--csv", "--latex")
    assert result.stdout.splitlines() == ["report.html", "report.csv", "report.tex"]
    result = sfedhp("report", "one", "--out", "pages/first.html", "--svg")
    assert "pages/first-charts/tree.svg" in result.stdout.splitlines()


def test_bad_input_is_a_sentence(sfedhp, tiny):
    Path("file").write_text("")
    Path("empty").mkdir()
    sfedhp("run", *tiny, "--out", "one", "--no-report")
    for words, sentence in {
        ("empty",): "holds no run",
        ("file",): "is not a folder",
        ("absent",): "is not a folder",
        ("one", "--out", "page.pdf"): "let it end in .html",
        ("one", "--out", "file/page.html"): "cannot be written because",
        ("one", "--out", ""): "--out is empty",
    }.items():
        result = sfedhp("report", *words)
        assert result.exit_code == 2, words
        assert sentence in result.stderr, result.stderr
    assert not Path("one/report.html").exists()


def test_a_page_that_cannot_be_written_does_not_fail_the_run(sfedhp, tiny):
    Path("one/report.html").mkdir(parents=True)
    result = sfedhp("run", *tiny, "--out", "one")
    assert result.exit_code == 0
    assert "The page was not written: " in result.stderr
