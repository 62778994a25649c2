"""Data of a federation: sources, who holds which rows, and a user's own arrays.

`federate` loads a named source or an `.npz`; `from_arrays` and `from_dataset` take what a program holds;
`hold_out` takes clients out of a federation; `get`, `verify` and `listing` manage the published image sets.
"""

from sfedhp.data.download import get
from sfedhp.data.federation import Federation, Holding, federate, from_arrays, from_dataset
from sfedhp.data.newcomer import Newcomer, hold_out
from sfedhp.data.options import DataOptions
from sfedhp.data.registry import FileState, Listed, data_folder, listing, verify

__all__ = [
    "DataOptions",
    "Federation",
    "FileState",
    "Holding",
    "Listed",
    "Newcomer",
    "data_folder",
    "federate",
    "from_arrays",
    "from_dataset",
    "get",
    "hold_out",
    "listing",
    "verify",
]
