"""A few hundred inputs of `tools/fuzz_readers.py` on every reader, and all that ever failed."""

import warnings

import pytest

from tests.support.tools import load_tool

fuzz_readers = load_tool("fuzz_readers")
INPUTS = 2500  # on all readers together


@pytest.mark.no_cover  # runs lines that other tests cover
def test_damaged_files_are_refused_with_one_type_of_error(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fuzzers, failures = fuzz_readers.fuzz(INPUTS, 1, tmp_path)
    assert not failures
    assert len(fuzzers) >= 20
    for fuzzer in fuzzers:
        assert fuzzer.outcomes.total() >= INPUTS // len(fuzzers)
        assert fuzzer.outcomes["refused"] > 0 or fuzzer.reader.name == "status"


def test_inputs_that_once_failed_are_refused(tmp_path):
    found = fuzz_readers.readers(tmp_path)
    kept = {name: fuzz_readers.kept_inputs(fuzz_readers.CORPUS, name) for name in found}
    assert sum(map(len, kept.values())) > 5
    for name, inputs in kept.items():
        fuzzer = fuzz_readers.Fuzzer(found[name], 0)
        for data in inputs:
            fuzzer.try_input(data)


def test_another_error_is_a_failure(tmp_path, capsys):
    def broken(data: bytes) -> None:
        raise KeyError("surprise")

    fuzzer = fuzz_readers.Fuzzer(fuzz_readers.Reader("broken", [b"abc"], broken), 0)
    with pytest.raises(KeyError):
        fuzzer.step(0)


def test_a_hang_is_a_failure(monkeypatch):
    monkeypatch.setattr(fuzz_readers, "SECONDS", 0.05)

    def hangs(data: bytes) -> None:
        while True:
            pass

    fuzzer = fuzz_readers.Fuzzer(fuzz_readers.Reader("hangs", [b"abc"], hangs), 0)
    with pytest.raises(fuzz_readers.Hang):
        fuzzer.step(0)
