"""What a run keeps when its files are damaged, its folder vanishes or its disk is full."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import sfedhp
from sfedhp.config import CheckpointOptions
from sfedhp.core.errors import InputError, Note, StorageError
from sfedhp.runs.prepare import prepare
from sfedhp.runs.run import restart, start
from sfedhp.wire.link import WireOptions
from tests.support.file_bytes import file_bytes
from tests.support.json_lines import json_lines, without_seconds
from tests.support.short_runs import SMALL, after

EVERY = replace(
    SMALL, rounds=6, checkpoint=CheckpointOptions(every=2), wire=WireOptions(count="size")
)  # checkpoints of rounds 2, 4, 6


def rows(folder: Path, name: str = "history.jsonl") -> list[dict[str, object]]:
    return without_seconds(json_lines(folder / name))


def change(path: Path, line: int) -> None:
    """Change a digit in a line."""
    lines = path.read_text().splitlines()
    place = max(at for at, letter in enumerate(lines[line - 1]) if letter in "0123456789")
    digit = "1" if lines[line - 1][place] != "1" else "2"
    lines[line - 1] = lines[line - 1][:place] + digit + lines[line - 1][place + 1 :]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run of six rounds that stopped after the fifth; its checkpoints are of rounds 4 and 5."""
    sfedhp.run(EVERY, out=tmp_path / "stopped", stop=after(5))
    sfedhp.run(EVERY, out=tmp_path / "whole")
    return tmp_path / "stopped"


@pytest.mark.parametrize("name", ["history.jsonl", "ledger.jsonl"])
def test_a_damaged_line_is_refused_named_and_salvaged(stopped, name):
    change(stopped / name, 5)
    before = file_bytes(stopped)
    with pytest.raises(InputError) as error:
        sfedhp.resume(stopped)
    assert str(error.value).startswith(f"{stopped / name} is damaged in line 5: its checksum is wrong.")
    assert f"Rounds 1 to 4 are whole: `sfedhp resume {stopped} --salvage` continues" in str(error.value)
    assert file_bytes(stopped) == before
    run = sfedhp.resume(stopped, salvage=True)
    assert run.finished
    for each in ("history.jsonl", "ledger.jsonl"):
        assert rows(stopped, each) == rows(stopped.parent / "whole", each)
    assert (stopped / f"{name}.damaged").read_bytes() == before[stopped / name]
    assert len(list(stopped.glob("*.damaged"))) == 1, "the other file is whole"
    assert sfedhp.resume(stopped, salvage=True).finished
    assert (stopped / f"{name}.damaged").read_bytes() == before[stopped / name]


def test_a_damaged_schema_is_written_again(stopped):
    before = (stopped / "schema.json").read_bytes()
    (stopped / "schema.json").write_bytes(before.replace(b"1", b"2", 1))
    with pytest.warns(Note, match=r"schema.json is damaged: it is written again\.$"):
        sfedhp.resume(stopped)
    assert (stopped / "schema.json").read_bytes() == before


@pytest.mark.parametrize("name", ["history.jsonl", "ledger.jsonl"])
def test_a_missing_file_is_refused(stopped, name):
    (stopped / name).unlink()
    with pytest.raises(InputError, match=rf"{name} does not hold each of the rounds 1 to 5 once"):
        sfedhp.resume(stopped)
    with pytest.raises(InputError, match="no checkpoint up to round 0"):
        sfedhp.resume(stopped, salvage=True)


def test_a_cut_ledger_is_refused(stopped):
    path = stopped / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(InputError, match=r"ledger.jsonl does not hold .*\(row 3 is not round 3\)"):
        sfedhp.resume(stopped)


@pytest.mark.parametrize("content", ["{", "[]", '{"torch": "1", "checksum": "wrong"}', "[" * 100_000])
def test_a_damaged_environment_is_named_and_costs_nothing_else(stopped, content):
    path = stopped / "environment.json"
    path.write_text(content)
    with pytest.warns(Note, match=r"environment.json is damaged: .* It is replaced, without its old content"):
        assert sfedhp.resume(stopped).finished
    assert json.loads(path.read_text()).keys() == {"captured", "checksum"}


