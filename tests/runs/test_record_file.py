"""Records: a checksum for every line, and a line that is damaged is named."""

import json
import os
import shutil

import pytest

from sfedhp.core.checksums import DamagedError
from sfedhp.runs.record_file import RecordFile
from sfedhp.runs.records import History, rows_of_run, whole_rounds

ROWS = [{"round": number, "seconds": 0.5, "gm": 10.0 + number} for number in range(1, 6)]


@pytest.fixture
def file(tmp_path):
    file = RecordFile(tmp_path / "history.jsonl")
    file.write(ROWS[:2])
    for row in ROWS[2:]:
        file.append(row)
    return file


def test_records_come_back(file):
    assert list(file.rows()) == ROWS
    assert len((file.path.parent / "history.jsonl.crc32").read_text().split()) == 5


@pytest.mark.parametrize("line", [1, 3, 5])
@pytest.mark.parametrize("digit", ["1", "7"])
def test_a_changed_digit_is_found_in_its_line(file, line, digit):
    lines = file.path.read_text().splitlines()
    lines[line - 1] = lines[line - 1].replace("0.5", f"0.{digit}")
    file.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DamagedError, match=f"history.jsonl is damaged in line {line}: its checksum is wrong"):
        list(file.rows())
    assert whole_rounds(file.path) == line - 1
    with pytest.raises(DamagedError, match=f"line {line}"):
        rows_of_run(file.path, 5)
    assert rows_of_run(file.path, line - 1) == ROWS[: line - 1]


@pytest.mark.parametrize(
    "content",
    [
        *("", "no JSON", "[]", "3", '{"gm": 1.0}', '{"round": true}', '{"round": 2.0}', '{"round": "2"}'),
        *(
            '{"round": 2, "seconds": "long"}',
            '{"round": 2, "seconds": null}',
            '{"round": 2, "seconds": 1, "gm": "x"}',
        ),
        *('{"round": 2, "seconds": NaN}', '{"round": 2, "seconds": 1, "bytes_cloud_edge": null}'),
        *('{"round": 0}', '{"round": -3}', '{"round": 1' + "0" * 5000 + "}", "[" * 100_000 + "]" * 100_000),
    ],
)
def test_without_checksums_what_is_no_record_is_named(file, content):
    (file.path.parent / "history.jsonl.crc32").unlink()
    lines = file.path.read_text().splitlines()
    file.path.write_text("\n".join([lines[0], content, *lines[2:]]) + "\n")
    with pytest.raises(DamagedError, match=r"history.jsonl is damaged in line 2: "):
        list(file.rows())


def test_a_line_cut_short_by_a_kill_is_left_out(file):
    whole = file.path.read_bytes()
    for cut in (1, 5, 20):
        file.path.write_bytes(whole[:-cut])
        assert list(file.rows()) == ROWS[:4]


def test_a_kill_between_a_line_and_its_checksum_loses_nothing(file):
    sums = file.path.parent / "history.jsonl.crc32"
    sums.write_text("".join(sums.read_text().splitlines(keepends=True)[:4]))
    assert list(file.rows()) == ROWS


def test_files_of_older_versions_have_no_checksums(file):
    (file.path.parent / "history.jsonl.crc32").unlink()
    assert list(file.rows()) == ROWS


def test_a_file_that_was_removed_is_not_begun_again(file):
    os.unlink(file.path)
    with pytest.raises(FileNotFoundError):
        file.append(ROWS[0])
    assert not file.path.exists()


def test_a_file_that_was_replaced_is_noticed_and_can_be_rescued(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    history = History(folder / "history.jsonl")
    with history.held():
        history.append(ROWS[0])
        shutil.rmtree(folder)
        folder.mkdir()
        RecordFile(folder / "history.jsonl").write([])
        with pytest.raises(FileNotFoundError, match="was replaced"):
            history.append(ROWS[1])
        (tmp_path / "other").mkdir()
        history.rescue(tmp_path / "other")
    assert list(RecordFile(tmp_path / "other/history.jsonl").rows()) == ROWS[:2]


def test_rows_in_a_file_are_not_in_memory_too(tmp_path):
    history = History(tmp_path / "history.jsonl")
    for number in range(1, 200):
        history.append({"round": number, "train_loss": 1.0, "seconds": 0.1})
    held = [each for each in vars(history).values() if isinstance(each, list | dict)]
    assert sum(map(len, held)) < 20
    assert [row["round"] for row in history.ends] == [1, 199]
    assert len(history.rows) == 199
    assert json.loads((tmp_path / "history.jsonl").read_text().splitlines()[-1])["round"] == 199
