"""The page in a real browser: it renders, says the history's numbers, and obeys pointer and keyboard."""

from __future__ import annotations

import csv
import re

import pytest

from sfedhp.report.facts import read_facts
from sfedhp.report.files import report_run
from sfedhp.runs.newcomer_records import write_newcomer
from sfedhp.runs.score_files import read_scores, write_alone, write_scores
from tests.support.browser import SCREENS
from tests.support.json_lines import json_lines
from tests.support.run_folders import write_run


def rows_of(folder):
    return json_lines(folder / "history.jsonl")


def numbers(lines):
    """The figures of a tip by name: {'PM': 81.0}."""
    found = (re.fullmatch(r"(.+?): ([\d.]+)( ± [\d.]+)?( %)?", line) for line in lines[1:])
    return {each[1]: float(each[2]) for each in found if each}


@pytest.fixture(scope="module")
def one(folders):
    return report_run(folders / "one")


@pytest.fixture(scope="module")
def several(folders):
    return report_run(folders / "several")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("which", ["one", "several"])
def test_the_page_renders_without_errors_or_requests(browser, one, several, which, width, scheme):
    path = {"one": one, "several": several}[which]
    with browser.open(path, width, scheme) as opened:
        page = opened.page
        charts = page.locator("svg.chart:visible")
        assert charts.count() >= 7
        for box in [charts.nth(place).bounding_box() for place in range(charts.count())]:
            assert box is not None
            assert box["width"] > 300
            assert box["height"] > 40
            assert box["x"] + box["width"] <= width
        assert opened.overflow <= 0
        smallest, largest = opened.chart_text
        assert smallest > 9.5
        assert largest < 15.5  # the page's own text has 15
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 29)"
        assert dark == (scheme == "dark")
        least, text = opened.contrast
        assert least >= 4.5, text
        assert opened.errors == []
        assert opened.requests == [path.as_uri(), "data:,"] or opened.requests == [path.as_uri()]


def test_the_numbers_are_those_of_the_history(browser, folders, one):
    rows = rows_of(folders / "one")
    with browser.open(one) as opened:
        tiles = opened.page.locator(".tile b").all_inner_texts()
        for place, kind in enumerate(("pm", "em", "gm")):
            assert tiles[place].replace("\N{NO-BREAK SPACE}", " ") == f"{rows[-1][kind]:.2f} %"
        curves = opened.page.locator("#curves")
        curves.focus()
        opened.page.keyboard.press("Home")
        for row in rows:
            assert opened.tip[0] == f"round {row['round']}"
            shown = numbers(opened.tip)
            assert shown == {kind.upper(): pytest.approx(row[kind], abs=0.005) for kind in ("pm", "em", "gm")}
            opened.page.keyboard.press("ArrowRight")
        opened.page.keyboard.press("Escape")
        assert opened.tip == []
        box = curves.bounding_box()
        opened.page.mouse.move(box["x"] + 0.12 * box["width"], box["y"] + 0.5 * box["height"])
        assert opened.tip[0] == "round 1"
        assert numbers(opened.tip)["GM"] == pytest.approx(rows[0]["gm"], abs=0.005)
        opened.page.mouse.move(1, 1)
        assert opened.tip == []


@pytest.mark.parametrize("width", [360, 1440])
def test_every_client_of_the_tree_tells_its_figures(browser, folders, one, width):
    with open(folders / "one" / "clients.csv", newline="") as file:
        clients = list(csv.DictReader(file))
    with browser.open(one, width) as opened:
        cells = opened.page.locator("svg.chart:visible .target[data-tier=client]")
        assert cells.count() == len(clients)
        for place, row in enumerate(clients):
            label = cells.nth(place).get_attribute("aria-label")
            assert label.startswith(f"client {row['client']} of edge {row['edge']}: {row['rows']} rows, ")
            mix = zip(row["labels"].split(), row["label_rows"].split(), strict=True)
            assert f"labels {', '.join(f'{label} ({count})' for label, count in mix)}; " in label
            for kind in ("pm", "em", "gm"):
                assert f"{kind.upper()} {float(row[kind]):.2f} %" in label
        cells.nth(1).scroll_into_view_if_needed()
        cells.nth(1).hover()
        assert opened.tip == cells.nth(1).get_attribute("aria-label").split("; ")


