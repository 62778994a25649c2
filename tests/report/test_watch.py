"""The live page: it follows runs, survives restarts, and gives nothing to pages of other origins."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Error
from prometheus_client.parser import text_string_to_metric_families

from sfedhp.core.errors import InputError
from sfedhp.deploy.loopback import _Handler
from sfedhp.report.watch import Watcher, seconds_left, state_of_runs, watch
from tests.support.browser import EVIL
from tests.support.json_lines import json_lines
from tests.support.run_folders import write_run


def cut(folder: Path, rounds: int) -> list[str]:
    """Leave only the first rounds of a history; return the lines of the others."""
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join(lines[:rounds]))
    return lines[rounds:]


@pytest.fixture
def serve():
    started = []

    def start(*folders, port=0):
        server = watch(folders, port)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): v for name, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def metrics_of(data: bytes) -> dict[tuple, float]:
    found = {}
    for family in text_string_to_metric_families(data.decode()):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name not in ("folder", "run")}
            found[(sample.name, *labels.values())] = sample.value
    return found


def test_the_page_follows_a_run_and_keeps_what_the_reader_chose(browser, serve, tmp_path):
    one = write_run(tmp_path / "runs/one", rounds=6)
    write_run(tmp_path / "runs/two", rounds=6, seed=1)
    rest = cut(one, 2)
    server = serve(tmp_path / "runs")
    with browser.open(server.address) as opened:
        page = opened.page
        page.locator("#live-state", has_text="1 of 2 runs ended").wait_for(timeout=120_000)
        page.locator("select.picker").select_option("0")
        page.locator("#run0-clients-table th", has_text="GM").locator("button").click()
        page.locator("select.picker").select_option("1")
        order = opened.column("run0-clients-table", 1)
        page.locator("#run1-clients").focus()
        with (one / "history.jsonl").open("a") as file:
            file.write("".join(rest))
        page.locator("#live-state", has_text="2 of 2 runs ended").wait_for(timeout=120_000)
        assert opened.column("run0-clients-table", 1) == order
        assert page.locator("select.picker").input_value() == "1"
        assert page.locator("#run1-tree").is_visible()
        assert page.evaluate("document.activeElement.id") == "run1-clients"
        write_run(tmp_path / "runs/three", rounds=6, seed=2)
        page.locator("#live-state", has_text="3 of 3 runs ended").wait_for(timeout=120_000)
        assert opened.errors == []
        assert {url.split("?")[0] for url in opened.requests if url != "data:,"} == {
            server.address,
            f"{server.address}content.json",
        }


def test_the_page_survives_a_restart_of_the_server_and_of_the_run(browser, tmp_path):
    folder = write_run(tmp_path / "one", rounds=6)
    history = (folder / "history.jsonl").read_text()
    cut(folder, 3)
    server = watch([folder])
    server.start()
    port = server.port
    with browser.open(server.address) as opened:
        state = opened.page.locator("#live-state")
        opened.page.locator("#live-state", has_text="round 3 of 6, about ").wait_for(timeout=120_000)
        server.stop()
        opened.page.locator("#live-state", has_text="no answer").wait_for(timeout=120_000)
        (folder / "history.jsonl").unlink()  # the run begins again
        again = watch([folder], port)
        again.start()
        try:
            opened.page.locator(".note", has_text="Waiting: ").wait_for(timeout=120_000)
            (folder / "history.jsonl").write_text(history)
            opened.page.locator("#live-state", has_text="round 6 of 6, ended").wait_for(timeout=120_000)
            assert "no answer" not in state.inner_text()
            last = json.loads(history.splitlines()[-1])
            shown = opened.page.locator(".tile b").first.inner_text()
            assert shown.replace("\N{NO-BREAK SPACE}", " ") == f"{last['pm']:.2f} %"
        finally:
            again.stop()


class Hostile(BaseHTTPRequestHandler):
    """A page of another origin that tries to read the live page, and to write to it."""

    target = ""

    def do_GET(self) -> None:
        page = f"""<!doctype html><title>hostile</title><iframe src="{self.target}"></iframe>
        <script src="{self.target}content.json"></script><script>
        const tell = (name) => (value) => {{ (window.found ??= {{}})[name] = String(value); }};
        const tries = {{
          cors: fetch("{self.target}content.json").then((a) => a.text()),
          opaque: fetch("{self.target}content.json", {{mode: "no-cors"}}).then((a) => a.text()),
          post: fetch("{self.target}content.json", {{method: "POST", body: "x"}}).then((a) => a.text()),
        }};
        Promise.allSettled(Object.entries(tries).map(([name, each]) =>
          each.then(tell(name), () => tell(name)("refused")))).then(() => {{ document.title = "done"; }});
        </script>"""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def answered(monkeypatch):
    """The status of every answer of a server in this process."""
    found = []
    monkeypatch.setattr(_Handler, "log_request", lambda handler, code="-", size="-": found.append(int(code)))
    return found


def test_a_hostile_page_gets_nothing(browser, serve, answered, tmp_path):
    server = serve(write_run(tmp_path / "one"))
    Hostile.target = server.address
    other = HTTPServer(("127.0.0.1", 0), Hostile)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        for host in ("127.0.0.1", "localhost"):
            with browser.open(f"http://{host}:{other.server_port}/") as opened:
                opened.page.wait_for_function("document.title === 'done'")
                found = opened.page.evaluate("window.found")
                assert found["cors"] == "refused"
                assert found["opaque"] in ("refused", "")
                assert found["post"] == "refused"
                for frame in opened.page.frames[1:]:
                    assert frame.locator(".sentence").count() == 0
        assert len(answered) >= 8
        assert set(answered) == {403, 501}  # 501: nothing can be written
    finally:
        other.shutdown()
        other.server_close()


def test_a_name_that_leads_to_this_machine_gets_nothing(browser, serve, answered, tmp_path):
    server = serve(write_run(tmp_path / "one"))
    nothing = pytest.raises(Error, match="ERR_HTTP_RESPONSE_CODE_FAILURE")
    with browser.open("about:blank") as opened, nothing:
        opened.page.goto(f"http://{EVIL}:{server.port}/")
    assert set(answered) == {403}


def test_requests_for_other_hosts_from_elsewhere_and_to_write_are_refused(serve, tmp_path):
    folder = write_run(tmp_path / "one")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    server = serve(folder)
    own = f"127.0.0.1:{server.port}"
    assert ask(server)[0] == 200
    assert ask(server, Origin=f"http://{own}", Sec_Fetch_Site="same-origin")[0] == 200
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{server.port}"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        for path in ("/", "/content.json", "/metrics"):
            status, body, answered = ask(server, path, **headers)
            assert (status, body) == (403, b""), headers
            assert "Access-Control-Allow-Origin" not in answered
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert ask(server, "/", method)[0] == 501
    for path in ("/config.toml", "/../config.toml", "//etc/passwd", "/content.json/"):
        assert ask(server, path)[0] == 404
    status, body, headers = ask(server, "/", "HEAD")
    assert (status, body) == (200, b"")
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_metrics_are_those_of_the_history(serve, tmp_path):
    folder = write_run(tmp_path / "one", rounds=5)
    cut(folder, 3)
    rows = json_lines(folder / "history.jsonl")
    status, body, headers = ask(serve(folder), "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    found = metrics_of(body)
    assert found[("sfedhp_round",)] == 3
    assert found[("sfedhp_rounds",)] == 5
    assert found[("sfedhp_finished",)] == 0
    for kind in ("pm", "em", "gm"):
        assert found[("sfedhp_accuracy_percent", kind)] == pytest.approx(rows[-1][kind])
    sent = sum(row["bytes_edge_cloud"] for row in rows)
    assert found[("sfedhp_sent_bytes", "edge_cloud")] == sent


def test_the_time_left_is_that_of_the_last_rounds(tmp_path):
    folder = write_run(tmp_path / "one", rounds=6)
    cut(folder, 2)
    facts, problems = Watcher([folder])._read()
    assert facts is not None
    assert problems == []
    seconds = [row["seconds"] for row in facts.runs[0].record.history]
    assert seconds_left(facts.runs[0]) == pytest.approx(4 * sum(seconds) / 2)
    assert state_of_runs(facts).startswith("round 2 of 6, about ")
    assert state_of_runs(None) == "no run yet"


def test_unchanged_runs_are_not_read_again(tmp_path):
    folder = write_run(tmp_path / "one")
    watcher = Watcher([folder])
    first, again = (json.loads(watcher.content().body) for _ in range(2))
    assert first["version"] == again["version"]
    kept = watcher._runs[folder][1]
    watcher.content()
    assert watcher._runs[folder][1] is kept
    cut(folder, 2)
    assert json.loads(watcher.content().body)["version"] != first["version"]


def test_what_cannot_be_watched_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        watch([tmp_path / "absent"])
    (tmp_path / "empty").mkdir()
    server = watch([tmp_path / "empty"])
    try:
        with pytest.raises(InputError, match="choose another with --port"):
            watch([tmp_path / "empty"], server.port)
    finally:
        server._server.server_close()
