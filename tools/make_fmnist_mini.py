"""Make `sfedhp/data/fmnist-mini.npz` from the published Fashion-MNIST files.

    python tools/make_fmnist_mini.py OUT.npz        # reads the folder in SFEDHP_DATA, or the user's cache

Prints the size and the checksum that `sfedhp/data/embedded.py` records. Another version of zlib may give
other bytes; the arrays are the same.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfedhp.data.embedded import IMAGES
from sfedhp.data.registry import IMAGE_SETS, data_folder, read_images


def choose(labels: NDArray[np.int64], each: int) -> NDArray[np.int64]:
    """Rows of the subset: `each` of every class at even distances, in the order they are published in.

    Even distances rather than a random draw: nothing depends on a generator's version.
    """
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        chosen.append(rows[np.arange(each) * len(rows) // each])
    return np.sort(np.concatenate(chosen))


def main(out: Path) -> None:
    """Write the file and print what `embedded.py` must say about it."""
    images = IMAGE_SETS["fmnist"]
    pool = read_images(images, data_folder())
    rows = choose(pool.labels, IMAGES // images.classes)
    np.savez_compressed(out, inputs=pool.inputs[rows], labels=pool.labels[rows].astype(np.uint8))
    content = out.read_bytes()
    print(f"{out}: {len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
