"""Make `sfedhp/data/fmnist-mini.npz` from the published Fashion-MNIST files.

    python tools/make_fmnist_mini.py OUT.npz        # reads the folder in SFEDHP_DATA, or the user's cache

Prints the size and the checksum that `sfedhp/data/embedded.py` needs. Another version of zlib may give
other bytes for the same arrays.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfedhp.data.embedded import IMAGES
from sfedhp.data.registry import IMAGE_SETS, data_folder, read_images


def choose(labels: NDArray[np.int64], each: int) -> NDArray[np.int64]:
    """The rows of the subset: `each` of every class at even distances, in their published order.

    Even distances, not random rows, so that nothing depends on the version of a random generator.
    """
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        chosen.append(rows[np.arange(each) * len(rows) // each])
    return np.sort(np.concatenate(chosen))


def main() -> None:
    """Write the file; print the size and checksum for `embedded.py`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT.npz")
    out: Path = parser.parse_args().out
    images = IMAGE_SETS["fmnist"]
    pool = read_images(images, data_folder())
    rows = choose(pool.labels, IMAGES // images.classes)
    np.savez_compressed(out, inputs=pool.inputs[rows], labels=pool.labels[rows].astype(np.uint8))
    content = out.read_bytes()
    print(f"{out}: {len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
