"""`fmnist-mini`: 4 400 real Fashion-MNIST images inside the package, so that a first run needs no download.

The images are © Zalando SE under the MIT licence (`fmnist-mini-LICENSE.txt` beside the file);
`tools/make_fmnist_mini.py` made the file from the published one.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from sfedhp.core.errors import InputError
from sfedhp.data.pool import Counts, Pool
from sfedhp.data.published_files import DataFile

NAME = "fmnist-mini"
IMAGES, CLASSES = 4_400, 10
FILE = DataFile(
    "fmnist-mini.npz", 1_935_780, "cd7dfc138dd7044440475ffab882670f674b13f13f8802724b7e940289f36ecf"
)
PATH = Path(__file__).with_name(FILE.name)


def read_embedded() -> Pool:
    """The embedded images.

    Raises:
        InputError: the installed file is damaged.
    """
    content = PATH.read_bytes() if PATH.is_file() else b""
    if not FILE.matches(content):
        raise InputError(f"The embedded file {FILE.name} is missing or damaged: install sfedhp again.")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        inputs, labels = file["inputs"], file["labels"].astype(np.int64)
    return Pool(NAME, inputs, labels, CLASSES, counts=Counts(50, 50, 10))
