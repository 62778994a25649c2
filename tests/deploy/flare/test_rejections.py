"""Who is not let in is written down, and what is not for the roles does not come in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.flare.rejections import reason_of
from sfedhp.deploy.rejection_log import RejectionLog
from tests.support.flare_cell import Cell
from tests.support.json_lines import json_lines

HANDSHAKE = "I1115 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: "
ROUTINE = f"{HANDSHAKE}error:100000c0:SSL routines:OPENSSL_internal:"
PLAIN = f"{ROUTINE}WRONG_VERSION_NUMBER: Invalid certificate verification context"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (PLAIN, "plain text instead of TLS"),
        (f"{ROUTINE}HTTP_REQUEST", "plain text instead of TLS"),
        (f"{ROUTINE}PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid", "a connection without a certificate"),
        (
            f"{ROUTINE}CERTIFICATE_VERIFY_FAILED: certificate has expired",
            "a certificate that this federation did not issue, or not valid now (certificate has expired)",
        ),
        (f"{ROUTINE}NO_SHARED_CIPHER", "a failed handshake (no shared cipher)"),
        (f"{HANDSHAKE}odd", "a failed handshake (odd)"),
        ("W1115 log.cc:102] Log level INFO is not suitable for production.", None),
    ],
)
def test_what_grpc_says_in_words(line, reason):
    assert reason_of(line) == reason


@pytest.fixture
def found(tmp_path):
    """The refusals, and a look at their lines."""

    def lines():
        path = tmp_path / "log.jsonl"
        return json_lines(path) if path.exists() else []

    return RejectionLog(EventLog(tmp_path, "cloud")), lines


WATCHED = """
import os, sys, time
from pathlib import Path
from sfedhp.deploy import rejection_log
from sfedhp.deploy.flare import rejections
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.rejection_log import RejectionLog
folder = Path(sys.argv[1])
rejections._POLL, rejection_log._PAUSE = 0.01, 0.0
log = RejectionLog(EventLog(folder, "cloud"))
kept = rejections.StderrWatcher(folder / rejections.STDERR_FILE, log)
rejections._LARGEST = int(sys.argv[2])
kept.watch()
os.write(2, b"W1 log.cc] Log level INFO is not suitable for production.\\n")
os.write(2, sys.argv[3].encode()[:30])
time.sleep(0.05)
os.write(2, sys.argv[3].encode()[30:] + b"\\n")
print("of Python itself", file=sys.stderr)
events = folder / "log.jsonl"
# The file exists before its first line does.
while not (events.exists() and events.read_bytes().endswith(b"\\n")) or kept._read > rejections._LARGEST:
    time.sleep(0.01)
os.write(2, b"the last words\\n")
os._exit(3)
"""


@pytest.mark.parametrize("largest", [2**20, 100])
def test_standard_error_is_kept_passed_on_and_read(tmp_path, largest):
    (tmp_path / "errors.txt").write_text(f"{PLAIN}\n")  # of an earlier start
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, tmp_path, str(largest), PLAIN],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 3
    assert PLAIN in done.stderr
    assert "of Python itself" in done.stderr
    assert "is not suitable" not in done.stderr
    kept = (tmp_path / "errors.txt").read_text()
    assert kept.endswith("the last words\n"), "also of a process that crashes"
    assert kept.count(PLAIN) == (2 if largest > 100 else 0)
    events = json_lines(tmp_path / "log.jsonl")
    assert [(line["event"], line["reason"]) for line in events] == [("refused", "plain text instead of TLS")]


CROWDED = """
import os, sys
from pathlib import Path
from sfedhp.deploy.flare import rejections
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.rejection_log import RejectionLog
folder = Path(sys.argv[1])
log = RejectionLog(EventLog(folder, "cloud"))
kept = rejections.StderrWatcher(folder / rejections.STDERR_FILE, log)
rejections._LARGEST, opened = 5, os.open
def late(*given):
    os.write(2, b"just before the new file\\n")
    return opened(*given)
os.open = late
os.write(2, b"more than there is room for\\n")
kept.poll()
os.write(2, b"after it\\n")
"""


def test_no_line_is_lost_where_the_file_begins_anew(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CROWDED, tmp_path], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stderr == "more than there is room for\njust before the new file\n"
    assert (tmp_path / "errors.txt").read_text() == "after it\n"
    assert not (tmp_path / "errors.txt.new").exists()


def test_a_role_works_without_room_for_its_errors(tmp_path, found, caplog):
    flare = pytest.importorskip(
        "sfedhp.deploy.flare.component", reason="the extra sfedhp[deploy] is not installed"
    )
    before = sys.stderr
    flare.watch_stderr(tmp_path / "not there", found[0])
    assert "cannot be written" in caplog.text
    assert sys.stderr is before


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (("sfedhp", "message", "server"), None),
        (("task", "register", "server"), None),
        (("task", "heart_beat", "server"), None),
        (("sm__STREAM", "sm__ACK", "server"), None),
        (("sm__STREAM", "sm__DATA", "server", "sfedhp", "message"), None),
        (("sm__STREAM", "sm__DATA", "server", "hci_channel", "command"), "an administrator's command"),
        (("hci_channel", "command", "server"), "an administrator's command"),
        (("_net_manager", "stop_cell", "server"), "a request that no role sends"),
        (("admin", "train.deploy", "server"), "a request that no role sends"),
        (("sfedhp", "message", "client-0-1"), "a request that no role sends"),
    ],
)
def test_the_allowlist_lets_in_what_the_roles_send_and_nothing_else(found, headers, reason):
    pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")
    from nvflare.fuel.f3.message import Message

    from sfedhp.deploy.flare.allowlist import Allowlist

    noted, lines = found
    cell = Cell()
    Allowlist(cell, noted)
    names = ("cn__channel", "cn__topic", "cn__destination", "sm__ch", "sm__tp")
    message = Message({"cn__origin": "client-0-0", **dict(zip(names, headers, strict=False))}, None)
    reply = cell.reject(message)
    assert (reply is None) == (reason is None)
    assert [(line["member"], line["reason"]) for line in lines()] == [("client-0-0", reason)] * bool(reason)
    if reply is not None:
        assert reply.get_header("cn__return_code") == "unauthenticated"


@pytest.mark.parametrize(
    ("kind", "origin", "destination", "certified", "reason"),
    [
        ("req", "client-0-0", "server", "client-0-0", None),
        ("reply", "client-0-0", "server", "client-0-0", None),
        ("req", "client-0-0", "client-0-1", "client-0-0", None),  # the interceptor rejects it
        ("reply", "client-0-0", "client-0-1", "client-0-0", "a message for another site"),
        ("return", "client-0-0", "client-0-1", "client-0-0", "a message for another site"),
        ("req", "client-0-1", "server", "client-0-0", "a message under another name"),
        ("reply", "server", "server", "client-0-0", "a message under another name"),
        ("req", "client-0-0", "server", None, None),
    ],
)
def test_a_member_reaches_its_server_alone_and_under_its_own_name(
    found, kind, origin, destination, certified, reason
):
    pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")
    from nvflare.fuel.f3.message import Message

    from sfedhp.deploy.flare.allowlist import Allowlist

    noted, lines = found
    cell = Cell()
    Allowlist(cell, noted)
    headers = {"cn__origin": origin, "cn__destination": destination, "cn__msg_type": kind}
    message = Message(headers, None)
    if certified:
        message.set_prop("cn__common_name", certified)
    assert (cell.filter(message) is None) == (reason is None)
    assert [line["reason"] for line in lines()] == ([reason] if reason else [])
