"""Files that are there whole or not at all, and folders that one process at a time writes to."""

import errno
import json
import subprocess
import sys

import pytest

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.core.files import locked, remove_temporary_files, write_atomically, write_text
from sfedhp.runs.prepare import prepare
from sfedhp.runs.run import start
from sfedhp.runs.sweep import plan, sweep
from tests.support.short_runs import SMALL, after


def test_what_a_killed_process_left_is_swept_up(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    half = tmp_path / "checkpoint/.round-000002.safetensors.4711"
    half.write_text("half")
    (tmp_path / "checkpoint/round-000001.safetensors").write_text("whole")
    remove_temporary_files(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["round-000001.safetensors"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")

    def fails(beside):
        beside.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fails)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_windows_is_told_where_to_go(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(InputError, match="inside WSL"), locked(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_a_folder_is_held_by_one_at_a_time(tmp_path, monkeypatch):
    folder = tmp_path / "new" / "one"
    with locked(folder), pytest.raises(InputError) as error, locked(folder):
        pass
    assert str(error.value) == (
        f"{folder} is in use by a run that is under way: wait until it ends, or choose another folder."
    )
    assert list(folder.iterdir()) == []  # nothing of it is left to see
    with locked(folder):
        pass
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=r"below cannot be written \(Not a directory\)"),
        locked(tmp_path / "file/below"),
    ):
        pass


def test_a_folder_is_free_once_its_process_is_dead(tmp_path):
    code = "import sys, time; from sfedhp.core.files import locked; from pathlib import Path\n"
    code += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "held\n"
        try:
            with pytest.raises(InputError, match="in use"), locked(tmp_path):
                pass
        finally:
            child.kill()
        child.wait()
    with locked(tmp_path):
        pass


def test_where_there_are_no_locks_one_goes_without(tmp_path, monkeypatch):
    def unable(*_):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr("fcntl.flock", unable)
    with locked(tmp_path), locked(tmp_path):
        pass


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
    holds = f"{folder} already holds a run: choose another folder, or go on with `sfedhp resume {folder}`."
    for begin in (
        lambda: sfedhp.run(SMALL, out=folder, report=others, stop=after(1)),
        lambda: sfedhp.resume(folder, report=others, stop=after(1)),
        lambda: sweep([SMALL], [folder], report=others),
    ):
        begin()
        assert refused == [busy, holds, busy, busy]
        refused.clear()
    assert [json.loads(line)["round"] for line in (folder / "history.jsonl").read_text().splitlines()] == [
        1,
        2,
        3,
    ]


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


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "one" / "environment.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"one cannot be written \(Is a directory\): choose another folder"):
        sfedhp.run(SMALL, out=tmp_path / "one")