def test_users_hidden_files_stay(stopped):
    mine = [stopped / name for name in (".notes.2024", "models/.keep.1", ".git/.index.7", ".own.3/x")]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    left = stopped / "checkpoint/.round-000006.safetensors.1.sfedhp-tmp"
    left.mkdir()
    (left / ".tmpAbCdEf").write_text("half")
    sfedhp.resume(stopped)
    assert all(path.read_text() == "mine" for path in mine)
    assert not left.exists()


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_vanishes_ends_the_run(tmp_path, again):
    folder = tmp_path / "run"

    def vanish(progress):
        if progress.row["round"] == 3:
            shutil.rmtree(folder)
            if again:
                folder.mkdir()

    with pytest.raises(StorageError, match="run was removed while the run was writing to it"):
        start(prepare(EVERY), folder, vanish, None)
    assert not folder.exists() or not list(folder.iterdir())


def test_a_run_whose_folder_vanished_is_saved_elsewhere_if_told(tmp_path):
    folder, rescue = tmp_path / "run", tmp_path / "rescue"
    sfedhp.run(EVERY, out=tmp_path / "whole")

    def vanish(progress):
        if progress.row["round"] == 3:
            shutil.rmtree(folder)

    with pytest.raises(StorageError, match=rf"All 4 rounds are saved in {rescue}: continue with"):
        start(prepare(EVERY), folder, vanish, None, rescue=rescue)
    assert restart(rescue, None, None).run.finished
    for name in ("history.jsonl", "ledger.jsonl"):
        assert rows(rescue, name) == rows(tmp_path / "whole", name)
    weights = "checkpoint/round-000006.safetensors"
    assert (rescue / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()


def test_a_full_disk_is_one_sentence_and_the_run_continues_later(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    sfedhp.run(EVERY, out=tmp_path / "whole")
    replaced = os.replace

    def full(source, target):
        if "round-000004" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        replaced(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match=r"cannot be written \(No space left on device\): the run has"):
        sfedhp.run(EVERY, out=folder)
    monkeypatch.undo()
    assert sfedhp.resume(folder).finished
    assert rows(folder) == rows(tmp_path / "whole")
    assert not list(folder.rglob(".*"))


def test_a_finished_sweep_that_is_repeated_writes_nothing(tmp_path):
    runs = [replace(EVERY, seed=seed) for seed in (0, 1)]
    folders = [tmp_path / str(seed) for seed in (0, 1)]
    first = sfedhp.sweep(runs, folders)

    def state():
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*.*")}

    before = state()
    again = sfedhp.sweep(runs, folders)
    assert state() == before
    assert [each.run.history for each in again] == [each.run.history for each in first]
    assert all(each.run.finished for each in again)


def test_a_finished_run_without_its_tables_gets_them(tmp_path):
    sfedhp.sweep([EVERY], [tmp_path / "run"])
    before = (tmp_path / "run/confusion.json").read_bytes()
    (tmp_path / "run/confusion.json").unlink()
    sfedhp.sweep([EVERY], [tmp_path / "run"])
    assert (tmp_path / "run/confusion.json").read_bytes() == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    sfedhp.run(EVERY, out=folder)
    return folder


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """The content of each file below a folder, and when it was written."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_finished_run_is_not_written_again(finished):
    before = files(finished)
    assert sfedhp.resume(finished).finished
    assert files(finished) == before


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize(
    "name", ["models/client-1-0.safetensors", "models/global.safetensors", "clients.csv"]
)
def test_a_finished_run_gets_lost_files_back(finished, tmp_path, name, how):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    if how == "missing":
        (run / name).unlink()
    else:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert sfedhp.resume(run).finished
    assert (run / name).read_bytes() == (finished / name).read_bytes()
    assert (run / "environment.json").read_bytes() == (finished / "environment.json").read_bytes()
