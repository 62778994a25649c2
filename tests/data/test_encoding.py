import json
from pathlib import Path

import numpy as np
import pytest

from sfedhp.core.errors import InputError
from sfedhp.data.columns import Table
from sfedhp.data.csv_file import read_csv
from sfedhp.data.encoding import Encoding

KNOWN = "age,sex,smokes,weight\n41,f,true,60\n,m,false,71.5\n33,,true,80\n"


def table(folder: Path, text: str) -> Table:
    path = folder / "new.csv"
    path.write_text(text, encoding="utf-8")
    return read_csv(path)


@pytest.fixture
def encoding(tmp_path: Path) -> Encoding:
    learnt = Encoding.of(table(tmp_path, KNOWN), ())
    return Encoding.from_list(json.loads(json.dumps(learnt.to_list())))


def test_a_table_is_encoded_by_what_another_one_taught(tmp_path: Path, encoding: Encoding) -> None:
    assert encoding.inputs == (
        *("age", "age missing", "sex = f", "sex = m", "sex missing", "smokes", "weight"),
    )
    assert encoding.are_numbers.tolist() == [True, False, False, False, False, False, True]
    # Other columns, another order, one category alone, no missing value.
    found = encoding.apply(table(tmp_path, "weight,id,sex,age,smokes\n55,7,m,20,false\n"))
    assert found.tolist() == [[20, 0, 0, 1, 0, 0, 55]]
    empty = encoding.apply(table(tmp_path, "weight,sex,age,smokes\n55,,,true\n"))
    assert np.isnan(empty[0, 0])
    assert empty[0, 1:].tolist() == [1, 0, 0, 1, 1, 55]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "age,sex,weight\n1,f,2\n",
            "new.csv has no column 'smokes', which the model needs: its columns are age, sex, weight.",
        ),
        (
            "AGE,sex,smokes,weight\n1,f,true,2\n",
            "no column 'age', which the model needs: did you mean 'age' by its column 'AGE'",
        ),
        (
            "age,sex,smokes,weight\n1,f,true,2\n1,x,true,2\n",
            "'sex' has 'x' in line 3, which is not a category",
        ),
        ("age,sex,smokes,weight\n1,f,true,\n", "'weight' has no value in line 2, and the model was trained"),
        ("age,sex,smokes,weight\n1,f,true,2\n1,f,true,heavy\n", "'weight' has 'heavy' in line 3, but the tr"),
        (
            "age,sex,smokes,weight\n1,f,true,true\n",
            "'weight' has 'true' in line 2, but the training data has",
        ),
        (
            'age,sex,smokes,weight\n1,f,true,2\n1,f,true,"28,3"\n1,f,true,3\n',
            "'weight' has '28,3' in line 3, but the training data has a number there: write a decimal",
        ),
        (
            'age,sex,smokes,weight\n1,f,true,2\n1,f,true,"1,283.5"\n1,f,true,"2,3"\n',
            "'weight' has '1,283.5' in line 3, but the training data has a number there: write a decimal",
        ),
        ("age,sex,smokes,weight\n1,f,3,2\n", "'smokes' has '3' in line 2, but the training data has true or"),
        ("age,sex,smokes,weight\n1e300,f,true,2\n", "'age' holds an infinite or huge"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, encoding: Encoding, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        encoding.apply(table(tmp_path, text))
