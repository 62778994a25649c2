"""Figures for Prometheus (the extra `monitor`), from the files that a role writes into its kit."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from sfedhp.core.errors import InputError
from sfedhp.deploy.event_log import LOG, EventLog, read_status
from sfedhp.deploy.loopback import Answer, LoopbackServer
from sfedhp.deploy.messaging.traffic import bytes_of
from sfedhp.deploy.site import read_site
from sfedhp.nn.problems import KINDS, main_metric

STALE: Final = 5.0  # s after which a server that does not write its status counts as silent
_SILENT: Final = 2.5  # s: two heartbeats are missing
_DAY: Final = 86400.0
HELP: Final = {
    "sfedhp_round": "cloud rounds done",
    "sfedhp_rounds": "cloud rounds of the run",
    "sfedhp_finished": "whether the run is over",
    "sfedhp_accuracy_percent": "accuracy of the last evaluation by kind of model: pm, em or gm",
    "sfedhp_metric": "main metric of the last evaluation by kind of model and name of the metric",
    "sfedhp_round_seconds": "seconds of the last round",
    "sfedhp_sent_bytes": "bytes of the messages so far, by direction",
    "sfedhp_member_up": "whether a member sent a heartbeat within 2.5 seconds",
    "sfedhp_member_missing": "requests of the last round that a member missed",
    "sfedhp_refusals": "messages and connections refused, by member",
    "sfedhp_certificate_days": "days until the first certificate of the kit expires",
    "sfedhp_status_age_seconds": "seconds since the role wrote its status",
}


class Sample(NamedTuple):
    """One number with its labels."""

    name: str
    value: float
    labels: Mapping[str, str]


def state_of(status: Mapping[str, Any], member: str, now: float | None = None) -> str:
    """The state of a member, from the status of its server: absent, silent, late, refused, idle, working, …

    A member is silent after two missing heartbeats; its server waits longer before it counts as absent.
    """
    if status.get("finished"):
        return "ended"
    known = (status.get("states") or {}).get(member)
    if not isinstance(known, Mapping):  # of an earlier version, or an edge's client in the cloud's status
        up = (status.get("members") or {}).get(member)
        up = up.get("up") if isinstance(up, Mapping) else up
        return "up" if up else "absent"
    age = (time.time() if now is None else now) - status["time"]
    if known["state"] != "absent" and known["silent"] + max(age, 0.0) > _SILENT:
        return "silent"
    return str(known["state"])


def is_stale(status: Mapping[str, Any], now: float | None = None) -> bool:
    """Whether a server has not written its status for so long that nothing in it is known to be true now."""
    age = (time.time() if now is None else now) - status["time"]
    return not status.get("finished") and age > STALE


def is_up(state: str) -> bool:
    """Whether a member in this state sent something lately."""
    return state not in ("absent", "silent", "ended")


def row_samples(row: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[Sample]:
    """The figures of a round of the history."""
    metric = main_metric(row)
    for kind in KINDS:
        value = row.get(metric.column(kind))
        if isinstance(value, int | float):
            own = {**labels, "kind": kind}
            yield Sample("sfedhp_metric", value, {**own, "metric": metric.name})
            if metric.name == "accuracy":
                yield Sample("sfedhp_accuracy_percent", value, own)
    if isinstance(row.get("seconds"), int | float):
        yield Sample("sfedhp_round_seconds", row["seconds"], labels)


def byte_samples(rows: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> Iterator[Sample]:
    """The bytes of all rounds so far."""
    sums: Counter[str] = Counter()
    for row in rows:
        sums.update(bytes_of(row))
    yield from _sent_samples(sums, labels)


def _sent_samples(sent: Mapping[str, float], labels: Mapping[str, str]) -> Iterator[Sample]:
    for direction, value in sorted(sent.items()):
        yield Sample("sfedhp_sent_bytes", value, {**labels, "direction": direction})


def kit_samples(kit: Path, labels: Mapping[str, str]) -> Iterator[Sample]:
    """The figures of the role of a kit."""
    status = read_status(kit / "run") or {}
    if status:
        yield Sample("sfedhp_status_age_seconds", max(time.time() - status["time"], 0.0), labels)
        yield Sample("sfedhp_round", float(status.get("round") or 0), labels)
        yield Sample("sfedhp_finished", float(bool(status.get("finished"))), labels)
        if "rounds" in status:
            yield Sample("sfedhp_rounds", status["rounds"], labels)
        row = status.get("row") or {}
        yield from row_samples(row, labels)
        yield from _sent_samples(status.get("sent") or {}, labels)
        for member in status.get("members") or {}:
            up = is_up(state_of(status, member))
            yield Sample("sfedhp_member_up", float(up), {**labels, "member": member})
        for member, turns in (row.get("missing") or {}).items():
            yield Sample("sfedhp_member_missing", turns, {**labels, "member": member})
    for name, times in refusals(kit).items():
        yield Sample("sfedhp_refusals", times, {**labels, "member": name})
    if (days := certificate_days(kit)) is not None:
        yield Sample("sfedhp_certificate_days", days, labels)


def refusals(kit: Path) -> Counter[str]:
    """How many messages and connections the role's log says were refused, by member."""
    found: Counter[str] = Counter()
    try:
        lines = (kit / "run" / LOG).read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        if b'"refused"' not in line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") == "refused":
            found[str(event.get("member") or "unknown")] += int(event.get("times", 1))
    return found


def certificate_days(kit: Path) -> float | None:
    """Days until the first certificate of a kit ends; None if it has none, or FLARE is not installed."""
    if find_spec("cryptography") is None:
        return None
    from sfedhp.deploy.certificates import expiry

    until = expiry(kit)
    return None if until is None else (until - datetime.now(UTC)).total_seconds() / _DAY


def require_prometheus() -> None:
    """Refuse to continue without prometheus-client.

    Raises:
        InputError: it is not installed.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise InputError("Figures for Prometheus need: pip install 'sfedhp[monitor]'.") from None


def exposition(samples: Iterable[Sample]) -> Answer:
    """The samples in Prometheus' text format.

    Raises:
        InputError: prometheus-client is not installed.
    """
    require_prometheus()
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for sample in samples:
        names: Sequence[str] = sorted(sample.labels)
        if sample.name not in gauges:
            gauges[sample.name] = Gauge(sample.name, HELP[sample.name], names, registry=registry)
        gauge = gauges[sample.name]
        (gauge.labels(**sample.labels) if names else gauge).set(sample.value)
    return Answer(CONTENT_TYPE_LATEST, generate_latest(registry))


def start_monitor(kit: Path, log: EventLog, role: str) -> LoopbackServer | None:
    """Serve the figures of a kit's role in the background, where its site says so.

    A port that is in use, or a missing package, does not stop the role: the log says so.
    """
    try:
        site = read_site(kit)
    except InputError:
        return None  # the role itself reports what is wrong with its kit
    if not site.monitor or role == "bridge":  # an edge's other process
        return None
    labels = {"federation": site.federation, "site": site.name}
    try:
        require_prometheus()
        server = LoopbackServer({"/metrics": lambda: exposition(kit_samples(kit, labels))}, site.monitor)
    except InputError as error:
        log.write("trouble", reason=str(error))
        return None
    server.start()
    return server
