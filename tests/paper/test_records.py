import json
import threading
from dataclasses import replace

import pytest

from sfedhp.config import to_dict
from sfedhp.core.errors import InputError
from sfedhp.core.files import locked
from sfedhp.paper.records import append_records, check_settings, current_commit, read_records
from sfedhp.paper.studies import STUDIES, read_studies
from tests.support.paths import ROOT
from tests.support.small_experiments import experiment


def test_a_record_of_other_settings_is_not_taken_for_these(study, made):
    before = study(fedavg=[experiment("fedavg")], hierfavg=[experiment("hierfavg")])
    records = [made(before, method, 1, rounds=40, gm=[50.0]) for method in ("fedavg", "hierfavg")]
    records[0].config["engine"]["clients_at_once"] = 7  # what a machine decides is no setting
    check_settings([before], records)
    check_settings([study(fedavg=[experiment("fedavg")])], records)  # nothing reads HierFAVG's any more
    after = study(fedavg=[experiment("fedavg", local_rate=0.1)], hierfavg=[experiment("hierfavg")])
    with pytest.raises(
        InputError, match=r"table2.jsonl was run with algorithm.local_rate = 0.05, but .* 0.1:"
    ):
        check_settings([after], records)
    with pytest.raises(InputError, match="was run with 'fedavg 0', but the experiment file has 'other 0':"):
        check_settings(
            [replace(before, variants={"fedavg": study(other=[experiment()]).variants["other"]})], records
        )


def test_the_tables_runs_of_pfedgp_predict_with_the_chains_of_their_records():
    """Records from before the option have no such key; they predicted with the chains of training."""
    names = [name for name in STUDIES if name.startswith("table")]
    studies = [study for study in read_studies(ROOT / "experiments", names) if "pfedgp" in study.variants]
    assert len(studies) == 12
    points = [point for study in studies for point in study.variants["pfedgp"]]
    assert {to_dict(point.experiment)["algorithm"]["prediction_chains"] for point in points} == {0}
    records = read_records(ROOT / "results", [study.name for study in studies])
    runs = [record.config["algorithm"] for record in records if record.variant == "pfedgp"]
    assert len(runs) >= 22
    assert {run.get("prediction_chains", 0) for run in runs} == {0}


def test_a_line_that_is_no_record_is_named(tmp_path):
    (tmp_path / "small.jsonl").write_text(json.dumps({"study": "small"}) + "\n")
    with pytest.raises(InputError, match=r"Line 1 of .*small.jsonl is not a record"):
        read_records(tmp_path, ["small"])


def test_the_commit_can_be_named_from_outside(monkeypatch):
    monkeypatch.setenv("SFEDHP_COMMIT", "abc")
    assert current_commit() == "abc"
    monkeypatch.delenv("SFEDHP_COMMIT")
    monkeypatch.setenv("PATH", "")
    assert current_commit() == "unknown"


def test_processes_that_share_a_folder_lose_no_record(study, made, tmp_path):
    one = study(fedavg=[experiment("fedavg")])
    mine, other = (made(one, "fedavg", seed, rounds=40, gm=[50.0]) for seed in (0, 1))
    path = tmp_path / f"{one.name}.jsonl"
    append_records(tmp_path, [mine])
    with locked(tmp_path):  # another process reads the file, and writes it again with a line of its own
        before = path.read_text()
        thread = threading.Thread(target=append_records, args=(tmp_path, [other]))
        thread.start()
        thread.join(0.2)
        path.write_text(before + json.dumps({**json.loads(before), "seed": 2}) + "\n")
    thread.join()
    assert [each.seed for each in read_records(tmp_path, [one.name])] == [0, 2, 1]


def test_a_run_has_one_record(study, made, tmp_path):
    one = study(fedavg=[experiment("fedavg")])
    record = made(one, "fedavg", 1, rounds=40, gm=[50.0])
    append_records(tmp_path, [record])
    append_records(tmp_path, [record])
    assert len(read_records(tmp_path, [one.name])) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("study", "other"), ("seed", "0"), ("rounds", None), ("config", []), ("curve", {"gm": 1})],
)
def test_a_record_whose_fields_have_other_types_is_refused(tmp_path, name, value):
    line = (ROOT / "results" / "speedup.jsonl").read_text(encoding="utf-8").splitlines()[0]
    assert read_records(ROOT / "results", ["speedup"])
    (tmp_path / "speedup.jsonl").write_text(json.dumps({**json.loads(line), name: value}) + "\n")
    with pytest.raises(InputError, match=r"Line 1 of .*speedup.jsonl is not a record: remove the line"):
        read_records(tmp_path, ["speedup"])
