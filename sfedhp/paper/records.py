"""Records of runs: one line of JSON per finished run, with its config, versions and curve."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sfedhp.config import to_dict
from sfedhp.core.errors import InputError
from sfedhp.core.files import locked, write_text
from sfedhp.core.parsing import parse_json
from sfedhp.paper.studies import Study
from sfedhp.runs.provenance import ENGINE, PRECISION, flat
from sfedhp.runs.results import Outcome
from sfedhp.wire.direction import Direction

_CURVE = (
    *("round", "pm", "em", "gm", "pm_validation", "em_validation", "gm_validation"),
    *("em_averaged", "em_local", "gm_averaged", "gm_local"),
    *("gm_averaged_validation", "gm_local_validation", "pm_worst", "gm_worst"),
    *("train_loss", "pm_loss", "gm_loss", "density_client", "density_edge", "density_global"),
    "sent",  # bytes on the cloud's links so far, of all messages
    "formula",  # the same of one member, by the paper's count
    "sent_all",  # bytes on all links so far
)
_SET_BY_JOB = ("seed", "rounds", "device")  # not by the experiment file


@dataclass(frozen=True)
class Record:
    """The record of a run: config, versions, and metrics by round."""

    study: str  # the experiment file it belongs to
    variant: str
    words: str  # what the variant sets
    seed: int
    rounds: int
    trouble: str | None  # a sentence, if the run diverged
    commit: str
    versions: dict[str, str]
    config: dict[str, Any]  # resolved
    seconds: float  # of computing; its share if several runs were stacked
    curve: dict[str, list[Any]]  # the evaluated rounds, column by column
    newcomers: dict[str, float] = field(default_factory=dict)  # accuracies of clients that join afterwards

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """Identifies the run; no two records have the same key."""
        return (self.study, self.variant, self.words, self.seed, self.rounds)


def make_record(
    study: str,
    variant: str,
    words: str,
    outcome: Outcome,
    *,
    newcomers: dict[str, float],
    commit: str,
    versions: dict[str, str],
) -> Record:
    """The record of a run that ended, and of the newcomers that were scored with its models."""
    run, experiment = outcome.run, outcome.run.experiment
    # The paper counts the messages of one edge, or of one client where there are no edges.
    members = experiment.edges if experiment.algorithm.tiers == 3 else experiment.clients
    at_cloud = [direction for direction in Direction if direction.at_cloud]
    rows: list[dict[str, Any]] = []
    sent, sent_all, formula = 0, 0, 0.0
    for row in run.history:
        sent += sum(row.get(f"bytes_{direction}", 0) for direction in at_cloud)
        sent_all += sum(row.get(f"bytes_{direction}", 0) for direction in Direction)
        formula += sum(row.get(f"formula_{direction}", 0) for direction in at_cloud) / members
        if "train_loss" in row:
            rows.append(row | {"sent": sent, "sent_all": sent_all, "formula": formula})
    columns = {name: [_six_digits(row.get(name)) for row in rows] for name in _CURVE}
    return Record(
        study,
        variant,
        words,
        experiment.seed,
        experiment.rounds,
        outcome.error,
        commit,
        versions,
        to_dict(experiment),
        round(sum(row["seconds"] for row in run.history), 2),
        {name: column for name, column in columns.items() if any(each is not None for each in column)},
        newcomers,
    )


def read_records(folder: str | Path, studies: Iterable[str]) -> list[Record]:
    """The records of the studies with these names.

    Raises:
        InputError: a file is not text, or a line is not a record.
    """
    records = []
    for study in studies:
        path = Path(folder) / f"{study}.jsonl"
        try:
            lines = _whole_lines(path)
        except (UnicodeDecodeError, EOFError, zlib.error):
            raise InputError(
                f"{path} is not a file of records, because it is not UTF-8 text: restore it, or move it away "
                f"to repeat its runs."
            ) from None
        for number, line in enumerate(lines, 1):
            try:
                records.append(_checked(Record(**parse_json(line)), study))
            except (ValueError, TypeError):
                raise InputError(
                    f"Line {number} of {path} is not a record: remove the line to repeat its run."
                ) from None
    return records


def _checked(record: Record, study: str) -> Record:
    """The record, if it is of this study and its fields have their types.

    Raises:
        ValueError: it is not, or one has not.
    """
    texts = (record.study, record.variant, record.words, record.commit)
    numbers, tables = (record.seed, record.rounds), (record.versions, record.config, record.curve)
    right = record.study == study and all(isinstance(each, str) for each in texts)
    right = right and all(type(each) is int for each in numbers)
    right = right and all(isinstance(each, dict) for each in tables)
    if not right or not all(isinstance(column, list) for column in record.curve.values()):
        raise ValueError("a field is missing or of another type")
    return record


def read_records_of(studies: Sequence[Study], folder: str | Path) -> list[Record]:
    """The records of these studies, checked against their experiment files.

    Raises:
        InputError: a file of records cannot be read, or a run had other settings than its file has now.
    """
    records = read_records(folder, [study.name for study in studies])
    check_settings(studies, records)
    return records


def check_settings(studies: Iterable[Study], records: Iterable[Record]) -> None:
    """Refuse records of runs whose settings differ from those of the experiment files.

    Raises:
        InputError: names the record and the setting.
    """
    by_name = {study.name: study for study in studies}
    for record in records:
        points = by_name[record.study].variants.get(record.variant)
        if points is None:
            continue
        same = [point for point in points if point.words == record.words]
        if not same:
            raise InputError(
                _outdated(record, repr(record.words), " or ".join(repr(each.words) for each in points))
            )
        before, now = flat(record.config), flat(to_dict(same[0].experiment))
        for key in before.keys() & now.keys():
            free = key in _SET_BY_JOB or (key.startswith(ENGINE) and key != PRECISION) or now[key] == "auto"
            if not free and before[key] != now[key]:
                raise InputError(_outdated(record, f"{key} = {before[key]}", str(now[key])))


def _outdated(record: Record, before: str, now: str) -> str:
    return (
        f"A record of {record.variant!r} in {record.study}.jsonl was run with {before}, but the experiment "
        f"file has {now}: remove such lines to run them again, or undo the change."
    )


def append_records(folder: str | Path, records: Sequence[Record]) -> None:
    """Append records to the files of their studies; a file has all of them or none, also after a kill.

    Several processes may append to the same folder. A run that has a record already gets no second one.
    """
    folder = Path(folder)
    with locked(folder, wait=True):
        for study in dict.fromkeys(each.study for each in records):
            done = {each.key for each in read_records(folder, [study])}
            new = [each for each in records if each.study == study and each.key not in done]
            lines = [json.dumps(asdict(each), ensure_ascii=False) for each in new]
            path = folder / f"{study}.jsonl"
            write_text(path, "".join(f"{line}\n" for line in (*_whole_lines(path), *lines)))


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file of records, plain or compressed.

    A last line that is not whole is left out: an earlier version was killed while it wrote it.
    """
    packed = path.with_name(f"{path.name}.gz")  # as they come with the package
    text = ""
    if path.exists():
        text = path.read_text("utf-8")
    elif packed.exists():
        text = gzip.decompress(packed.read_bytes()).decode()
    lines = text.split("\n")
    last = lines.pop()  # what follows the last line break
    try:
        parse_json(last)
    except ValueError:
        return lines
    return [*lines, last]


def current_commit() -> str:
    """The commit of the running code: from `SFEDHP_COMMIT`, or else from the checkout's git."""
    named = os.environ.get("SFEDHP_COMMIT")
    if named:
        return named
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _six_digits(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
