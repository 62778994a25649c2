"""A run's folder: one run at a time, and only in a folder that is vacant and can be written."""

import pytest

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.runs.prepare import prepare
from sfedhp.runs.run import start
from sfedhp.runs.sweep import plan, sweep
from tests.support.json_lines import json_lines
from tests.support.short_runs import SMALL, after


def test_one_folder_has_one_run_at_a_time(tmp_path):
    folder, refused = tmp_path / "one", []

    def others(progress):
        for attempt in (
            lambda: sfedhp.resume(folder),
            lambda: sfedhp.run(SMALL, out=folder),
            lambda: plan([SMALL], 0, [folder]),
            lambda: sweep([SMALL], [folder]),
        ):
            with pytest.raises(InputError) as error:
                attempt()
            refused.append(str(error.value))

    busy = f"{folder} is in use by a run that is under way: wait until it ends, or choose another folder."
    holds = (
        f"{folder} already holds a run: choose another folder, or continue the run with "
        f"`sfedhp resume {folder}`."
    )
    for begin in (
        lambda: sfedhp.run(SMALL, out=folder, report=others, stop=after(1)),
        lambda: sfedhp.resume(folder, report=others, stop=after(1)),
        lambda: sweep([SMALL], [folder], report=others),
    ):
        begin()
        assert refused == [busy, holds, busy, busy]
        refused.clear()
    assert [row["round"] for row in json_lines(folder / "history.jsonl")] == [1, 2, 3]


def test_two_that_begin_at_once_do_not_share_a_folder(tmp_path):
    """Both found the folder vacant; the second was slower."""
    folder = tmp_path / "one"
    prepared = prepare(SMALL)

    def second(progress):
        with pytest.raises(InputError, match="in use by a run that is under way"):
            start(prepared, folder, None, None)

    sfedhp.run(SMALL, out=folder, report=second, stop=after(1))
    with pytest.raises(InputError, match="already holds a run"):
        start(prepared, folder, None, None)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "one" / "environment.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"one cannot be written \(Is a directory\): choose another folder"):
        sfedhp.run(SMALL, out=tmp_path / "one")


def test_a_folder_with_a_run_is_refused(tmp_path):
    sfedhp.run(SMALL, out=tmp_path / "a")
    before = (tmp_path / "a/history.jsonl").read_bytes()
    with pytest.raises(InputError, match="already holds a run"):
        sfedhp.run(SMALL, out=tmp_path / "a")
    assert (tmp_path / "a/history.jsonl").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        sfedhp.run(SMALL, out=tmp_path / "file" / "run")
