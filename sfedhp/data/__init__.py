"""Data of a federation: sources, who holds what, and a user's own arrays.

`federate` loads a named source or an `.npz`; `from_arrays` and `from_dataset` take what a program holds;
`get`, `verify` and `listing` look after the published image sets.
"""

from sfedhp.data.download import get
from sfedhp.data.federation import Federation, Holding, federate, from_arrays, from_dataset
from sfedhp.data.options import DataOptions
from sfedhp.data.registry import FileState, Listed, data_folder, listing, verify

__all__ = [
    "DataOptions",
    "Federation",
    "FileState",
    "Holding",
    "Listed",
    "data_folder",
    "federate",
    "from_arrays",
    "from_dataset",
    "get",
    "listing",
    "verify",
]
