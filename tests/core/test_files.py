"""Files that are there whole or not at all, and folders that one process at a time writes to."""

import errno
import os
import subprocess
import sys

import pytest

from sfedhp.core.errors import InputError
from sfedhp.core.files import locked, remove_temporary_files, write_atomically, write_text


def test_what_a_killed_process_left_is_swept_up(tmp_path):
    own = ("checkpoint/.round-000002.safetensors.4711.sfedhp-tmp", ".config.toml.4711.sfedhp-tmp")
    users = (
        *(".notes.2024", ".cache.1/.x.7", "deep/er/.vimrc.3", "checkpoint/.mine.12", "checkpoint/.tmpAbCdEf"),
        "checkpoint/round-000001.safetensors",
        "other/.config.toml.4711.sfedhp-tmp/config.toml",  # not a place where a run writes
    )
    for name in (*(f"{folder}/half" for folder in own), *users):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("content")
    remove_temporary_files(tmp_path, "checkpoint", "models")
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == set(users)
    assert not any((tmp_path / folder).exists() for folder in own)


def test_what_a_running_process_writes_in_a_shared_folder_stays(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with other:
        for number in (other.pid, os.getpid(), 2**22 + 5, 10**30):
            (tmp_path / f".x.{number}.sfedhp-tmp").mkdir()
        remove_temporary_files(tmp_path, shared=True)
        assert [path.name for path in tmp_path.iterdir()] == [f".x.{other.pid}.sfedhp-tmp"]
        assert other.stdin is not None
        other.stdin.close()
    remove_temporary_files(tmp_path, shared=True)
    assert not list(tmp_path.iterdir())


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


def test_windows_gets_a_remedy(tmp_path, monkeypatch):
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
        assert child.stdout is not None
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
