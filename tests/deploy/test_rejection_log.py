"""A site's log has few lines of rejections, no matter what others send."""

from __future__ import annotations

import pytest

from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.rejection_log import RejectionLog
from tests.support.json_lines import json_lines


class Time:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def found(tmp_path):
    """The log, its clock, and a look at its lines."""

    def lines():
        path = tmp_path / "log.jsonl"
        return json_lines(path) if path.exists() else []

    clock = Time()
    return RejectionLog(EventLog(tmp_path, "cloud"), clock), clock, lines


def test_many_refusals_are_few_lines(found):
    noted, clock, lines = found
    for _ in range(1000):
        noted.note("plain text")
    noted.note("a command", "client-0-0", detail="stop")
    first, second = lines()
    assert (first["reason"], first["times"], first["member"]) == ("plain text", 1, None)
    assert (second["reason"], second["member"], second["detail"]) == ("a command", "client-0-0", "stop")
    clock.now += 10
    noted.write()
    assert [line["times"] for line in lines()] == [1, 1, 999]
    clock.now += 10
    noted.write()
    assert len(lines()) == 3


def test_a_member_cannot_fill_the_log_with_new_reasons_or_names(found):
    noted, clock, lines = found
    for number in range(5000):
        noted.note(f"it claims seat {number}", "client-0-0")
    assert len(lines()) == 17
    assert lines()[-1]["reason"] == "other reasons"
    for number in range(5000):
        noted.note("it is not a member", f"stranger-{number}")
    assert len(lines()) <= 17 + 1000
    noted.note("its weight is 1e30", "client-0-1")
    assert lines()[-1]["member"] != "client-0-0", "what one does hides nothing of the others"
    clock.now += 601
    noted.note("something new", "client-0-0")
    assert [line for line in lines() if line["reason"] == "something new"], "and it is forgotten in time"


def test_members_text_is_escaped(found):
    noted, _, lines = found
    noted.note("it says \x1b[2J", "client\x1b]0;x\x07", detail="a\nb")
    (line,) = lines()
    assert (line["reason"], line["detail"]) == ("it says \\x1b[2J", "a\\nb")
    assert "\x1b" not in line["member"]
