"""The allowed metadata of members' messages. It comes from other machines, so it is checked before use."""

from __future__ import annotations

from typing import Any, Final

from sfedhp.core.text import printable
from sfedhp.deploy.messaging.shape import (
    Record,
    any_float,
    count,
    dict_of,
    flag,
    list_of,
    name,
    number,
    optional,
    text,
    tuple_of,
)
from sfedhp.deploy.messaging.traffic import FLOWS, OPTIONAL
from sfedhp.wire import DecodeError

_ERROR_LENGTH: Final = 500  # characters of a member's error message that are kept

_HELLO: Final = Record(
    {
        "seen": optional(tuple_of(name, count, count, count)),  # the newest request: run, kind, rounds
        "idle": optional(number),  # seconds since its reply; null while it works
        "yields": flag,  # it drops its work for a newer request
        "edge_round": optional(count),
        "members": dict_of(flag),  # which clients of an edge are up
        "rows": tuple_of(count, count, count),  # of a client: training, test and validation rows
        "version": name,  # of its package
        "key": name,  # identifier of its key for secure aggregation
    }
)
_COLUMN: Final = list_of(count)  # a number for each member
_TRAFFIC: Final = Record(
    {**dict.fromkeys(FLOWS, tuple_of(_COLUMN, _COLUMN, _COLUMN)), "missing": dict_of(count)}, exact=True
)
_OPTIONAL: Final = Record(dict.fromkeys(OPTIONAL, tuple_of(_COLUMN, _COLUMN, _COLUMN)))


def _score(value: Any) -> bool:
    """Correct rows, rows, and their summed loss, which is not finite where a model diverged.

    Where more than correct rows is counted, the first is an object of sums: numbers, or lists of them.
    """
    if tuple_of(dict_of(_sum), count, any_float)(value):
        return True
    return tuple_of(count, count, any_float)(value) and value[0] <= value[1]


def _sum(value: Any) -> bool:
    return any_float(value) or list_of(any_float)(value) or list_of(list_of(any_float))(value)


_BY_MODEL: Final = dict_of(_score)
_COUNTS: Final = Record(
    {
        **dict.fromkeys(("test", "validation", "train"), _BY_MODEL),
        "density": number,
        "epsilon": tuple_of(number, number),  # what the client spent, and after another round
    }
)
_SCORES: Final = Record({**_COUNTS.fields, "clients": dict_of(_COUNTS)})


def hello_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """The known entries of a heartbeat.

    Raises:
        DecodeError: one of them does not have its shape.
    """
    if not _HELLO(metadata):
        raise DecodeError("The message is malformed: the metadata of its heartbeat is invalid.")
    return _HELLO.known(metadata)


def error_of(metadata: dict[str, Any]) -> str | None:
    """The error text of a member that has no reply; None if it has one.

    Raises:
        DecodeError: the error is not a string.
    """
    error = metadata.get("trouble")
    if not optional(text)(error):
        raise DecodeError("The message is malformed: its error ('trouble') is not a string.")
    return error and printable(str(error), _ERROR_LENGTH)


def accused_of(metadata: dict[str, Any]) -> list[int]:
    """The seats whose offers a member could not use.

    Raises:
        DecodeError: it is not a list of seats.
    """
    accused = metadata.get("accused", [])
    if not list_of(count)(accused):
        raise DecodeError("The message is malformed: the seats that it accuses are not a list of numbers.")
    return [int(seat) for seat in accused]


def check_traffic(metadata: dict[str, Any]) -> None:
    """Refuse traffic counters that `Traffic.to_dict` cannot have made.

    Raises:
        DecodeError: they do not have their shape.
    """
    if "books" not in metadata:
        return
    traffic = metadata["books"] if isinstance(metadata["books"], dict) else {}
    others = {name: value for name, value in traffic.items() if name not in OPTIONAL}
    flows = (*FLOWS, *(traffic.keys() & set(OPTIONAL)))
    known = _TRAFFIC(others) and _OPTIONAL(traffic)
    if not known or len({len(column) for flow in flows for column in traffic[flow]}) != 1:
        raise DecodeError("The message is malformed: its traffic counters ('books') are invalid.")


def models_of(metadata: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The names of the models in a request for scores, and which names are equal to which of these.

    Raises:
        DecodeError: they do not have their shape, or what members would get next is not among them.
    """
    names, same = metadata.get("models"), metadata.get("same")
    known = list_of(name)(names) and dict_of(name)(same)
    if not known or "next" not in names or not set(same.values()) <= set(names):  # type: ignore[operator, union-attr, arg-type]
        raise DecodeError("The message is malformed: the names of its models are invalid.")
    return names, same  # type: ignore[return-value]


def scores_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """The scores that a client counted, or those that an edge gathered from its clients.

    Raises:
        DecodeError: they do not have their shape.
    """
    if not _SCORES(metadata):
        raise DecodeError("The message is malformed: its scores are invalid.")
    found = _COUNTS.known(metadata)
    if "clients" in metadata:
        found["clients"] = {name: _COUNTS.known(counts) for name, counts in metadata["clients"].items()}
    return found