def test_a_finger_gets_what_a_pointer_gets(browser, folders, one):
    last = rows_of(folders / "one")[-1]
    with browser.open(one, 360, touch=True) as opened:
        page = opened.page
        cell = page.locator("#narrow-tree .target[data-tier=client]").nth(1)
        cell.tap()
        assert opened.tip == cell.get_attribute("aria-label").split("; ")
        curves = page.locator("#curves")
        box = curves.bounding_box()
        curves.tap(position={"x": 0.95 * box["width"], "y": 0.5 * box["height"]})
        assert opened.tip[0] == f"round {last['round']}"
        assert numbers(opened.tip)["GM"] == pytest.approx(last["gm"], abs=0.005)
        page.locator("h1").tap()
        assert opened.tip == []


@pytest.mark.parametrize("classes", [3, 62])
def test_a_client_has_one_line_of_the_table_however_many_labels_it_has(browser, tmp_path, classes):
    with browser.open(report_run(write_run(tmp_path / "run", classes=classes))) as opened:
        table = opened.page.locator("#clients-table")
        around = table.locator("..")
        assert around.evaluate("box => box.scrollWidth - box.clientWidth") <= 0
        assert all(box["height"] < 40 for box in (row.bounding_box() for row in table.locator("tr").all()))


def test_tables_with_long_names_need_no_scroll_bar(browser, tmp_path):
    folder = write_run(tmp_path / "run", per_edge=5, classes=4)
    scores = read_scores(folder)
    assert scores is not None
    for row in scores.clients:
        row |= {"name": f"ward {row['client']} of surgery", "edge_name": f"Sankt_Anna_{row['edge']}"}
    for row, name in zip(scores.classes, ["T-shirt/top", "Ankle boot", "Pullover", "Dress"], strict=True):
        row["name"] = name
    write_scores(folder, scores)
    write_alone(folder, dict.fromkeys(range(10), 70.0))
    (folder / "newcomers").mkdir()
    found = {"start": "edge-Sankt_Anna_0", "kept": "start", "metric": "accuracy", "rows": 45, "test_rows": 15}
    write_newcomer(
        folder / "newcomers/ward-99-of-surgery.safetensors", found | {"before": 80.0, "after": 75.0}
    )
    with browser.open(report_run(folder)) as opened:
        for name in ("clients-table", "newcomers-table"):
            around = opened.page.locator(f"#{name}").locator("..")
            assert around.evaluate("box => box.scrollWidth - box.clientWidth") <= 0, name


def test_the_tree_is_used_with_the_keyboard(browser, one):
    with browser.open(one) as opened:
        page = opened.page
        page.locator(".theme").focus()
        page.keyboard.press("Tab")
        told = [opened.tip[0]]
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "End", "ArrowRight", "Home"):
            page.keyboard.press(key)
            told.append(opened.tip[0].partition(":")[0])
        # In the order of the page: the cloud, then each edge with its clients.
        assert told[0].startswith("cloud: 2 edges, 6 clients")
        assert told[1:] == [
            *("edge 0", "client 0 of edge 0", "client 0 of edge 0", "edge 0"),
            *("client 5 of edge 1", "client 5 of edge 1", "cloud"),
        ]
        page.keyboard.press("Escape")
        assert opened.tip == []
        page.keyboard.press("Tab")  # one stop for the whole tree
        assert page.evaluate("document.activeElement.closest('#tree')") is None


