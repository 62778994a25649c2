import json
from dataclasses import replace

import pytest

from sfedhp.core.errors import InputError
from sfedhp.paper.records import check_settings, current_commit, read_records
from tests.support.small_experiments import experiment


def test_a_record_of_other_settings_is_not_taken_for_these(study, made):
    before = study(fedavg=[experiment("fedavg")], hierfavg=[experiment("hierfavg")])
    records = [made(before, method, 1, rounds=40, gm=[50.0]) for method in ("fedavg", "hierfavg")]
    records[0].config["engine"]["clients_at_once"] = 7  # what a machine decides is no setting
    check_settings([before], records)
    check_settings([study(fedavg=[experiment("fedavg")])], records)  # nobody asks for HierFAVG any more
    after = study(fedavg=[experiment("fedavg", local_rate=0.1)], hierfavg=[experiment("hierfavg")])
    with pytest.raises(
        InputError, match=r"table2.jsonl was run with algorithm.local_rate = 0.05, but .* 0.1:"
    ):
        check_settings([after], records)
    with pytest.raises(InputError, match="was run with 'fedavg 0', but the experiment file has 'other 0':"):
        check_settings(
            [replace(before, variants={"fedavg": study(other=[experiment()]).variants["other"]})], records
        )


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
