from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, Federation, from_huggingface

ROWS = 24
RANDOM = np.random.default_rng(4)
PIXELS = RANDOM.integers(0, 256, (ROWS, 5, 4)).astype(np.uint8)


def images(**more: Any) -> datasets.Dataset:
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "ward": datasets.Value("string"),
            "note": datasets.Value("string"),
        }
    )
    rows = {
        "img": [Image.fromarray(each) for each in PIXELS],
        "label": [row % 2 for row in range(ROWS)],
        "ward": [f"w{row % 3}" for row in range(ROWS)],
        "note": [f"text {row}" for row in range(ROWS)],
    }
    return datasets.Dataset.from_dict(rows | more, features=features)


def patients() -> datasets.Dataset:
    return datasets.Dataset.from_dict(
        {
            "age": [20.0 + row for row in range(ROWS)],
            "sex": ["f" if row % 3 else "m" for row in range(ROWS)],
            "site": [row % 2 for row in range(ROWS)],
            "ill": [bool(row % 2) for row in range(ROWS)],
        }
    )


def divided(dataset: Any, **options: Any) -> Federation:
    return from_huggingface(dataset, options=DataOptions(**options), edges=1, clients_per_edge=3, seed=0)[0]


def test_images_labels_and_clients_come_from_columns() -> None:
    federation = divided(images(), client_column="ward")
    np.testing.assert_array_equal(federation.inputs[:, 0], PIXELS)
    assert federation.inputs.dtype == np.uint8
    assert federation.labels.tolist() == [row % 2 for row in range(ROWS)]
    assert federation.names.classes == ("cat", "dog")
    assert federation.names.clients == ("w0", "w1", "w2")
    assert federation.scale == "unit"
    assert divided(images(), image_size=3).inputs.shape == (ROWS, 1, 3, 3)


def test_other_columns_are_those_of_a_table() -> None:
    federation = divided(patients(), target="ill", drop=("site",))
    assert federation.names.features == ("age", "sex = f", "sex = m")
    assert federation.names.classes == ("false", "true")
    assert federation.scale == "standard"


def test_a_run_takes_a_dataset_and_resumes_with_it(tmp_path) -> None:
    data = DataOptions(target="ill", client_column="site")
    experiment = sfedhp.Experiment(rounds=2, edges=1, clients_per_edge=2, data=data)
    straight = sfedhp.run(experiment, data=patients())
    stopped = sfedhp.run(experiment, data=patients(), out=tmp_path / "run", stop=lambda: True)
    assert not stopped.finished
    resumed = sfedhp.resume(tmp_path / "run", data=patients())
    assert resumed.history[-1]["pm"] == straight.history[-1]["pm"]
    named = sfedhp.run(sfedhp.Experiment(rounds=1, edges=1, clients_per_edge=2), data=images())
    assert named.experiment.data.target == "label"


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (
            datasets.DatasetDict(train=images()),
            {},
            "A DatasetDict of Hugging Face cannot be used: give one split",
        ),
        (patients(), {}, "the dataset needs data.target, the column to predict; its columns are age, sex"),
        (images().select([]), {}, "the dataset has no rows: add some."),
        (images(), {"target": "kind"}, "data.target = 'kind' is not a column of the dataset"),
        (images(), {"client_column": "wards"}, "data.client_column = 'wards' is not a column"),
        (patients(), {"target": "il"}, "data.target = 'il' is not a column of the dataset: did you mean ill"),
    ],
)
def test_what_cannot_be_used_is_refused(dataset: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        divided(dataset, **options)
