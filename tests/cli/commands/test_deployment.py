"""The commands of a deployment."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from sfedhp.cli.output.federation import status_line, status_table
from sfedhp.runs.hints import SeenClasses
from tests.support.invoking import invoke

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

SMALL = ["rounds=2", "edges=2", "clients_per_edge=1", "model.name=mlr", "algorithm.edge_rounds=2"]
SMALL += ["data.train_per_label=4", "data.test_per_label=2", "data.validation_per_label=0"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("federation.toml").write_text('name = "trial"\n')
    return tmp_path


@pytest.fixture
def sfedhp(here):
    return invoke


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory):
    """A folder with kits, made once: keys and certificates take seconds. What the command printed."""
    folder = tmp_path_factory.mktemp("provisioned")
    before = Path.cwd()
    os.chdir(folder)
    try:
        Path("federation.toml").write_text('name = "trial"\n')
        result = invoke("provision", "federation.toml", *SMALL, "--json")
    finally:
        os.chdir(before)
    assert result.exit_code == 0, result.stderr
    return folder, result.stdout


@pytest.fixture
def kits(here, provisioned):
    """A copy of the kits in the current folder."""
    folder, printed = provisioned
    shutil.copytree(folder / "kits", here / "kits")
    return {name: Path(kit) for name, kit in json.loads(printed).items()}


def test_kits_are_listed(kits, sfedhp):
    assert list(kits) == ["cloud", "edge-0", "edge-1", "client-0-0", "client-1-0"]
    plain = sfedhp("provision", "federation.toml", *SMALL, "--out", "more")
    assert plain.stdout.splitlines()[0] == "more/cloud"


def test_roles_become_flares_process(kits, sfedhp, becoming):
    for name, kit in kits.items():
        assert sfedhp(name.partition("-")[0], str(kit)).exit_code == 0
    modules = [words[1][3] for words in becoming]
    server, member = (
        "nvflare.private.fed.app.server.server_train",
        "nvflare.private.fed.app.client.client_train",
    )
    assert modules == [server, server, server, member, member]
    assert all(words[2]["OMP_NUM_THREADS"] for words in becoming)


def test_a_new_run_keeps_the_old_one(kits, sfedhp, becoming):
    cloud = kits["cloud"]
    for number in (1, 2):
        (cloud / "run").mkdir()
        (cloud / "run" / "which").write_text(str(number))
        assert sfedhp("cloud", str(cloud), "--new").exit_code == 0
    assert [(cloud / f"run-{number}" / "which").read_text() for number in (1, 2)] == ["1", "2"]
    assert not (cloud / "run").exists()


def test_a_new_run_counts_what_the_old_one_spent_of_its_privacy(kits, sfedhp, becoming):
    cloud = kits["cloud"]
    (cloud / "run").mkdir()
    (cloud / "run" / "privacy.json").write_text("spent")
    assert sfedhp("cloud", str(cloud), "--new").exit_code == 0
    assert [path.name for path in (cloud / "run").iterdir()] == ["privacy.json"]
    assert (cloud / "run" / "privacy.json").read_text() == "spent"


def test_a_client_with_its_own_file(kits, sfedhp, becoming, here):
    np.savez("mine.npz", inputs=np.zeros((20, 1, 28, 28), np.uint8), labels=np.arange(20) % 10)
    words = ("client", str(kits["client-0-0"]), "data.source=mine.npz", "data.test_share=0.5")
    assert sfedhp(*words).exit_code == 0
    data = json.loads(becoming[0][2]["SFEDHP_CLIENT_DATA"])
    assert data["source"] == str(here / "mine.npz")
    assert data["test_share"] == 0.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("provision", "none.toml"), "cannot be read"),
        (("provision", "federation.toml", "federation.toml"), "one federation file"),
        (("provision", "federation.toml", "round=3"), "rounds"),
        (("deploy", "federation.toml"), "--local"),
        (("cloud", "kits/edge-0"), "sfedhp edge"),
        (("client", "nowhere"), "is not a kit"),
        (("client", "kits/client-0-0", "rounds=3"), "data.source"),
        (("client", "kits/client-0-0", "data.source=none.npz"), "There is no file none.npz."),
        (("client", "kits/client-0-0", "data.source=mnist"), "not a file ending in .npz"),
        (("status", "kits/cloud"), "has not been started"),
    ],
)
def test_bad_input_ends_in_a_sentence(kits, sfedhp, words, said):
    result = sfedhp(*words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.startswith("error: ")


def test_without_flare_commands_name_the_extra(sfedhp, monkeypatch):
    monkeypatch.setattr("sfedhp.cli.roles.find_spec", lambda name: None)
    result = sfedhp("provision", "federation.toml")
    assert result.exit_code == 2
    assert "sfedhp[deploy]" in result.stderr


def test_a_kit_that_cannot_be_written(kits, sfedhp, monkeypatch):
    monkeypatch.setattr("sfedhp.cli.roles.os.access", lambda path, mode: mode != os.W_OK)
    assert "keeps its state" in sfedhp("cloud", str(kits["cloud"])).stderr


STATUS = {
    "name": "cloud",
    "time": 0.0,
    "round": 3,
    "rounds": 9,
    "row": {"gm": 81.5, "bytes_cloud_edge": 2_000_000, "missing": {"client-0-1": 4}},
    "members": {
        "edge-0": {"up": True, "edge_round": 7, "members": {"client-0-0": True, "client-0-1": False}},
        "edge-1": {"up": False},
    },
}


def test_the_status_of_a_federation(kits, sfedhp):
    folder = kits["cloud"] / "run"
    folder.mkdir()
    (folder / "status.json").write_text(json.dumps(STATUS | {"time": time.time()}))
    result = sfedhp("status", str(kits["cloud"]))
    assert "client-0-0  (client-0-1)" in result.stdout
    assert re.findall(r"edge-(\d) +(\w+)", result.stdout) == [("0", "yes"), ("1", "no")]
    assert "running" not in result.stderr
    (folder / "status.json").write_text(json.dumps(STATUS | {"time": time.time() - 60}))
    result = sfedhp("status", str(kits["cloud"]))
    text = result.stdout
    # Nobody knows now who is up.
    assert re.findall(r"edge-(\d) +(\w+)", text) == [("0", "unknown"), ("1", "unknown")]
    assert "client-0-0" not in text
    assert "probably not running: start it with `sfedhp cloud kits/cloud`." in result.stderr
    assert "cloud: round 3/9  GM 81.50  2.0 MB per round  missing client-0-1 (4)" in text
    assert "(60 s ago)" in text
    assert json.loads(sfedhp("status", str(kits["cloud"]), "--json").stdout)["round"] == 3
    assert "finished" in status_line(STATUS | {"finished": True})
    assert "diverged" in status_line(STATUS | {"finished": True, "trouble": "diverged"})
    edge = {"name": "edge-0", "time": time.time(), "members": {"client-0-0": True}}
    members = status_table(edge).renderables[1]
    assert isinstance(members, Table)
    assert members.row_count == 1
    assert len(status_table({"name": "client-0-0", "time": time.time()}).renderables) == 1  # no empty table


def test_a_status_has_the_names_of_the_data_as_plain_text():
    names = {"edge-0": "[bold]north", "client-0-0": "w\x1b[2J1"}
    members = {"edge-0": {"up": True, "members": {"client-0-0": True, "client-0-1": False}}}
    status = {"name": "cloud", "time": time.time(), "members": members, "names": names}
    console = Console(width=120, file=io.StringIO(), force_terminal=False)
    console.print(status_table(status | {"row": {"missing": {"client-0-0": 2}}}))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]north [edge-0]" in shown
    assert "w\\x1b[2J1 [client-0-0]  (client-0-1)" in shown
    assert "missing w\\x1b[2J1 [client-0-0] (2)" in shown
    assert status_line({"name": "edge-0", "names": names}).startswith("[bold]north [edge-0]: round 0")


def test_members_text_is_no_markup_and_no_command_to_the_terminal(kits, sfedhp):
    folder = kits["cloud"] / "run"
    folder.mkdir(exist_ok=True)
    members = {"[red]edge-0": {"up": True, "members": {"\x1b[2Jclient": True, "[/bold]": False}}}
    status = STATUS | {"time": time.time(), "members": members, "finished": True, "trouble": "no\x1b]0;x\x07"}
    (folder / "status.json").write_text(json.dumps(status))
    text = sfedhp("status", str(kits["cloud"])).stdout
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]edge-0" in text
    assert "[/bold]" in text


@pytest.mark.parametrize("text", ["{}", "[]", '{"name": "cloud"}', "no JSON"])
def test_a_status_that_cannot_be_read(kits, sfedhp, text):
    folder = kits["cloud"] / "run"
    folder.mkdir()
    (folder / "status.json").write_text(text)
    for more in ((), ("--json",)):
        result = sfedhp("status", str(kits["cloud"]), *more)
        assert result.exit_code == 2
        assert result.stderr == (
            "error: kits/cloud/run/status.json cannot be read: a running role rewrites it, so try "
            "again, or start the role with `sfedhp cloud kits/cloud`.\n"
        )


def test_a_whole_federation_on_this_machine(sfedhp):
    words = [*SMALL, "algorithm=fedavg", "edges=1", "clients_per_edge=2"]  # three processes
    words.remove("algorithm.edge_rounds=2")
    result = sfedhp("deploy", "federation.toml", "--local", *words, "--out", "there", "--json")
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["finished"]
    assert summary["rounds"] == 2
    assert summary["gm_last"] is not None
    assert "cloud: round 2/2" in result.stderr
    assert Path(summary["folder"], "history.csv").exists()


class Played:
    """A federation that only has a status."""

    statuses: tuple = ()
    hear = None

    def __init__(self, kits):
        self.left = list(self.statuses)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self):
        pass

    def poll(self):
        if self.hear is not None:
            os.kill(os.getpid(), self.hear)
        return bool(self.left)

    def status(self):
        return self.left.pop(0) if len(self.left) > 1 else (self.statuses[-1] if self.statuses else None)

    def rows(self):
        return []


@pytest.fixture
def played(monkeypatch, here):
    monkeypatch.setattr("sfedhp.cli.commands.deploy.LocalFederation", Played)
    monkeypatch.setattr("sfedhp.deploy.provisioning.make_kits", lambda layout, kits: [])
    monkeypatch.setattr("sfedhp.cli.commands.deploy.time.sleep", lambda seconds: None)
    return lambda **answers: [monkeypatch.setattr(Played, name, value) for name, value in answers.items()]


def test_a_deployment_without_a_round_says_so_and_names_its_folder(sfedhp, played):
    played(statuses=())
    result = sfedhp("deploy", "federation.toml", "--local", *SMALL)
    assert result.exit_code == 0
    assert "Nothing was done." in result.stdout
    assert "Kits: runs/deploy-sfedhp-" in result.stdout
    assert "Records" not in result.stdout


def test_a_deployment_says_what_a_run_says(sfedhp, played, here, monkeypatch):
    inputs = np.random.default_rng(0).normal(size=(60, 4)) * [1, 1, 1e4, 1]
    client = np.arange(60) // 2 % 3
    names, edges = np.array(["a", "b", "c"])[client], np.array(["n", "s", "s"])[client]
    np.savez(here / "raw.npz", inputs=inputs, labels=np.arange(60) % 2, client=names, edge=edges)
    rows = [{"round": number, "gm": 50.0, "seconds": 1.0} for number in (1, 2, 3)]
    constant = {"gm": SeenClasses({0, 1}, {1})}
    ended = (STATUS | {"finished": True},)
    played(statuses=ended, rows=lambda self: rows, poll=lambda self: False)
    monkeypatch.setattr("sfedhp.cli.commands.deploy.classes_of_kits", lambda kits: constant)
    words = ["data.source=raw.npz", "rounds=3", "model.name=mlr"]
    result = sfedhp("deploy", "federation.toml", "--local", *words, "--out", "kits")
    assert result.exit_code == 0, result.stderr
    assert "Records and models: kits/cloud/run; the models of edges and clients are in " in result.stdout
    assert "`edge` of raw.npz gives edges = 2 and clients_per_edge = [1, 2]." in result.stderr
    assert "The inputs are not scaled, and input 2 reaches" in result.stderr
    assert "All predictions of GM (class 1) are one class" in result.stderr
    assert "The accuracy of GM (50.00 %) never moved from its first evaluation" in result.stderr


def test_an_interrupted_federation_ends_with_the_signals_code(sfedhp, played, capfd):
    played(statuses=(STATUS,), hear=signal.SIGINT)
    result = sfedhp("deploy", "federation.toml", "--local", *SMALL, "--out", "kits")
    assert result.exit_code == 130
    assert "cloud: round 3/9" in result.stdout
    assert "Records: kits/cloud/run" in result.stdout
    assert "stopping all processes; finished rounds are kept" in capfd.readouterr().err
    assert "Stopped after round 3 of 9. Continue with `sfedhp cloud kits/cloud`, and start" in result.stderr


def test_a_federation_that_is_interrupted_before_a_round_says_how_to_start_again(sfedhp, played):
    def interrupted(self):
        os.kill(os.getpid(), signal.SIGINT)
        return True

    played(statuses=(), poll=interrupted)
    result = sfedhp("deploy", "federation.toml", "--local", *SMALL, "--out", "kits")
    assert result.exit_code == 130
    assert result.stdout == "Nothing was done.\nKits: kits\n"
    assert "Stopped before the first round was done. Continue with `sfedhp cloud kits/cloud`" in result.stderr


def test_an_interruption_after_the_last_round_leaves_nothing_to_continue(sfedhp, played):
    played(statuses=(STATUS | {"finished": True},), hear=signal.SIGINT)
    result = sfedhp("deploy", "federation.toml", "--local", *SMALL, "--out", "kits")
    assert result.exit_code == 130
    assert "Stopped" not in result.stderr


@pytest.mark.parametrize("folder", ["kits", "kits/cloud", "kits/cloud/run"])
def test_a_folder_of_kits_is_not_resumed_as_a_run(kits, sfedhp, folder):
    (kits["cloud"] / "run").mkdir()
    (kits["cloud"] / "run" / "config.toml").write_text("rounds = 2\n")
    result = sfedhp("resume", folder)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {folder} is of a deployed federation: continue with `sfedhp cloud kits/cloud`, and start "
        "the roles of the other kits again too, with `sfedhp edge` or `sfedhp client`.\n"
    )
    assert "`sfedhp client kits/client-0-0`" in sfedhp("resume", "kits/client-0-0").stderr


def test_a_federation_that_diverged_has_its_exit_code(sfedhp, played, monkeypatch):
    ended = STATUS | {"finished": True, "trouble": "diverged in round 4"}
    played(statuses=(ended,))
    monkeypatch.setattr(Played, "poll", lambda self: False)
    result = sfedhp("deploy", "federation.toml", "--local", *SMALL, "--out", "kits")
    assert result.exit_code == 3
    assert "diverged in round 4" in result.stdout


def test_a_terminal_has_a_live_view(monkeypatch):
    written = io.StringIO()
    shown = Console(file=written, force_terminal=True, width=100)
    monkeypatch.setattr("sfedhp.cli.commands.deploy.Console", lambda stderr: shown)
    with importlib.import_module("sfedhp.cli.commands.deploy")._show_status() as show:
        show(STATUS)
    assert "edge-0" in written.getvalue()


def test_a_cloud_whose_old_run_cannot_be_kept(kits, sfedhp, becoming, monkeypatch):
    (kits["cloud"] / "run").mkdir()

    def refuse(self, target):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    assert "cannot be renamed" in sfedhp("cloud", str(kits["cloud"]), "--new").stderr


def test_an_experiment_of_ones_own(sfedhp, here):
    Path("mine.toml").write_text("rounds = 3\n[algorithm]\nname = 'fedavg'\n")
    Path("federation.toml").write_text('experiment = "mine.toml"\n')
    small = [word for word in SMALL if "rounds" not in word]
    result = sfedhp("provision", "federation.toml", *small, "algorithm.edge_rounds=4", "--json")
    assert list(json.loads(result.stdout)) == ["cloud", "client-0-0", "client-1-0"]
    assert "algorithm.edge_rounds is ignored" in result.stderr
    site = json.loads(Path("kits/cloud/sfedhp.json").read_text())
    assert site["experiment"]["rounds"] == 3


ADDRESS = "cannot be used: give a name of letters, digits, hyphens and dots, or an IPv4 address"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[cloud]\nhost = ""', f"host = '' of cloud {ADDRESS}"),
        ('[cloud]\nhost = "my_cloud"', f"host = 'my_cloud' of cloud {ADDRESS}"),
        ('[cloud]\nhost = "cloud.example.org\\n"', ADDRESS),
        ('[cloud]\nhost = "-x"', ADDRESS),
        ('[cloud]\nhost = "a..b"', ADDRESS),
        ('[cloud]\nhost = "fe80::1"', ADDRESS),
        ('[cloud]\nhost = "cloud.example.org:8100"', ADDRESS),
        (f'[cloud]\nhost = "{"abcdefgh." * 30}org"', ADDRESS),
        ('[[edges]]\nport = 1\n[[edges]]\nhost = "a_b"', f"host = 'a_b' of edge-1 {ADDRESS}"),
        ("[cloud]\nport = 65534", "edge-1 has no port after the cloud's 65534"),
        ("[cloud]\nport = -1", "cloud.port = -1 is out of range"),
        ("[cloud]\nport = 65536", "cloud.port = 65536 is out of range"),
        (
            'experiment = "../none.toml"',
            "federation.toml: experiment names ../none.toml, and there is no such file.",
        ),
        (f'name = "{"a" * 58}"', "take 57 characters at most"),
    ],
)
def test_a_federation_without_kits_leaves_nothing_behind(sfedhp, here, text, said):
    Path("federation.toml").write_text(text)
    result = sfedhp("provision", "federation.toml", *SMALL, "--out", "new/kits")
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in here.iterdir()] == ["federation.toml"]


@pytest.mark.parametrize(
    ("out", "said"), [("federation.toml", "Not a directory"), ("federation.toml/kits", "Not a directory")]
)
def test_a_file_is_no_folder_for_kits(sfedhp, here, out, said):
    result = sfedhp("provision", "federation.toml", *SMALL, "--out", out)
    assert result.exit_code == 2
    assert f"The kits cannot be written to {out} ({said}): choose another folder" in result.stderr
    assert [path.name for path in here.iterdir()] == ["federation.toml"]


@pytest.mark.parametrize("out", ["there", "there/deeper/kits"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_half_made_kits_are_taken_away(sfedhp, here, monkeypatch, out, error):
    Path("there").mkdir()

    def fail(*_):
        assert list(Path(out).rglob("*.key")), "something was made"
        raise error

    monkeypatch.setattr("sfedhp.deploy.topology.Layout.write", fail)
    result = sfedhp("provision", "federation.toml", *SMALL, "--out", out)
    assert result.exit_code == (2 if isinstance(error, OSError) else 130)
    assert ("(No space left on device): choose" in result.stderr) == isinstance(error, OSError)
    assert sorted(path.name for path in here.rglob("*")) == ["federation.toml", "there"]


def test_what_flare_cannot_do_is_one_sentence(sfedhp, here, monkeypatch):
    monkeypatch.setattr("sfedhp.deploy.provisioning._LONGEST_NAME", 200)
    Path("federation.toml").write_text(f'name = "{"a" * 100}"')
    result = sfedhp("provision", "federation.toml", *SMALL)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: FLARE could not make the kits of {'a' * 100}-cloud (ValueError")
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in here.iterdir()] == ["federation.toml"]


def test_a_full_disk_while_flare_writes_is_reported_as_such(sfedhp, here, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nvflare.lighter.impl.signature.SignatureBuilder.build", fail)
    result = sfedhp("provision", "federation.toml", *SMALL)
    assert (result.exit_code, result.stderr) == (
        2,
        "error: The kits cannot be written to kits (No space left on device): choose another folder with "
        "--out.\n",
    )
    assert [path.name for path in here.iterdir()] == ["federation.toml"]


@pytest.mark.parametrize("host", ["edge-0", f"{'a' * 63}.{'b' * 63}.example.org"])
def test_hosts_that_a_certificate_cannot_be_named_after(sfedhp, host):
    Path("federation.toml").write_text(f'[cloud]\nhost = "{host}"')
    result = sfedhp("provision", "federation.toml", *SMALL, "--json")
    assert result.exit_code == 0, result.stderr
    config = json.loads(Path("kits/edge-0/member/startup/fed_client.json").read_text())
    assert config["servers"][0]["service"]["target"] == f"{host}:8100"
    assert config["servers"][0]["identity"] == "sfedhp-cloud"


def test_a_client_looks_at_its_data_before_it_connects(kits, sfedhp, becoming):
    kit = str(kits["client-0-0"])
    inputs, labels = np.zeros((20, 1, 28, 28), np.uint8), np.arange(20) % 10
    np.savez("mine.npz", inputs=inputs, labels=labels)
    Path("corrupt.npz").write_bytes(Path("mine.npz").read_bytes()[:1000])
    np.savez("other.npz", inputs=inputs[:, :, :5], labels=labels)
    for name, said in (("corrupt", "corrupt or truncated"), ("other", "the federation's model takes")):
        result = sfedhp("client", kit, f"data.source={name}.npz")
        assert result.exit_code == 2
        assert said in result.stderr
    (kits["client-0-0"] / "initial.safetensors").write_bytes(b"damaged")
    result = sfedhp("client", kit)
    assert result.exit_code == 2
    assert "not a safetensors file" in result.stderr
    assert becoming == []


def test_certificates_are_changed_by_provision_and_shown_by_status(kits, sfedhp, here):
    folder = here / "kits"
    (folder / "cloud" / "run").mkdir()
    (folder / "cloud" / "run" / "status.json").write_text(json.dumps(STATUS | {"time": time.time()}))
    assert "certificate valid until 20" in sfedhp("status", "kits/cloud").stdout
    written = json.loads(sfedhp("provision", "--renew", "cloud", "--days", "10", "--json").stdout)
    assert written == ["kits/cloud/startup/server.key", "kits/cloud/startup/server.crt"]
    assert "warning: The certificate of cloud expires on" in sfedhp("status", "kits/cloud").stderr
    assert "expires" in json.loads(sfedhp("status", "kits/cloud", "--json").stdout)
    assert "kits/cloud/revoked.json" in sfedhp("provision", "--revoke", "client-0-0").stdout.split()
    asked = sfedhp("request", "client-0-0", "--out", "site").stdout.split()
    assert asked == ["site/client.key", "site/client-0-0.csr"]
    assert (here / "site" / "client.key").stat().st_mode & 0o777 == 0o600
    approved = sfedhp("provision", "--approve", "site/client-0-0.csr").stdout.strip()
    assert approved == "kits/client-0-0/startup/client.crt"
    added = sfedhp("provision", "federation.toml", "--add", "edge-0").stdout.split()
    assert added == ["kits/client-0-1", "kits/cloud/sfedhp.json", "kits/edge-0/sfedhp.json"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("request", "cloud"), "not a seat"),
        (("provision", "--renew", "cloud", "--revoke", "edge-0"), "one of --add"),
        (("provision",), "Give the federation file"),
        (("provision", "--add", "edge-0"), "Give the federation file"),
        (("provision", "--renew", "cloud"), "not a kit"),
        (("provision", "--approve", "none.csr"), "not a request"),
        (("provision", "none.toml", "rounds=7", "--renew", "client-0-0"), "remove none.toml"),
        (("provision", "rounds=7", "--revoke", "client-0-0"), "take no federation file and no settings"),
        (("provision", "federation.toml", "--approve", "a.csr"), "take no federation file and no settings"),
        (("provision", "--revoke", "client-0-0", "--compose"), "change the kits first"),
        (("provision", "--renew", "client-0-0", "--helm"), "change the kits first"),
        (("provision", "federation.toml", "--add", "edge-0", "--systemd"), "change the kits first"),
        (("provision", "--renew", "edge-0", "--only", "edge-0"), "--only goes with"),
        (("provision", "--revoke", "client-0-0", "--days", "9"), "makes none"),
        (("provision", "--systemd", "--days", "9"), "makes none"),
        (("provision", "federation.toml", "--add", ""), "not a kit"),
    ],
)
def test_a_wrong_change_of_kits_is_refused(sfedhp, words, said):
    result = sfedhp(*words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_new_certificates_are_valid_for_days(sfedhp, here, monkeypatch):
    asked: list[int] = []

    def make(*rest):
        asked.append(rest[-1])
        return []

    monkeypatch.setattr("sfedhp.deploy.provisioning.make_kits", make)
    monkeypatch.setattr("sfedhp.deploy.added_seat.add_seat", make)
    for words in (("--days", "30"), ("--add", "edge-0", "--days", "20"), ()):
        result = sfedhp("provision", "federation.toml", *SMALL, *words)
        assert result.exit_code == 0, result.stderr
    assert asked == [30, 20, 3650]


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        ("client-0-0/startup/client.key", "`sfedhp request` made into kits/client-0-0/startup."),
        ("client-0-0/startup/client.crt", "copy the kit again."),
        ("client-0-0/startup/rootCA.pem", "copy the kit again."),
        ("edge-0/member/startup/client.key", "`sfedhp request` made into kits/edge-0/member/startup."),
        ("edge-0/server/startup/server.key", "copy the kit again."),
        ("cloud/startup/server.key", "copy the kit again."),
        ("cloud/startup/rootCA.pem", "copy the kit again."),
    ],
)
def test_a_role_does_not_start_without_its_key_and_certificates(kits, sfedhp, becoming, lost, remedy):
    """FLARE would wait forever in silence, or fail with a traceback."""
    path, name = Path("kits", lost), lost.partition("/")[0]
    words = (name.partition("-")[0], f"kits/{name}")
    path.unlink()
    result = sfedhp(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {path} is missing: copy the kit again")
    assert result.stderr.endswith(f"{remedy}\n")
    path.write_text("damaged")
    assert f"{path} is not a " in sfedhp(*words).stderr
    if path.suffix == ".key":
        shutil.copy(kits["client-1-0"] / "startup" / "client.key", path)
        assert f"{path} is not the key of {path.stem}.crt beside it: copy" in sfedhp(*words).stderr
    assert becoming == []


def test_a_key_is_not_overwritten(sfedhp):
    assert sfedhp("request", "edge-0").exit_code == 0
    again = sfedhp("request", "edge-0")
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_files_for_services(kits, sfedhp):
    written = sfedhp("provision", "--systemd", "--only", "client-0-0").stdout.split()
    assert written == ["kits/systemd/sfedhp-client-0-0.service"]
    written = json.loads(sfedhp("provision", "--compose", "--helm", "--json").stdout)
    assert written[:2] == ["kits/compose.yaml", "kits/chart/Chart.yaml"]
    refused = sfedhp("provision", "federation.toml", "--only", "cloud")
    assert refused.exit_code == 2
    assert "--only goes with" in refused.stderr


def test_a_kit_has_its_own_readme_and_flares_lines_stay_in_its_log(kits, here):
    assert [path.parent.name for path in sorted(here.glob("kits/**/readme.txt"))] == sorted(kits)
    for name, kit in kits.items():
        assert (kit / "readme.txt").read_text().startswith(f"{name}, ")
        for settings in kit.glob("**/local/log_config.json"):
            handlers = json.loads(settings.read_text())["handlers"]
            assert handlers["consoleHandler"]["filters"] == ["ownFilter"]
            assert "filters" not in handlers["logFileHandler"]


def test_without_a_file_a_federation_has_the_defaults(sfedhp, played, here):
    played(statuses=())
    (here / "federation.toml").unlink()
    result = sfedhp("deploy", "--local", *SMALL)
    assert result.exit_code == 0, result.stderr
    refused = sfedhp("provision", *SMALL)
    assert refused.exit_code == 2
    assert "Give one federation file" in refused.stderr


def test_a_config_of_an_experiment_is_deployed_as_it_is_run(sfedhp, played, here, monkeypatch):
    played(statuses=())
    deployed = []
    monkeypatch.setattr("sfedhp.deploy.provisioning.make_kits", lambda layout, kits: deployed.append(layout))
    (here / "sub").mkdir()
    np.savez(here / "sub" / "own.npz", inputs=np.zeros((40, 4)), labels=np.arange(40) % 2)
    config = here / "sub" / "config.toml"
    config.write_text('rounds = 7\nedges = 2\nclients_per_edge = 1\n[data]\nsource = "own.npz"\n')
    result = sfedhp("deploy", "sub/config.toml", "--local", "seed=5")
    assert result.exit_code == 0, result.stderr
    experiment = deployed[0].cloud.experiment
    assert (experiment.rounds, experiment.seed, len(deployed[0].edges)) == (7, 5, 2)
    assert experiment.data.source == str(config.parent / "own.npz")
    refused = sfedhp("provision", "sub/config.toml")
    assert refused.exit_code == 2
    assert 'name it in a federation file, as experiment = "sub/config.toml".' in refused.stderr
