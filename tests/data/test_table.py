"""Tables as data: which numbers the columns of a CSV or Parquet file become, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sfedhp
from sfedhp.config import Experiment, from_dict, to_dict
from sfedhp.core.errors import InputError
from sfedhp.core.types import ProblemOption
from sfedhp.data import DataOptions, Federation, federate, from_arrays, hold_out
from sfedhp.data.columns import MISSING
from sfedhp.data.newcomer import load_newcomer
from sfedhp.data.scaling import scaling_of
from sfedhp.runs.federation import federation_of
from sfedhp.runs.folder import read_experiment
from sfedhp.runs.prepare import prepare_stack
from sfedhp.runs.provenance import data_fingerprint

ROWS = 24


def column(of: Any) -> list[str]:
    return [str(of(row)) for row in range(ROWS)]


PLAIN: dict[str, list[str]] = {
    "age": column(lambda row: 20 + row),
    "sex": column(lambda row: "mf"[row // 2 % 2]),
    "sick": column(lambda row: ["yes", "no"][row % 2]),
}
SITES = {"ward": column(lambda row: f"w{row % 4}"), "hospital": column(lambda row: "BA"[row % 2])}


def changed(name: str, row: int, value: str, of: dict[str, list[str]] = PLAIN) -> dict[str, list[str]]:
    """The columns with one other value."""
    return {**of, name: [value if at == row else old for at, old in enumerate(of[name])]}


def written(folder: Path, columns: dict[str, list[str]], delimiter: str = ",") -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return raw(folder, text.getvalue())


def raw(folder: Path, text: str, encoding: str = "utf-8") -> str:
    path = folder / "my.csv"
    path.write_bytes(text.encode(encoding))
    return str(path)


def load(
    source: str, edges: int = 1, clients_per_edge: int = 2, problem: ProblemOption = "auto", **options: Any
) -> Federation:
    chosen = DataOptions(source, **{"target": "sick", **options})
    return federate(chosen, edges=edges, clients_per_edge=clients_per_edge, seed=0, problem=problem)[0]


def refusal(source: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(source, **options)
    return str(caught.value)


# --- what columns become


def test_numbers_stay_text_becomes_categories_and_classes_keep_their_names(tmp_path: Path) -> None:
    federation = load(written(tmp_path, PLAIN))
    assert federation.names.features == ("age", "sex = f", "sex = m")
    assert federation.names.classes == ("no", "yes")
    assert federation.labels.tolist() == [1, 0] * 12
    male = np.arange(ROWS) // 2 % 2 == 0
    np.testing.assert_array_equal(federation.inputs, np.stack([20 + np.arange(ROWS), ~male, male], 1))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_forms_of_csv(tmp_path: Path, delimiter: str, encoding: str, end: str) -> None:
    lines = ['"size, in cm";sick', ' 1.5 ;"ü; 1"', "", "2;ä", "3;ä", '-4e1;"ü; 1"', ""]
    text = end.join(lines)
    if delimiter != ";":
        text = text.replace('"size, in cm"', "size, in cm") if delimiter == "\t" else text
        text = text.replace("ü; 1", "ü| 1").replace(";", delimiter).replace("|", ";")
    federation = load(raw(tmp_path, text, encoding), clients_per_edge=1)
    assert federation.names.features == ("size, in cm",)
    assert federation.names.classes == ("ä", "ü; 1")
    assert federation.inputs[:, 0].tolist() == [1.5, 2, 3, -40]


@pytest.mark.parametrize("name", ["rows.CSV", "rows.tsv", "rows.Parquet"])
def test_names_of_files_may_have_capitals(tmp_path: Path, name: str) -> None:
    if name.endswith("Parquet"):
        path = Path(parquet(tmp_path, **{**PLAIN, "age": [*range(ROWS)]}))
    else:
        path = Path(written(tmp_path, PLAIN, "\t" if name.endswith("tsv") else ","))
    federation = load(str(path.rename(tmp_path / name)))
    assert federation.names.features == ("age", "sex = f", "sex = m")


def test_booleans_are_zero_and_one(tmp_path: Path) -> None:
    columns = {**PLAIN, "smokes": column(lambda row: ["True", "FALSE", "true", "false"][row % 4])}
    federation = load(written(tmp_path, columns), drop=("age", "sex"))
    assert federation.names.features == ("smokes",)
    assert federation.inputs[:, 0].tolist() == [1, 0] * 12
    assert set(federation.scaled(np.arange(ROWS), "float32")[:, 0].tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("text", ["", "NA", "NaN", "null", "n/a"])
def test_missing_values_have_an_indicator(tmp_path: Path, text: str) -> None:
    columns = changed("sex", 5, text, changed("age", 3, text))
    federation = load(written(tmp_path, columns))
    assert federation.names.features == ("age", "age missing", "sex = f", "sex = m", "sex missing")
    for row, name in ((3, "age missing"), (5, "sex missing")):
        indicator = federation.inputs[:, federation.names.features.index(name)]
        assert np.flatnonzero(indicator).tolist() == [row]
    assert federation.inputs[5, 2:4].tolist() == [0, 0]


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_a_missing_number_is_the_mean_of_the_training_rows(tmp_path: Path, scale: str) -> None:
    tested = column(lambda row: row >= 16)
    columns = {**changed("age", 18, "", changed("age", 3, "")), "held": tested}
    federation = load(written(tmp_path, columns), test_column="held", scale=scale)
    training = [20.0 + row for row in range(16) if row != 3]
    scaled = federation.scaled(np.arange(ROWS), "float64")[:, 0]
    mean, deviation = (np.mean(training), np.std(training)) if scale == "standard" else (0.0, 1.0)
    np.testing.assert_allclose(scaled[[0, 17]], (np.array([20.0, 37.0]) - mean) / deviation)
    np.testing.assert_allclose(scaled[[3, 18]], (np.mean(training) - mean) / deviation, atol=1e-15)
    assert federation.scale == scale


def test_standard_uses_training_rows_alone_and_constants_are_zero(tmp_path: Path) -> None:
    columns = {
        **PLAIN,
        "held": column(lambda row: int(row >= 16)),
        "steady": column(lambda row: 0.1 if row < 16 else 1e6),
        "stamp": column(lambda row: 1_700_000_000_000 + row),
    }
    federation = load(written(tmp_path, columns), test_column="held")
    scaled = federation.scaled(np.arange(ROWS), "float32")
    assert scaled.dtype == np.float32
    place = federation.names.features.index
    train = scaled[np.concatenate(federation.train)]
    for name in ("age", "stamp"):
        np.testing.assert_allclose(train[:, place(name)].mean(), 0, atol=1e-6)
        np.testing.assert_allclose(train[:, place(name)].std(), 1, atol=1e-6)
    assert not scaled[:, place("steady")].any()
    assert set(scaled[:, place("sex = f")].tolist()) == {0.0, 1.0}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32) | st.just(float("nan")), min_size=4, max_size=30), st.data())
def test_scaled_columns_are_finite_and_have_mean_zero(values: list[float], data: st.DataObject) -> None:
    inputs = np.array(values)[:, None]
    rows = st.integers(0, len(values) - 1)
    training = np.array(data.draw(st.lists(rows, min_size=1, unique=True)))
    scaling = scaling_of("standard", inputs, training, np.array([True]))
    scaled = scaling.apply(inputs, np.dtype("float64"))
    assert np.isfinite(scaled).all()
    assert abs(scaled[training].mean()) < 1e-6


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(words, min_size=8, max_size=30))
def test_any_text_is_a_category_or_refused(tmp_path: Path, values: list[str]) -> None:
    """A value that is text is found again under the name of its category."""
    columns = {"x": values, "sick": [["a", "b"][row % 2] for row in range(len(values))]}
    try:
        federation = load(written(tmp_path, columns), clients_per_edge=1)
    except InputError as error:
        sentence = str(error)
        assert re.fullmatch(r"my\.csv: .*\.", sentence, re.DOTALL)
        return
    if federation.encoding is not None and not federation.encoding.are_numbers.any():
        for row, value in enumerate(values):
            value = value.strip()
            name = "x missing" if value.lower() in MISSING else f"x = {value}"
            if name in federation.names.features:
                assert federation.inputs[row, federation.names.features.index(name)] == 1


def test_a_number_column_with_a_text_in_it_is_remarked_on(tmp_path: Path) -> None:
    federation = load(written(tmp_path, changed("age", 2, "?")))
    assert federation.notes == (
        "my.csv: column 'age' is read as text because of '?' in line 4; leave values that are missing empty.",
    )


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (column(lambda row: row % 2), None),
        (
            ["?", "?", *column(lambda row: row % 2)[2:]],
            "my.csv: the target 'sick' is read as text because of '?' in line 2, which becomes a class: "
            "remove the row if the value is missing.",
        ),
        (
            [f"kind {row % 51}" for row in range(204)],
            "my.csv: the target 'sick' has 51 different texts, taken as classes: choose another if they are "
            "not.",
        ),
    ],
    ids=["numbers", "a text among numbers", "many texts"],
)
def test_classes_that_may_be_none_are_remarked_on(
    tmp_path: Path, values: list[str], note: str | None
) -> None:
    source = written(tmp_path, {"age": [str(row) for row in range(len(values))], "sick": values})
    assert load(source).notes == (() if note is None else (note,))
    assert load(source, problem="classification").notes == ()


def test_classes_that_differ_only_in_case_are_remarked_on(tmp_path: Path) -> None:
    values = ["Yes", *column(lambda row: ["no", "yes"][row % 2])[1:]]
    source = written(tmp_path, {"age": [str(row) for row in range(len(values))], "sick": values})
    assert load(source).notes == (
        "my.csv: the target 'sick' has the classes 'Yes' and 'yes', which differ only in case: write them "
        "alike if they are the same class.",
    )


def test_codes_with_a_comma_among_numbers_are_categories(tmp_path: Path) -> None:
    federation = load(written(tmp_path, changed("age", 2, "1,2")))
    assert "age = 1,2" in federation.names.features


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["10", "9"], ("9", "10")),
        (["1.0", "0.0"], ("0", "1")),
        (["-1", "+1"], ("-1", "1")),
        (["True", "false"], ("false", "true")),
        (["b", "2"], ("2", "b")),
    ],
)
def test_names_of_classes(tmp_path: Path, values: list[str], names: tuple[str, ...]) -> None:
    federation = load(written(tmp_path, {**PLAIN, "sick": column(lambda row: values[row % 2])}))
    assert federation.names.classes == names
    assert federation.classes == 2
    assert set(federation.labels.tolist()) == {0, 1}


# --- clients, edges and rows to test on


def test_rows_to_test_on(tmp_path: Path) -> None:
    federation = load(
        written(tmp_path, {**PLAIN, "held": column(lambda row: int(row % 4 < 2))}), test_column="held"
    )
    assert sorted(np.concatenate(federation.test).tolist()) == [row for row in range(ROWS) if row % 4 < 2]
    assert "held" not in federation.names.features


def test_clients_are_named_by_a_column(tmp_path: Path) -> None:
    source = written(tmp_path, {**PLAIN, "ward": column(lambda row: ["10", "9", "x y"][row // 2 % 3])})
    federation = load(source, client_column="ward", clients_per_edge=3)
    assert federation.names.clients == ("10", "9", "x y")
    for client, rows in enumerate(zip(federation.train, federation.test, strict=True)):
        assert {int(row) // 2 % 3 for row in np.concatenate(rows)} == {client}
    rest, (newcomer,) = hold_out(federation, [1])
    assert rest.names.clients == ("10", "x y")
    np.testing.assert_array_equal(newcomer.inputs, rest.scaled(federation.train[1], "float32"))


def test_edges_follow_from_the_data(tmp_path: Path) -> None:
    source = written(tmp_path, {**PLAIN, **SITES, "sick": column(lambda row: row // 4 % 2)})
    options = DataOptions(source, target="sick", client_column="ward", edge_column="hospital")
    federation, experiment = federation_of(Experiment(data=options))
    assert (experiment.edges, experiment.clients_per_edge) == (2, 2)
    assert federation.names.edges == ("A", "B")
    assert federation.names.clients == ("w1", "w3", "w0", "w2")
    assert federation.seats.tolist() == [[0, 1], [2, 3]]
    for client, name in enumerate(federation.names.clients):
        held = np.concatenate([federation.train[client], federation.test[client]])
        assert {f"w{row % 4}" for row in held} == {name}
    assert federation.notes == ("data.edge_column = 'hospital' gives edges = 2 and clients_per_edge = 2.",)
    again, resolved = federation_of(experiment)
    assert resolved == experiment
    assert data_fingerprint(again) == data_fingerprint(federation)
    assert again.notes == ()
    for wrong in (Experiment(data=options, edges=3), Experiment(data=options, clients_per_edge=4)):
        with pytest.raises(InputError, match=r"= \d, but data.edge_column = 'hospital' gives 2: leave"):
            federation_of(wrong)
    held_out = dataclasses.replace(options, held_out=1)
    federation, experiment = federation_of(Experiment(data=held_out))
    assert federation.seats.tolist() == [[0], [1]]
    assert federation.names.clients == ("w1", "w0")
    assert (experiment.edges, experiment.clients_per_edge) == (2, 2)
    assert federation_of(experiment)[1] == experiment
    stack = prepare_stack([Experiment(data=options, seed=seed) for seed in (0, 0, 1)])
    assert {(each.edges, each.clients_per_edge) for each in stack.experiments} == {(2, 2)}


def test_edges_of_the_data_may_have_different_numbers_of_clients(tmp_path: Path) -> None:
    wards = {"ward": column(lambda row: f"w{row % 3}"), "hospital": column(lambda row: "BAA"[row % 3])}
    source = written(tmp_path, {**PLAIN, **wards, "sick": column(lambda row: row // 3 % 2)})
    options = DataOptions(source, target="sick", client_column="ward", edge_column="hospital")
    federation, experiment = federation_of(Experiment(data=options))
    assert (experiment.edges, experiment.clients_per_edge) == (2, (2, 1))
    assert federation.names.clients == ("w1", "w2", "w0")
    assert federation.seats.tolist() == [[0, 1], [2, -1]]
    assert federation.notes == (
        "data.edge_column = 'hospital' gives edges = 2 and clients_per_edge = [2, 1].",
    )
    assert federation_of(Experiment(data=options, clients_per_edge=(2, 1)))[1] == experiment
    with pytest.raises(
        InputError, match=r"clients_per_edge = \[1, 2\], but data.edge_column = 'hospital' gives"
    ):
        federation_of(Experiment(data=options, clients_per_edge=(1, 2)))


# --- what is refused

EXAMPLES = [
    ("my.csv needs data.target=COLUMN, what to predict; its columns are age, sex,", {}, {"target": None}),
    ("my.csv needs data.target=COLUMN, what to predict", {}, {"target": ()}),
    ("data.target twice names the column 'sick': a column has one use.", {}, {"target": ("sick", "sick")}),
    ("data.target = 'sik' is not a column of my.csv: did you mean sick?", {}, {"target": "sik"}),
    ("data.drop = 'xyz' is not a column of my.csv: its columns are age, sex, sick.", {}, {"drop": ("xyz",)}),
    ("data.drop and data.target both name the column 'sick': a column has", {}, {"drop": ("sick",)}),
    ("data.target and data.client_column both name the column 'sick'", {}, {"client_column": "sick"}),
    ("my.csv has no column left to predict from", {}, {"drop": ("age", "sex")}),
    ("column 'sick' has no value in line 6, and data.target needs one in", changed("sick", 4, ""), {}),
    (
        "column 'id' has 51 different texts, and at most 50 can be categories: group them, or leave it out "
        "with data.drop=id.",
        {
            "id": [f"p{row % 51}" for row in range(102)],
            "sick": [str(row % 2) for row in range(102)],
        },
        {},
    ),
    ("column 'day' holds dates or times (2024-02-01)", {**PLAIN, "day": ["2024-02-01"] * 23 + ["x"]}, {}),
    ("column 'day' holds dates or times", {**PLAIN, "day": ["2024-02-01T10:30:00Z"] * ROWS}, {}),
    ("column 'day' holds dates or times", {**PLAIN, "day": ["10:30"] * ROWS}, {}),
    *(
        ("column 'day' holds dates or times", {**PLAIN, "day": [day] * ROWS}, {})
        for day in (
            *("24.12.2024", "12/24/24", "2024/12/24 10:30", "24 Dec 2024", "December 24, 2024", "1:30 PM"),
            *("Tue, 24 Dec 2024 10:30:00 GMT", "Tuesday, 24 December 2024", "20241224T103000Z"),
            "24/Dec/2024:10:30:00 +0100",
        )
    ),
    ("column 'x' is empty: fill it, or leave it out with data.drop=x.", {**PLAIN, "x": [""] * ROWS}, {}),
    ("column 'age' holds an infinite or huge (above 3e38) number in line 3", changed("age", 1, "inf"), {}),
    ("column 'age' holds an infinite or huge (above 3e38) number in line 3", changed("age", 1, "1e39"), {}),
    ("column 'x' has numbers such as '1,5' in line 2: write a", {**PLAIN, "x": ["1,5"] * ROWS}, {}),
    *(
        (f"column 'x' has numbers such as {first!r} in line", {**PLAIN, "x": column(of)}, {})
        for first, of in (
            ("1.234,5", lambda row: "1.234,5"),
            ("1,100", lambda row: f"{row + 1},100"),
            ("1'100,000.5", lambda row: "1'100,000.5"),
            ("1\u00a0100", lambda row: f"{row + 1}\u00a0100"),
            ("1,020", lambda row: 900 + row if row < 20 else f"1,0{row}"),  # most are plain numbers
        )
    ),
    (
        "the target 'sick' has numbers such as '1,5' in line 2: write a decimal point and no thousands "
        "separators, or set problem=classification",
        {**PLAIN, "sick": column(lambda row: f"{row % 3 + 1},5")},
        {},
    ),
    (
        "the target 'sick' has numbers such as '2,500' in line 2: write a decimal point",
        {**PLAIN, "sick": ["2,500"] * ROWS},
        {"problem": "regression"},
    ),
    (
        "the target 'sick' is read as text because of '?' in line 4: correct it or remove the row, or set",
        changed("sick", 2, "?", {**PLAIN, "sick": column(lambda row: row / 7)}),
        {},
    ),
    (
        "the target 'sex' holds text ('m' in line 2), and several targets need numbers: choose other",
        PLAIN,
        {"target": ("age", "sex")},
    ),
    (
        "the target 'sick' has numbers that are not whole, and problem = classification takes at most 50",
        {**PLAIN, "sick": column(lambda row: row % 2 + 0.5)},
        {"problem": "classification"},
    ),
    (
        "the target 'sick' has 51 different numbers, and problem = classification takes at most 50 classes",
        {"x": ["1"] * 102, "sick": [str(row % 51) for row in range(102)]},
        {"problem": "classification"},
    ),
    (
        "the target 'sick' holds text ('yes' in line 2), and problem = regression needs numbers: choose",
        PLAIN,
        {"problem": "regression"},
    ),
    ("column 'sick' has no value in line 4", changed("sick", 2, "nan"), {"problem": "regression"}),
    (
        "the target 'age' is infinite or huge (above 3e38) in line 4: correct it",
        changed("age", 2, "inf"),
        {"target": "age", "drop": ("sick",), "problem": "regression"},
    ),
    ("the target sick is the same in every", {**PLAIN, "sick": ["1.5"] * ROWS}, {}),
    ("data.target names 2 columns", PLAIN, {"target": ("age", "sick"), "problem": "classification"}),
    ("the target 'sick' holds neither text nor numbers", {**PLAIN, "sick": ["2024-02-01"] * ROWS}, {}),
    ("the target 'sick' is 'yes' in every row", {**PLAIN, "sick": ["yes"] * ROWS}, {}),
    ("class 'rare' occurs only in rows to test on", changed("sick", 7, "rare"), {"test_share": 0.9}),
    (
        "class 'no' occurs only in rows to test on",
        {**PLAIN, "held": column(lambda row: row % 2)},
        {"test_column": "held"},
    ),
    ("my.csv has no training rows: mark", {**PLAIN, "held": ["1"] * ROWS}, {"test_column": "held"}),
    ("my.csv has no test rows: mark", {**PLAIN, "held": ["0"] * ROWS}, {"test_column": "held"}),
    (
        "column 'held' has '2' in line 4: write true or false, or 1 or 0",
        {**PLAIN, "held": column(lambda row: row)},
        {"test_column": "held"},
    ),
    (
        "column 'ward' has no value in line 2, and data.client_column needs one",
        {**PLAIN, "ward": [""] * ROWS}, {"client_column": "ward"},
    ),
    ("data.edge_column needs data.client_column", {}, {"edge_column": "sex"}),
    (
        "client 'w1' is under two edges, 'A' and 'C'",
        {**PLAIN, **changed("hospital", 21, "C", SITES)},
        {"client_column": "ward", "edge_column": "hospital"},
    ),
    (
        "data.client_column says who holds which row, and so does data.partition = 'dirichlet'",
        {},
        {"client_column": "sex", "partition": "dirichlet"},
    ),
    ("data.partition = 'given' needs data.client_column for a table", {}, {"partition": "given"}),
    (
        "and so does data.edge_order = 'random'",
        {**PLAIN, **SITES},
        {"client_column": "ward", "edge_column": "hospital", "edge_order": "random"},
    ),
    ("data.scale = 'unit' is for images: use standard or none for a table.", {}, {"scale": "unit"}),
    ("data.drop = ('age', 3) is not a list of names", {}, {"drop": ("age", 3)}),
    ("my.csv: client 'w0' has no rows to train on", {
        **PLAIN, "ward": column(lambda row: f"w{row % 2}"), "held": column(lambda row: int(row % 2 == 0)),
        "sick": column(lambda row: row // 2 % 2),
    }, {"client_column": "ward", "test_column": "held"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "columns", "options"), EXAMPLES, ids=[each[0][:50] for each in EXAMPLES]
)
def test_what_is_refused(
    tmp_path: Path, sentence: str, columns: dict[str, list[str]], options: dict[str, Any]
) -> None:
    assert sentence in refusal(written(tmp_path, columns or PLAIN), **options)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "my.csv is empty"),
        ("\n \n", "my.csv is empty"),
        ("a,sick\n", "my.csv has no rows below its first line"),
        ("a,sick\n1,1.5\n", "my.csv: 1 row is too few for 2 clients: use fewer clients."),
        ("a,sick\n1,x\n2\n", "my.csv: line 3 has 1 value, but there are 2 columns: repair the line"),
        ('a,sick\n"1\n",x\n2,y,z\n', "my.csv: line 4 has 3 values, but there are 2 columns"),
        ("a;sick\n1;x\n2;y;z\n", "or put quotes around text with a semicolon."),
        ('a,sick\n1,x\n"2,y\n3,z\n', "my.csv: line 3 cannot be read as CSV"),
        ('a,sick\n1,"x"y\n', "my.csv: line 2 cannot be read as CSV"),
        ('a,sick\n1,"x' + 200_000 * "x", "my.csv: line 2 cannot be read as CSV"),
        ("a,a,sick\n1,2,x\n", "my.csv has two columns 'a'"),
        (",a,sick\n0,1,x\n", "my.csv: column 1 has no name: name it, or leave the column out of the file"),
        ("a\0,sick\n1,x\n", "my.csv is not text"),
        ("a,a missing,sick\n,1,x\n2,3,y\n", "two inputs would have the name 'a missing'"),
    ],
)
def test_broken_csv(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refusal(raw(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "no.csv")) == f"There is no file {tmp_path / 'no.csv'}."
    (tmp_path / "folder.csv").mkdir()
    assert "folder.csv cannot be read: " in refusal(str(tmp_path / "folder.csv"))
    text = "a,sick\n1,x\n2,\xfc\n"
    assert refusal(raw(tmp_path, text, "latin-1")) == "my.csv is not UTF-8 text (line 3): save it as UTF-8."


@pytest.mark.parametrize("key", ["target", "client_column", "edge_column", "test_column", "drop"])
def test_keys_of_tables_are_refused_for_other_sources(key: str) -> None:
    given: dict[str, Any] = {key: ("a",) if key == "drop" else "a"}
    options = DataOptions(**given)
    with pytest.raises(InputError, match=rf"data.{key} is for tables \(.csv, .tsv, .parquet\)"):
        federate(options, edges=2, clients_per_edge=2, seed=0)


# --- Parquet


def parquet(folder: Path, **columns: Any) -> str:
    path = folder / "my.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_parquet_gives_what_csv_gives(tmp_path: Path) -> None:
    columns = {
        **changed("sex", 4, "", changed("age", 3, "")),
        "smokes": column(lambda row: row % 5 == 0),
        "held": column(lambda row: row % 4 == 3 or row == 0),
    }
    typed = {
        "age": [float(age) if age else None for age in columns["age"]],
        "sex": pyarrow.array([sex or None for sex in columns["sex"]]).dictionary_encode(),
        "sick": columns["sick"],
        "smokes": [text == "True" for text in columns["smokes"]],
        "held": [text == "True" for text in columns["held"]],
    }
    options: dict[str, Any] = {"test_column": "held", "drop": ()}
    one, other = load(written(tmp_path, columns), **options), load(parquet(tmp_path, **typed), **options)
    assert one.names == other.names
    assert one.names.features[0] == "age"
    assert data_fingerprint(one) == data_fingerprint(other)


def test_types_of_parquet(tmp_path: Path) -> None:
    typed = {
        "age": pyarrow.array(range(ROWS), pyarrow.int8()),
        "code": column(lambda row: row % 3),
        "day": [datetime.date(2024, 1, 1)] * ROWS,
        "tags": [[1, 2]] * ROWS,
        "nothing": pyarrow.nulls(ROWS),
        "sick": [float(row % 2) for row in range(ROWS)],
    }
    source = parquet(tmp_path, **typed)
    federation = load(source, drop=("day", "tags", "nothing"))
    assert federation.names.features == ("age", "code = 0", "code = 1", "code = 2")
    assert federation.names.classes == ("0", "1")
    assert "column 'day' holds dates or times (2024-01-01)" in refusal(source, drop=("tags", "nothing"))
    assert "column 'tags' holds neither numbers nor text" in refusal(source, drop=("day", "nothing"))
    assert "column 'nothing' is empty" in refusal(source, drop=("day", "tags"))
    assert "column 'sick' has no value in row 3" in refusal(
        parquet(tmp_path, age=[1, 2, 3], sick=["a", "b", None])
    )


def test_numbers_that_parquet_stores_as_text(tmp_path: Path) -> None:
    """They may be codes of classes; numbers that are not whole are not."""
    ages = list(range(ROWS))
    source = parquet(tmp_path, age=ages, sick=column(lambda row: f"0{row % 2}"))
    assert load(source).names.classes == ("00", "01")
    stored = "the target 'sick' holds numbers that are stored as text ('00'): store numbers, or choose"
    assert stored in refusal(source, problem="regression")
    source = parquet(tmp_path, age=ages, sick=column(lambda row: row % 6 + 0.5))
    assert "('0.5'): store numbers, or set problem=classification" in refusal(source)
    assert load(source, problem="classification").classes == 6


def test_names_of_clients_that_parquet_stores_as_bytes(tmp_path: Path) -> None:
    wards = [f"wärd {row % 2}".encode() for row in range(ROWS)]
    source = parquet(tmp_path, age=list(range(ROWS)), ward=wards, sick=column(lambda row: row // 2 % 2))
    assert load(source, client_column="ward").names.clients == ("wärd 0", "wärd 1")


def test_parquet_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my.parquet"
    assert refusal(str(path)) == f"There is no file {path}."
    path.write_bytes(b"PAR1 is not all of it")
    assert refusal(str(path)) == "my.parquet is not a readable .parquet file: write it again."
    two = pyarrow.table([[1.0], [2.0], ["x"]], names=["age", "age", "sick"])
    pyarrow.parquet.write_table(two, path)
    assert refusal(str(path)) == "my.parquet has two columns 'age': give each its own name."
    assert "my.parquet has no rows" in refusal(parquet(tmp_path, age=[], sick=[]))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refusal(str(path)) == "A .parquet file needs pyarrow: pip install 'sfedhp[parquet]'."


# --- runs


def small(source: str, **options: Any) -> Experiment:
    data = DataOptions(source, target="sick", **options)
    return Experiment(rounds=4, data=data, algorithm=sfedhp.SFedHP(edge_rounds=2))


def test_a_run_on_a_table_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {**changed("age", 3, ""), **SITES, "sick": column(lambda row: row // 4 % 2)}
    columns["id"] = column(lambda row: f"p{row}")
    written(tmp_path, columns)
    monkeypatch.chdir(tmp_path)
    experiment = small("my.csv", client_column="ward", edge_column="hospital", drop=("id",))
    whole = sfedhp.run(experiment, out="whole")
    done: list[int] = []
    sfedhp.run(
        experiment,
        out="parts",
        report=lambda progress: done.append(progress.row["round"]),
        stop=lambda: len(done) == 2,
    )
    monkeypatch.chdir(tmp_path.parent)  # the file is found from elsewhere
    resumed = sfedhp.resume(tmp_path / "parts")
    for name in ("global", "edge-B", "client-w2"):
        path = f"models/{name}.safetensors"
        assert (tmp_path / "parts" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()
    assert resumed.summary["pm_last"] == whole.summary["pm_last"]
    kept = read_experiment(tmp_path / "whole")
    assert kept.data.drop == ("id",)
    assert kept.data.scale == "standard"
    assert from_dict(to_dict(kept)) == kept

    written(tmp_path, changed("age", 9, "99", columns))
    with pytest.raises(InputError, match=r"is not what the run in .* was computed with"):
        sfedhp.resume(tmp_path / "whole")


def test_arrays_of_a_newcomer_and_tables_that_no_one_knows_are_refused(tmp_path: Path) -> None:
    experiment = small(written(tmp_path, PLAIN))
    with pytest.raises(InputError, match="The run's data is a table: give the newcomer's rows as"):
        load_newcomer(
            {"inputs": np.zeros((4, 3)), "labels": [0, 1, 0, 1]},
            experiment.data,
            edges=1,
            clients_per_edge=2,
            seed=0,
            dtype="float32",
        )
    with pytest.raises(InputError, match="is a table, but the federation's kits do not know its columns"):
        federate(experiment.data, edges=1, clients_per_edge=1, seed=0, classes=2)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_the_new_default_scale_changes_nothing_for_arrays(kind: type[np.generic]) -> None:
    inputs, labels = np.arange(60).reshape(20, 3).astype(kind), np.arange(20) % 2
    division: dict[str, Any] = {"edges": 1, "clients_per_edge": 2, "seed": 0}
    before, recorded = from_arrays(inputs, labels, options=DataOptions(scale="unit"), **division)
    after, resolved = from_arrays(inputs, labels, **division)
    assert resolved == recorded
    assert data_fingerprint(after) == data_fingerprint(before)
    np.testing.assert_array_equal(
        after.scaled(np.arange(20), "float32"), before.scaled(np.arange(20), "float32")
    )
    # A config of an earlier version has none of the new keys, and is written without them.
    config = to_dict(Experiment(data=recorded))
    assert not {"target", "client_column", "edge_column", "test_column", "drop"} & config["data"].keys()
    assert from_dict(config).data == recorded


# --- targets that are no classes


def test_a_target_of_numbers_is_a_regression_and_a_note_says_so(tmp_path: Path) -> None:
    many = {"x": column(lambda row: row), "sick": column(lambda row: 100 + row + 0.5)}
    federation = load(written(tmp_path, many))
    assert federation.problem == "regression"
    assert federation.outputs == 1
    assert federation.labels[:, 0].tolist() == [100.5 + row for row in range(ROWS)]
    assert federation.names.targets == ("sick",)
    assert (
        "my.csv: the target 'sick' holds numbers that are not classes: problem = regression."
        in federation.notes
    )
    assert not load(written(tmp_path, many), problem="regression").notes


def test_whole_numbers_are_classes_until_they_are_many(tmp_path: Path) -> None:
    few = {"x": column(lambda row: row), "sick": column(lambda row: row % 3)}
    assert load(written(tmp_path, few)).problem == "classification"
    assert load(written(tmp_path, few), problem="regression").labels[:3, 0].tolist() == [0, 1, 2]
    many = {"x": ["1"] * 102, "sick": [str(row % 51) for row in range(102)]}
    assert load(written(tmp_path, many)).problem == "regression"


def test_several_targets_are_numbers_or_labels(tmp_path: Path) -> None:
    columns = {**PLAIN, "a": column(lambda row: row % 2), "b": column(lambda row: row // 2 % 2)}
    labels = load(written(tmp_path, columns), target=("a", "b"))
    assert (labels.problem, labels.names.classes, labels.outputs) == ("multilabel", ("a", "b"), 2)
    numbers = load(written(tmp_path, columns), target=("a", "age"), problem="regression")
    assert (numbers.problem, numbers.names.targets, numbers.labels.shape) == (
        "regression",
        ("a", "age"),
        (ROWS, 2),
    )
    assert "age" not in numbers.names.features


def test_a_reconstruction_needs_no_target(tmp_path: Path) -> None:
    federation = load(written(tmp_path, PLAIN), target=None, problem="reconstruction")
    assert federation.outputs == federation.inputs.shape[1] == 5
    rows = federation.train[0]
    np.testing.assert_array_equal(federation.targets(rows, "float64"), federation.scaled(rows, "float64"))