def test_tables_are_sorted_by_click_and_keyboard(browser, several):
    names = {group.name: group for group in read_facts([several.parent]).groups}
    assert list(names) == ["fedavg", "sfedhp"]
    with browser.open(several) as opened:
        page = opened.page
        heading = page.locator("#runs-table th", has_text="GM, %")
        column = 1 + heading.evaluate("cell => cell.cellIndex")
        found = {name: group.estimate("gm_last") for name, group in names.items()}
        means = {name: each for name, each in found.items() if each is not None}
        assert list(means) == list(names)
        assert opened.column("runs-table", column) == [each.text() for each in means.values()]
        heading.locator("button").click()
        ascending = sorted(means, key=lambda name: means[name].mean)
        assert opened.column("runs-table", 1) == ascending
        assert heading.get_attribute("aria-sort") == "ascending"
        heading.locator("button").focus()
        page.keyboard.press("Enter")
        assert opened.column("runs-table", 1) == ascending[::-1]
        assert heading.get_attribute("aria-sort") == "descending"
        # fedavg has no personal models: a missing figure stays last in both orders.
        personal = page.locator("#runs-table th", has_text=re.compile("^PM, %"))
        for _ in range(2):
            personal.locator("button").click()
            assert opened.column("runs-table", 1) == ["sfedhp", "fedavg"]


def test_a_run_of_several_is_chosen(browser, several):
    with browser.open(several) as opened:
        picker = opened.page.locator("select.picker")
        assert picker.locator("option").all_inner_texts() == ["fedavg-0", "fedavg-1", "sfedhp-0", "sfedhp-1"]
        # FedAvg has no personal models: the first run that has some is chosen.
        assert picker.input_value() == "2"
        assert opened.page.locator("#run2-tree").is_visible()
        assert not opened.page.locator("#run0-tree").is_visible()
        picker.select_option("3")
        assert opened.page.locator("#run3-tree").is_visible()
        assert not opened.page.locator("#run2-tree").is_visible()
        opened.page.locator("#run3-clients").focus()
        opened.page.keyboard.press("Home")
        assert opened.tip[0].startswith("client ")


def test_the_mean_over_seeds_is_shown_with_its_deviation(browser, folders, several):
    with browser.open(several) as opened:
        opened.page.locator("#curves-gm").focus()
        opened.page.keyboard.press("End")
        histories = [rows_of(folders / "several" / f"sfedhp-{seed}") for seed in (0, 1)]
        low, high = sorted(rows[-1]["gm"] for rows in histories)
        line = next(line for line in opened.tip if line.startswith("sfedhp"))
        assert line == f"sfedhp: {(low + high) / 2:.2f} ± {(high - low) / 2**0.5:.2f} %"


def test_the_theme_can_be_changed(browser, one):
    with browser.open(one) as opened:
        ground = "getComputedStyle(document.body).backgroundColor"
        assert opened.page.evaluate(ground) == "rgb(255, 255, 255)"
        opened.page.locator(".theme").click()
        assert opened.page.evaluate(ground) == "rgb(18, 23, 29)"


def test_text_of_data_is_never_code(browser, tmp_path):
    folder = write_run(tmp_path / "<img src=x onerror=alert(1)>")
    config = (folder / "config.toml").read_text()
    bad = "</script><script>document.title='broken'</script><b onmouseover='x'>"
    assert 'source = "fmnist-mini"' in config
    (folder / "config.toml").write_text(config.replace('source = "fmnist-mini"', f'source = "{bad}"'))
    with browser.open(report_run(folder)) as opened:
        assert opened.page.title() == "<img src=x onerror=alert(1)> – sfedhp"
        assert bad in opened.page.locator(".sentence").inner_text()
        assert opened.page.locator("main img, main script, main b[onmouseover]").count() == 0
        assert opened.errors == []


def test_a_thousand_clients_and_eight_hundred_rounds_open_quickly(browser, tmp_path):
    folder = write_run(tmp_path / "large", edges=20, per_edge=50, rounds=800, classes=10)
    path = report_run(folder)
    assert path.stat().st_size < 5_000_000
    frame = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    with browser.open("about:blank") as opened:
        chromium = opened.page.context.new_cdp_session(opened.page)
        # CPU seconds, because others may use the cores.
        chromium.send("Performance.enable", {"timeDomain": "threadTicks"})

        def used():
            metrics = chromium.send("Performance.getMetrics")["metrics"]
            return next(each["value"] for each in metrics if each["name"] == "TaskDuration")

        before = used()
        opened.page.goto(path.as_uri())
        opened.page.evaluate(frame)
        print(f"{used() - before:.2f} CPU seconds")
        assert 0 < used() - before < 1
        assert opened.page.locator("svg.chart:visible .target[data-tier=client]").count() == 1000
