"""Data of a federation: sources, the division of rows among clients, and a user's own arrays.

`federate` loads a named source or an `.npz`; `from_arrays` and `from_dataset` take data from a program;
`hold_out` takes clients out of a federation; `get`, `verify` and `listing` manage the published image sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfedhp.core.lazy import lazy_names

if TYPE_CHECKING:
    from sfedhp.data.download import get
    from sfedhp.data.federation import Federation, Holding
    from sfedhp.data.loading import federate, from_arrays, from_dataset, from_huggingface
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
    "from_huggingface",
    "get",
    "hold_out",
    "listing",
    "verify",
]

# Imported at their first use: a config needs the options of data alone.
_MODULES = {
    "DataOptions": "options",
    "Federation": "federation",
    "FileState": "registry",
    "Holding": "federation",
    "Listed": "registry",
    "Newcomer": "newcomer",
    "data_folder": "registry",
    "federate": "loading",
    "from_arrays": "loading",
    "from_dataset": "loading",
    "from_huggingface": "loading",
    "get": "download",
    "hold_out": "newcomer",
    "listing": "registry",
    "verify": "registry",
}

__getattr__ = lazy_names(__name__, _MODULES)
