"""Who takes part in a federation: from the cloud's status, and from those of edges on the same machine."""

from __future__ import annotations

import json
import re
import time

from sfedhp.report.federation import kits_beside, member_states, refused
from sfedhp.report.watch import Watcher
from sfedhp.runs.score_files import SCORE_FILES
from tests.support.run_folders import write_run


def write_status(kit, age=0.0, **values):
    (kit / "run").mkdir(parents=True, exist_ok=True)
    (kit / "sfedhp.json").write_text("{}")
    status = {"name": kit.name, "time": time.time() - age, **values}
    (kit / "run/status.json").write_text(json.dumps(status))


def states_of(**states):
    return {name.replace("_", "-"): {"state": state, "silent": 0.1} for name, state in states.items()}


def federation(folder, **more):
    """A cloud with two edges, of which one has its kit here."""
    run = write_run(folder / "cloud/run")
    for name in SCORE_FILES:
        (run / name).unlink()
    (run / "run.json").write_text("{}")
    members = {
        "edge-0": {"up": True, "members": {"client-0-0": True, "client-0-1": True}},
        "edge-1": {"up": True, "members": {"client-1-0": True, "client-1-1": False}},
    }
    states = states_of(edge_0="working", edge_1="late")
    write_status(folder / "cloud", members=members, states=states, round=2, rounds=4, **more)
    write_status(folder / "edge-0", states=states_of(client_0_0="answered", client_0_1="refused"))
    return run


def test_edges_on_this_machine_say_more_of_their_clients(tmp_path):
    run = federation(tmp_path)
    assert [kit.name for kit in kits_beside(run)] == ["cloud", "edge-0"]
    assert member_states(run) == {
        "cloud": "working",
        "edge-0": "working",
        "client-0-0": "answered",
        "client-0-1": "refused",
        "edge-1": "late",
        "client-1-0": "up",
        "client-1-1": "absent",
    }


def test_a_cloud_that_is_silent_or_has_ended_is_shown(tmp_path):
    run = federation(tmp_path)
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"time": time.time() - 60}))
    states = member_states(run)
    assert states["cloud"] == states["edge-0"] == "silent"
    assert states["client-0-0"] == "unknown"  # its edge's file may be old
    (run / "status.json").write_text(json.dumps(status | {"finished": True}))
    assert member_states(run)["edge-1"] == "ended"


def test_a_simulation_has_no_members(tmp_path):
    assert member_states(write_run(tmp_path / "one")) == {}


def test_the_page_lists_members_marks_them_in_the_tree_and_counts_refusals(tmp_path):
    run = federation(tmp_path)
    (tmp_path / "edge-0/run/log.jsonl").write_text(
        json.dumps({"event": "refused", "member": "client-0-1", "times": 3})
        + "\n"
        + json.dumps({"event": "refused", "member": "<b>", "times": 1})
    )
    assert refused(run) == {"client-0-1": 3, "<b>": 1}
    html = json.loads(Watcher([tmp_path]).content().body)["html"]
    assert '<li data-member="client-0-1" class="bad">client-0-1: refused, 3 refused</li>' in html
    assert '<li data-member="client-0-0">client-0-0: answered</li>' in html
    assert "Refused 1 time: &lt;b&gt;" in html
    cell = re.search(r'aria-label="client 0-1 of edge 0; refused".*?</g>', html)
    assert cell is not None
    assert "worst-cell" in cell[0]
    assert "does not learn the figures of single clients" in html


def test_members_are_named_as_the_data_does(tmp_path):
    federation(tmp_path, names={"edge-0": "north", "client-0-1": "ward <3>"})
    html = json.loads(Watcher([tmp_path]).content().body)["html"]
    assert ">ward &lt;3&gt; [client-0-1]: refused</li>" in html
    assert 'aria-label="ward &lt;3&gt; of north; refused"' in html
    assert "client-0-0: answered</li>" in html
