"""The history and what is reported of it."""

import csv
import json
from pathlib import Path

import pytest

from sfedhp.core.errors import InputError
from sfedhp.runs import record_file
from sfedhp.runs.records import History, read_rows, rows_of_run, summarize

SENT = {"bytes_client_edge": 5, "seconds": 1.0}
ROWS = [
    {"round": 1, "train_loss": 2.0, "gm": 50.0, "gm_validation": 40.0, "pm": 60.0, **SENT},
    {"round": 2, **SENT},
    {"round": 3, "train_loss": 1.0, "gm": 80.0, "gm_validation": 60.0, "pm": 90.0, **SENT},
    {
        "round": 4,
        "train_loss": 0.9,
        "gm": 70.0,
        "gm_validation": 65.0,
        "gm_local": 71.0,
        "pm": 85.0,
        "density_global": 0.3,
        "bytes_cloud_edge": 2,
        **SENT,
    },
]


def test_last_best_and_validated_are_different_things():
    """The public fault: the best round on the test set as the only figure."""
    summary = summarize(ROWS)
    assert (summary["gm_last"], summary["gm_best"], summary["gm_validated"]) == (70.0, 80.0, 70.0)
    assert (summary["gm_best_round"], summary["gm_validated_round"]) == (3, 4)
    assert (summary["pm_last"], summary["pm_best"], summary["pm_validated"]) == (85.0, 90.0, None)
    assert summary["em_last"] is summary["em_best"] is None

    def best_only(rows):
        """The mutant."""
        return {name: summarize(rows)["gm_best"] for name in ("gm_last", "gm_best", "gm_validated")}

    assert best_only(ROWS)["gm_last"] != summary["gm_last"]


def test_bytes_and_seconds_are_summed():
    summary = summarize(ROWS)
    assert summary["bytes_client_edge"] == 20
    assert summary["bytes_cloud_edge"] == 2
    assert summary["bytes_total"] == 22
    assert summary["seconds"] == 4.0
    assert summary["rounds"] == 4
    assert summary["density_global"] == 0.3


def test_a_model_without_statistics_scores_the_same_with_both_choices():
    summary = summarize(ROWS[:3])
    assert summary["gm_local_last"] == summary["gm_averaged_last"] == 80.0
    assert summarize(ROWS)["gm_local_last"] == 71.0


def test_no_rounds_no_figures():
    summary = summarize([])
    assert summary["rounds"] == 0
    assert summary["gm_last"] is None


def test_the_file_grows_with_the_rows(tmp_path):
    path = tmp_path / "history.jsonl"
    history = History(path)
    for row in ROWS:
        history.append(row)
        assert json.loads(path.read_text().splitlines()[-1]) == row
    history.close()
    with (tmp_path / "history.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["round"] for row in table] == ["1", "2", "3", "4"]
    assert float(table[3]["gm_local"]) == 71.0
    assert table[1]["gm"] == ""


def test_reading_stops_at_the_round_and_at_a_line_cut_short(tmp_path):
    path = tmp_path / "history.jsonl"
    lines = [json.dumps(row) for row in ROWS]
    path.write_text("\n".join(lines[:3]) + "\n" + lines[3][:20])
    assert read_rows(path, 9) == ROWS[:3]
    assert read_rows(path, 2) == ROWS[:2]
    assert read_rows(tmp_path / "none", 2) == []


@pytest.mark.parametrize("line", [b"[1, 2]", b'{"gm": 3}', b'{"round": "2"}', b"\xff\xfe"])
def test_reading_stops_at_a_line_that_is_no_row(tmp_path, line):
    path = tmp_path / "history.jsonl"
    path.write_bytes(
        json.dumps(ROWS[0]).encode() + b"\n" + line + b"\n" + json.dumps(ROWS[2]).encode() + b"\n"
    )
    assert read_rows(path, 9) == ROWS[:1]


def test_a_run_has_each_round_once(tmp_path):
    path = tmp_path / "history.jsonl"

    def write(*rows):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(*ROWS)
    assert rows_of_run(path, 3) == ROWS[:3]
    assert rows_of_run(tmp_path / "none", 0) == []
    for row, wrong in (
        (2, [ROWS[0], ROWS[2]]),
        (3, ROWS[:2]),
        (2, [ROWS[0], *ROWS[:3]]),
        (1, []),
        (1, [{"round": 1}, *ROWS[1:]]),
    ):
        write(*wrong)
        with pytest.raises(InputError) as error:
            rows_of_run(path, 3)
        assert str(error.value) == (
            f"{path} does not hold each of the rounds 1 to 3 once, in order, as the checkpoint needs them "
            f"(row {row} is not round {row}): put it back from a copy, or start a new run."
        )


def test_a_history_is_forced_to_the_disk(tmp_path, monkeypatch):
    forced: list[Path] = []
    monkeypatch.setattr(record_file, "fsync", forced.append)
    History().fsync()
    history = History(tmp_path / "history.jsonl")
    history.fsync()
    assert [path.name for path in forced] == ["history.jsonl", "history.jsonl.crc32"]
    history.append(ROWS[0], {"client_edge": [5]})
    history.fsync()
    assert {path.name for path in forced[2:]} == {
        f"{name}.jsonl{end}" for name in ("history", "ledger") for end in ("", ".crc32")
    }


def test_what_is_not_finite_is_missing(tmp_path):
    history = History(tmp_path / "history.jsonl")
    history.append({"round": 1, "gm": float("nan"), "gm_loss": float("inf"), "pm": 3.0})
    assert history.rows == [{"round": 1, "gm": None, "gm_loss": None, "pm": 3.0}]
    assert "NaN" not in (tmp_path / "history.jsonl").read_text()
    history.close()


def test_without_a_file_rows_stay_in_memory():
    history = History()
    history.append(ROWS[0])
    history.close()
    assert history.rows == ROWS[:1]
