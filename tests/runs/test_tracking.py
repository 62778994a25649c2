"""Trackers hold what the folders of runs hold: their own packages read back what they got."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfedhp.core.errors import Note
from sfedhp.runs.folder import read_config
from sfedhp.runs.provenance import flat
from sfedhp.runs.tracking import follow
from sfedhp.runs.tracking.follow import Tracking
from tests.support.invoking import invoke
from tests.support.json_lines import json_lines

TINY = [
    "model.name=mlr",
    "edges=1",
    "clients_per_edge=2",
    "data.train_per_label=6",
    "algorithm.edge_rounds=1",
]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return json_lines(folder / "history.jsonl")


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(row["round"], row[name]) for row in rows_of(folder)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory, in which MLflow and W&B keep their own files."""
    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        yield folder


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    words = ["run", "rounds=2", *TINY, "--no-report", "--out", place / "runs" / "one"]
    result = invoke(*words, "--track", "tensorboard,mlflow,wandb")
    assert result.exit_code == 0, result.output
    assert "continues without" not in result.output
    return place / "runs" / "one"


def events_of(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events_of(folder).Scalars(name)]


def test_tensorboard_has_rows_config_and_models(run: Path) -> None:
    tags = events_of(run).Tags()
    numbers = {name for row in rows_of(run) for name, value in row.items() if value is not None}
    assert set(tags["scalars"]) == numbers - {"round"}
    for name in ("gm", "train_loss", "seconds"):
        assert dict(scalars(run, name)) == pytest.approx(dict(curve(run, name)))
    texts = {tag: events_of(run).Tensors(f"{tag}/text_summary")[0] for tag in ("config", "models")}
    config, models = (each.tensor_proto.string_val[0].decode() for each in texts.values())
    assert 'name = "mlr"' in config
    assert models.count("accuracy") == len(list((run / "models").glob("*.safetensors"))) == 4


def test_mlflow_has_rows_config_and_models(run: Path) -> None:
    import mlflow

    client = mlflow.MlflowClient()
    (number,) = (each.experiment_id for each in client.search_experiments(filter_string="name = 'sfedhp'"))
    (found,) = client.search_runs([number], "attributes.run_name = 'runs/one'")
    assert found.info.status == "FINISHED"
    assert found.data.params == {key: str(value) for key, value in flat(read_config(run)).items()}
    history = client.get_metric_history(found.info.run_id, "gm")
    assert [(each.step, each.value) for each in history] == curve(run, "gm")
    saved = {Path(each.path).name for each in client.list_artifacts(found.info.run_id, "models")}
    assert saved == {path.name for path in (run / "models").iterdir()}


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: a LevelDB log of protocol buffers, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        size, kind = struct.unpack_from("<HB", data, place + 4)
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(whole)
            whole = b""


def test_wandb_has_rows_config_and_models(place: Path, run: Path) -> None:
    (file,) = place.glob("wandb/offline-run-*/run-*.wandb")
    found = list(records(file))
    logged = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in each.history.item}
        for each in found
        if each.HasField("history")
    ]
    assert [(int(row["_step"]), row["gm"]) for row in logged] == curve(run, "gm")
    (begun,) = [each.run for each in found if each.HasField("run")]
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["model.name"] == "mlr"
    assert begun.display_name == "runs/one"
    (artifact,) = [each.artifact for each in found if each.HasField("artifact")]
    assert {entry.path for entry in artifact.manifest.contents} == {
        path.name for path in (run / "models").iterdir()
    }


def test_a_run_that_is_resumed_continues_and_may_choose_anew(place: Path, run: Path) -> None:
    import mlflow

    again = place / "runs" / "again"
    shutil.copytree(run, again)
    shutil.rmtree(again / "tensorboard")
    state = json.loads((again / "tracking.json").read_text())
    del state["tensorboard"], state["wandb"]
    (again / "tracking.json").write_text(json.dumps(state))
    config = (again / "config.toml").read_text().replace("rounds = 2 ", "rounds = 3 ")
    (again / "config.toml").write_text(config)
    assert invoke("resume", again, "--no-report", "--track", "tensorboard,mlflow").exit_code == 0
    assert [step for step, _ in scalars(again, "gm")] == [1, 2, 3]
    client = mlflow.MlflowClient()
    assert [each.step for each in client.get_metric_history(state["mlflow"]["id"], "gm")] == [1, 2, 3]
    assert len(client.search_runs([client.get_run(state["mlflow"]["id"]).info.experiment_id])) == 1
    # What was finished without a tracker can be given to one later.
    shutil.rmtree(again / "tensorboard")
    (again / "tracking.json").unlink()
    assert invoke("resume", again, "--no-report", "--track", "tensorboard").exit_code == 0
    assert [step for step, _ in scalars(again, "gm")] == [1, 2, 3]


def test_every_run_of_a_sweep_and_of_a_comparison_is_tracked(place: Path) -> None:
    words = [*TINY, "rounds=1", "--no-report", "--track", "tensorboard"]
    assert invoke("sweep", *words, "seeds=2", "--out", place / "grid").exit_code == 0
    assert invoke("compare", *words, "--only", "fedavg,local", "--out", place / "all").exit_code == 0
    folders = [path.parent for path in place.glob("*/*/history.jsonl") if path.parts[-3] in ("grid", "all")]
    assert len(folders) == 4
    for folder in folders:
        name = "pm" if folder.name == "local" else "gm"
        assert dict(scalars(folder, name)) == pytest.approx(dict(curve(folder, name)))


class Recorder:
    id = "7"

    def __init__(self, subject: Any, known: str | None):
        self.seen: list[Any] = SEEN
        self.seen.append(("open", known))

    def log(self, round_: int, values: Any) -> None:
        self.seen.append(round_)
        if round_ == 3:
            raise ConnectionError("no route\nand more")

    def end(self, *, finished: bool) -> None:
        self.seen.append(finished)


SEEN: list[Any] = []


def test_rows_come_live_and_a_tracker_that_fails_ends_no_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(follow.TRACKERS, "recorder", Recorder)
    SEEN.clear()
    folder = tmp_path / "run"
    tracking = Tracking(["recorder"], [folder])
    tracking.update()  # the run has not begun
    assert not SEEN
    folder.mkdir()
    (folder / "config.toml").write_text((run / "config.toml").read_text())
    history = folder / "history.jsonl"
    history.write_text('{"round": 1, "gm": 1.0}\n{"round": 2,')
    tracking.update()
    assert SEEN == [("open", None), 1]
    history.write_text('{"round": 1, "gm": 1.0}\n{"round": 2, "gm": null}\n')
    tracking.close()
    assert SEEN[2:] == [2, True]
    history.unlink()  # written again by a run that is resumed
    history.write_text("".join(f'{{"round": {number}}}\n' for number in range(1, 5)))
    with pytest.warns(Note, match=r"--track recorder: ConnectionError: no route\. The run continues without"):
        Tracking(["recorder"], [folder]).close()
    assert SEEN[4:] == [("open", "7"), 3]


def test_trackers_that_cannot_be_used_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "rounds=1", *TINY, "--out", tmp_path / "run", "--track"]
    result = invoke(*words, "tensorbord")
    assert result.exit_code == 2
    assert "there is no tracker 'tensorbord': use tensorboard, mlflow, wandb" in result.stderr
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(follow, "find_spec", lambda name: None)
    result = invoke(*words, "wandb")
    assert result.exit_code == 2
    assert "pip install 'sfedhp[wandb]'" in result.stderr
    assert not (tmp_path / "run").exists()
