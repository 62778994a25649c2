"""Fuzz every reader of files and messages: `python tools/fuzz_readers.py --inputs 100000`.

Each input is a good file that was cut, lengthened, flipped, spliced, or given tokens that readers stumble
over: deep nesting, long integers, odd types, forged sizes. Some of the inputs are traced; one that reaches
lines of the package that no other did is kept, and later inputs start from it. A reader may return something,
or raise its one type of error. Anything else (another error, a warning, an answer after five seconds, 512 MiB
of memory) makes the exit code 1, and the input is written to `--corpus`, where tests read it again.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import itertools
import json
import math
import queue
import random
import re
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from safetensors.torch import save

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions
from sfedhp.data.npz import read_npz
from sfedhp.data.pfllib_folder import read_pfllib_folder
from sfedhp.data.registry import IMAGE_SETS, read_images
from sfedhp.data.table import read_table
from sfedhp.data.totals import TotalsShape
from sfedhp.deploy.event_log import EventLog, read_status
from sfedhp.deploy.federation_file import FederationFile, Limits, read_federation
from sfedhp.deploy.identity import CardReader, Identity
from sfedhp.deploy.messaging.acceptance import Acceptance
from sfedhp.deploy.messaging.gather import MemberGroup
from sfedhp.deploy.messaging.payload import pack
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind, decode_message, encode_message
from sfedhp.deploy.messaging.request import AllMembersFailedError
from sfedhp.deploy.messaging.transport import SERVER
from sfedhp.deploy.roles.client import ClientRole
from sfedhp.deploy.site import Site, read_site, write_site
from sfedhp.deploy.topology import lay_out
from sfedhp.nn.models import build, load_initial
from sfedhp.paper.records import read_records
from sfedhp.privacy.secure_messages import (
    SEALED_BYTES,
    Offer,
    Record,
    Roster,
    decode_masked,
    decode_offer,
    decode_revealed,
    decode_roster,
    decode_seats,
    encode_masked,
    encode_offer,
    encode_revealed,
    encode_roster,
    encode_seats,
)
from sfedhp.privacy.shares import SHARE_BYTES
from sfedhp.runs import checkpoints
from sfedhp.runs.folder import open_history, read_experiment, read_schema
from sfedhp.runs.recorded import read_run
from sfedhp.runs.score_files import read_scores
from sfedhp.runs.settings import read_settings
from sfedhp.wire import DecodeError, decode, encode
from sfedhp.wire.link import WireOptions

SECONDS = 5  # longer is a hang
MEMORY = 2**29  # bytes of address space beyond what is loaded
TRACED = 16  # of so many inputs one is traced
LONGEST = 2**18  # bytes of an input
PACKAGE = str(Path(sfedhp.__file__).parent)
CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
TOKENS = (
    *(
        b"",
        b"\n",
        b"\0",
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b",",
        b"=",
        b".",
        b"-",
        b"null",
        b"true",
        b"NaN",
        b"1e999",
    ),
    *(
        b"-0",
        b"0x" + b"f" * 5000,
        b"9" * 5000,
        b"[" * 5000,
        b'{"a":' * 3000,
        b"a." * 3000,
        b"\xff\xfe",
        b"\xc3",
    ),
    *(
        b'"round": -1',
        b'"round": 1e9',
        b'"round": "x"',
        b'"about"',
        b"\x1b[31m",
        b"\xe2\x80\xae",
        b"inf",
        b"1_0",
    ),
    *(struct.pack("<Q", number) for number in (0, 1, 2**31, 2**32, 2**40, 2**63, 2**64 - 1)),
)
# A value of JSON, TOML or CSV, and what may come in its place.
VALUE = re.compile(rb"""-?\d+(\.\d+)?|"[^"\n]*"|'[^'\n]*'|true|false|null|\[[^\[\]]*\]""")
ODD = (
    *(b"-1", b"0", b"1", b"2", b"1.5", b"1e308", b"-1e-320", b"nan", b"NaN", b"Infinity", b"true", b"null"),
    *(
        b'""',
        b'"x"',
        b'"1"',
        b"[]",
        b"[1]",
        b'["a"]',
        b"{}",
        b'{"a": 1}',
        b"99999999999999999999",
        b"0x7fffffff",
    ),
    *(
        b"9" * 5000,
        b"[" * 3000 + b"]" * 3000,
        b'"\\u0000"',
        b'"\xc3\xa9"',
        b"1979-05-27",
        b'"../../x"',
        b"4096",
    ),
)


@dataclass(frozen=True)
class Reader:
    """A reader, and good inputs for it."""

    name: str
    seeds: Sequence[bytes]
    read: Callable[[bytes], object]
    error: type[Exception] | tuple[type[Exception], ...] = InputError
    mended: Callable[[bytes], bytes] | None = None  # corrects a checksum, so that damage reaches what follows


def readers(folder: Path) -> dict[str, Reader]:
    """Every reader by name; files are written below the folder."""

    def file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)

        def from_bytes(data: bytes) -> object:
            path.write_bytes(data)
            return read(path)

        return from_bytes

    run, kit = _run(folder / "run"), folder / "kit"
    contents = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    state = contents[max(name for name in contents if name.startswith("round-"))]
    kit.mkdir()
    write_site(_site(), kit)
    network = build("mlr", shape=(3,), classes=2, seed=0, dtype=torch.float32)
    initial = save(dict(network.module.state_dict()))
    (folder / "old").mkdir()
    table = DataOptions(source="x.csv", target="label", client_column="site")
    tensor = torch.arange(40.0).remainder(5)
    base = tensor + 1e-6 * torch.arange(40.0)
    message = Envelope(
        Kind.HELLO, NO_RUN, NO_RUN, 3, sfedhp.Clock(1, 2), 4.0, {"state": "idle"}, (b"abc", b"")
    )

    def checkpoint(_: Path) -> object:
        return checkpoints.read(folder / "checkpoint"), checkpoints.read_about(folder / "checkpoint")

    found = (
        Reader(
            "config",
            [contents["config.toml"], b"rounds = 3\n[algorithm]\nname = 'fedavg'\n"],
            file("c.toml", lambda path: read_settings([str(path)]).experiment()),
        ),
        Reader(
            "run_config",
            [contents["config.toml"]],
            file("old/config.toml", lambda p: read_experiment(p.parent)),
        ),
        Reader("federation", [_FEDERATION], file("federation.toml", read_federation)),
        Reader("csv", _tables(), file("x.csv", lambda path: read_table(path, table))),
        Reader("npz", _archives(), file("x.npz", read_npz)),
        Reader("npy", _arrays(), file("y.npz", _read_array)),
        Reader("pfllib", _pickled(), file("pfllib/train/0.npz", _read_pickled)),
        Reader(
            "idx",
            [gzip.compress(b"\0\0\x08\x03\0\0\0\x01\0\0\0\x1c\0\0\0\x1c" + bytes(784), mtime=0)],
            file(
                "data/mnist/train-images-idx3-ubyte.gz",
                lambda _: read_images(IMAGE_SETS["mnist"], folder / "data"),
            ),
        ),
        Reader(
            "cifar",
            [bytes(3073)],
            file(
                "data/cifar-10/data_batch_1.bin",
                lambda _: read_images(IMAGE_SETS["cifar10"], folder / "data"),
            ),
        ),
        Reader(
            "safetensors",
            [initial, contents["global.safetensors"]],
            file("x.safetensors", lambda path: load_initial(network, path, torch.float32)),
        ),
        Reader(
            "history",
            [contents["history.jsonl"]],
            file("show/history.jsonl", lambda path: _shown(path.parent)),
        ),
        Reader(
            "ledger",
            [contents["ledger.jsonl"]],
            file("run/ledger.jsonl", lambda path: open_history(path.parent, 2, counted=True, written=True)),
        ),
        Reader(
            "checkpoint",
            [state, _without_checksum(state)],
            file("checkpoint/round-000002.safetensors", checkpoint),
        ),
        Reader(
            "scores",
            [contents["confusion.json"], _plain(contents["confusion.json"])],
            file("run/confusion.json", lambda path: _shown(path.parent)),
        ),
        Reader(
            "clients",
            [contents["clients.csv"]],
            file("scores/clients.csv", lambda path: read_scores(path.parent)),
        ),
        Reader(
            "schema",
            [contents["schema.json"], _plain(contents["schema.json"])],
            file("old/schema.json", lambda path: read_schema(path.parent)),
        ),
        Reader(
            "records",
            [_RECORD],
            file("records/study.jsonl", lambda path: read_records(path.parent, ["study"])),
        ),
        Reader(
            "kit",
            [(kit / "sfedhp.json").read_bytes()],
            file("kit/sfedhp.json", lambda path: read_site(path.parent)),
        ),
        Reader(
            "status",
            [b'{"name": "cloud", "time": 1.5, "members": {"edge-0": {"up": true}}}\n'],
            file("role/status.json", lambda path: read_status(path.parent)),
        ),
        Reader(
            "wire",
            [encode(tensor), encode(tensor, values="int8"), encode(tensor * 0), encode(tensor, base)],
            lambda data: decode(data, base, limit=2**16),
            DecodeError,
            _with_wire_checksum,
        ),
        Reader("protocol", [encode_message(message)], decode_message, DecodeError, _with_header_checksum),
        *_secure_readers(),
        _server(folder / "server"),
        _client(folder / "federation"),
        *_of_certificates(folder / "revoked"),
    )
    (folder / "show" / "config.toml").write_bytes(contents["config.toml"])
    (folder / "scores").mkdir(exist_ok=True)
    (folder / "scores" / "classes.csv").write_bytes(contents["classes.csv"])
    (folder / "scores" / "confusion.json").write_bytes(_plain(contents["confusion.json"]))
    (folder / "run" / "ledger.jsonl.crc32").unlink()  # so that damage reaches what follows
    return {reader.name: reader for reader in found}


def _secure_readers() -> Iterator[Reader]:
    """The parts of secure aggregation, as its server and its members read them, and cards of members."""
    attempt, key, sealed = bytes(range(8)), bytes(32), bytes(SEALED_BYTES)
    shares = {seat: bytes(SHARE_BYTES) for seat in range(3)}
    roster = Roster(12.0, {seat: Record(key, key, sealed) for seat in (1, 2)})
    yield Reader("seats", [encode_seats(attempt, [0, 2, 5])], decode_seats, ValueError)
    offer = encode_offer(attempt, Offer(key, key, {1: sealed, 2: sealed}))
    yield Reader("offer", [offer], lambda data: decode_offer(data, attempt, [1, 2]), ValueError)
    yield Reader("roster", [encode_roster(attempt, roster)], decode_roster, ValueError)
    masked = encode_masked(attempt, bytes(40))
    yield Reader("masked", [masked], lambda data: decode_masked(data, attempt, 40), ValueError)
    revealed = encode_revealed(attempt, shares)
    yield Reader("revealed", [revealed], lambda data: decode_revealed(data, attempt, [0, 1, 2]), ValueError)
    key_pair = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client-0-0")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key_pair.public_key(), 1, now, now + timedelta(days=1))
    certificate = builder.sign(key_pair, hashes.SHA256())
    card, reader = Identity(certificate, key_pair).card(key, NO_RUN), CardReader(certificate, NO_RUN)
    yield Reader("card", [card], lambda data: reader.public_key(data, "client-0-0"), ValueError)


def _shown(folder: Path) -> object:
    """What `sfedhp show` derives from a run's files."""
    run = read_run(folder)
    return run.summary, run.hints, run.sentence, run.missing_scores


_FEDERATION = b"""name = "trial"
inputs = [4]
classes = 3
[cloud]
host = "localhost"
port = 8002
[[edges]]
host = "localhost"
port = 8102
[limits]
client_seconds = 30.0
"""
_RECORD = (
    json.dumps(
        {"study": "study", "variant": "a", "words": "", "seed": 0, "rounds": 2, "trouble": None, "commit": ""}
        | {
            "versions": {},
            "config": {"rounds": 2},
            "seconds": 1.0,
            "curve": {"round": [1, 2]},
            "newcomers": {},
        }
    )
    + "\n"
).encode()


def _run(folder: Path) -> Path:
    """A small run, whose files are good inputs."""
    rows, generator = 24, np.random.default_rng(0)
    data = {"inputs": generator.normal(size=(rows, 3)), "labels": np.arange(rows) % 2}
    wire = sfedhp.WireOptions(count="size")
    model = sfedhp.ModelOptions(name="mlr")
    sfedhp.run(
        sfedhp.Experiment(rounds=2, edges=2, clients_per_edge=2, wire=wire, model=model, device="cpu"),
        data=data,
        out=folder,
    )
    return folder


def _site() -> Site:
    experiment = sfedhp.Experiment(edges=1, clients_per_edge=1)
    return Site("cloud", "cloud", "trial", experiment, Limits(), shape=(3,), classes=2)


def _tables() -> list[bytes]:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["age", "kind", "site", "label"])
    for row in range(40):
        table.writerow([row / 3, "ab"[row % 2], f"s{row % 4}", row % 3])
    return [text.getvalue().encode(), text.getvalue().replace(",", ";").encode("utf-8-sig")]


def _archives() -> list[bytes]:
    arrays = {"inputs": np.ones((12, 3)), "labels": np.arange(12) % 2, "client": np.arange(12) % 3}
    found = []
    for write in (np.savez, np.savez_compressed):
        target = io.BytesIO()
        write(target, allow_pickle=False, **arrays)
        found.append(target.getvalue())
    bomb = io.BytesIO()
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("inputs.npy", "w") as entry,
    ):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "|u1", "fortran_order": False, "shape": (2**28, 4)}
        )
        entry.write(header.getvalue())
        for _ in range(2**8):
            entry.write(bytes(2**22))
    return [*found, bomb.getvalue()[:LONGEST], bomb.getvalue()]


def _arrays() -> list[bytes]:
    found = []
    for array in (np.ones((12, 3)), np.arange(12), np.array(["a", "b"] * 6), np.ones((12, 2, 2), np.uint8)):
        target = io.BytesIO()
        np.save(target, array)
        found.append(target.getvalue())
    return found


def _read_array(path: Path) -> object:
    """An archive with this array in it: the checksums of an archive keep damage away from its arrays."""
    array, arrays = path.read_bytes(), dict(zip(("inputs", "labels"), _arrays(), strict=False))
    arrays[("inputs", "labels", "client")[zlib.crc32(array) % 3]] = array
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return read_npz(path)


def _pickled() -> list[bytes]:
    target = io.BytesIO()
    rows = {"x": np.ones((4, 1, 2, 2), np.float32), "y": np.arange(4) % 2}
    np.save(target, np.array(rows), allow_pickle=True)
    return [target.getvalue()]


def _read_pickled(path: Path) -> object:
    """A folder of PFLlib with this as the array of its only client, for training and for testing."""
    content = path.read_bytes()
    for part in ("train", "test"):
        file = path.parents[1] / part / "0.npz"
        file.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("data.npy", content)
    return read_pfllib_folder(path.parents[1])


class _Transport:
    """Carries nothing; what arrives is put into its inbox."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()

    def send(self, to: str, data: bytes) -> None:
        """Drop a message: no reader needs what a role sends."""


class _RefusedError(Exception):
    """A server has refused a message, and noted why."""


def _server(folder: Path) -> Reader:
    """What a server does with the messages of a member: models longer than the network, scores and totals."""
    run, config, log, limits = "a" * 16, "b" * 16, EventLog(folder, "server"), WireOptions()
    model, statistics = torch.arange(1.0, 11.0), torch.ones(2)
    totals = {
        "pixels": False,
        "classes": [2, 3],
        "inputs": {"count": [5] * 3, "center": [0.5] * 3, "total": [0.1] * 3, "squares": [2.0] * 3},
        "targets": {"count": [5], "center": [1.0], "total": [0.0], "squares": [0.5]},
    }
    flow = [[1, 2], [1, 1], [3, 4]]
    books = {**dict.fromkeys(("down", "up", "score_down", "score_up"), flow), "missing": {"client-0-1": 1}}
    counts = {"gm": [{"correct": 3}, 4, 0.5]}
    scores = {"test": counts, "train": {"loss": [{"correct": 3}, 5, 0.5]}, "density": 0.5, "books": books}
    told = {"seen": [run, 1, 0, 0], "idle": 1.5, "rows": [5, 4, 0], "version": "1.0", "yields": False}
    hello = encode_message(Envelope(Kind.HELLO, NO_RUN, config, 0, metadata=told))
    upload = pack(torch.cat([model * 1.01, statistics]), len(model), limits)[0]
    seeds = [
        hello,
        encode_message(Envelope(Kind.REPLY, run, config, 0, sfedhp.Clock(0), 5.0, {"books": books}, upload)),
        encode_message(Envelope(Kind.REPLY, run, config, 0, metadata={"trouble": "it is not finite"})),
        encode_message(Envelope(Kind.SCORES, run, config, 0, metadata=scores)),
        encode_message(Envelope(Kind.SUMS, run, config, 0, metadata={"totals": totals, "books": books})),
    ]
    accept = Acceptance(
        rows_reported_once=True,
        max_rows=100,
        max_change=10.0,
        variances=torch.tensor([False, True]),
        sums={"correct": ()},
        totals_of=TotalsShape((3,), 1, 2),
    )

    def read(data: bytes) -> object:
        transport, ticks = _Transport(), itertools.count()
        group = MemberGroup(
            transport,
            ["client-0-0", "client-0-1"],
            run,
            config,
            model,
            statistics,
            limits,
            quorum=0,
            timeout=20.0,
            silent_seconds=10.0,
            log=log,
            accept=accept,
            clock=lambda: float(next(ticks)),
        )
        noted: list[str] = []
        group._rejections.note = lambda reason, *_: noted.append(reason)  # type: ignore[method-assign, misc]
        for each in (hello, data):
            transport.inbox.put(("client-0-0", each))
        kind, everybody = data[5:6], torch.cat([model, statistics]).expand(2, -1)
        if kind == bytes([Kind.SCORES]):
            group.score({"next": everybody}, {"gm": "next"}, sfedhp.Clock(0), 20.0)
        elif kind == bytes([Kind.SUMS]):
            found = group.sum_up()
            assert found.target_scaling is not None
            scalings = (found.scaling("standard", None), found.target_scaling)
            assert all(np.isfinite(each.shift).all() and (each.spread > 0).all() for each in scalings)
        else:
            group.request(everybody, sfedhp.Clock(0), None)
        if noted:
            raise _RefusedError(noted[-1])
        return group.take_traffic().to_dict()

    return Reader("server", seeds, read, (_RefusedError, AllMembersFailedError), _with_header_checksum)


def _client(folder: Path) -> Reader:
    """What a client does with the requests of its server: it trains, scores models, and keeps totals."""
    what = sfedhp.Experiment(
        algorithm=sfedhp.FedAvg(local_steps=1),
        edges=1,
        clients_per_edge=1,
        model=sfedhp.ModelOptions(name="mlr"),
        data=DataOptions(train_per_label=2, test_per_label=1),
        device="cpu",
    )
    layout = lay_out(FederationFile(sums=True), what)
    (site,), transport = layout.clients, _Transport()
    layout.write(site, folder)
    role = ClientRole(site, folder, transport)
    models = torch.cat([value.reshape(-1) for value in layout.initial.values()])
    parts, run, totals = pack(models, len(models), WireOptions())[0], "a" * 16, role._own_totals.to_dict()
    names: dict[str, Any] = {"models": ["next"], "same": {"gm": "next"}}
    seeds = [
        encode_message(Envelope(kind, run, site.config, site.seat, metadata=metadata, parts=pieces))
        for kind, metadata, pieces in (
            (Kind.SUM, {}, ()),
            (Kind.WORK, {"totals": totals}, parts),
            (Kind.SCORE, {**names, "totals": totals}, parts),
            (Kind.FAREWELL, {}, ()),
        )
    ]

    def read(data: bytes) -> object:
        transport.inbox.put((SERVER, data))
        request = role._responder.receive(0)
        if request is None:
            raise DecodeError("it is refused")
        return role.reply_to(request)

    # What the role tells its server instead of a reply.
    errors = (DecodeError, InputError, RuntimeError)
    return Reader("client", seeds, read, errors, _with_header_checksum)


def _of_certificates(folder: Path) -> list[Reader]:
    """Lists of revoked certificates, and requests for certificates."""
    from sfedhp.deploy import certificates

    folder.mkdir()
    key = certificates.new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cloud")])
    now = datetime.now(UTC)
    root = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    signed = certificates.RevocationList().with_serials({"a1": "client-0-1"}, key)
    request = folder / "client-0-1.csr"

    def read_request(data: bytes) -> object:
        request.write_bytes(data)
        return certificates.read_request(request)

    def read_revoked(data: bytes) -> object:
        try:
            values = json.loads(data)
        except (ValueError, RecursionError):
            raise InputError("as of any damaged message") from None
        return certificates.RevocationList.parse(values, root)

    return [
        Reader("revoked", [json.dumps(signed.to_dict()).encode()], read_revoked),
        Reader("request", [certificates.signing_request("client-0-1", key)], read_request),
    ]


def _plain(content: bytes) -> bytes:
    """A JSON file without its checksums, as older versions wrote it."""
    return json.dumps(
        {name: each for name, each in json.loads(content).items() if "checksum" not in name}
    ).encode()


def _without_checksum(content: bytes) -> bytes:
    return content.replace(b'"sfedhp_checksum"', b'"sfedhp_checksux"')


def _with_wire_checksum(data: bytes) -> bytes:
    if len(data) < 32:
        return data
    return data[:28] + struct.pack("<I", zlib.crc32(data[32:], zlib.crc32(data[:28]))) + data[32:]


def _with_header_checksum(data: bytes) -> bytes:
    """A message whose header has a right checksum, and the length that its metadata has now."""
    if len(data) < 51:
        return data
    parts = data[6]
    if len(data) >= 51 + 4 * parts:
        length = len(data) - 51 - 4 * parts - sum(struct.unpack_from(f"<{parts}I", data, 47))
        data = data[:43] + struct.pack("<I", max(length, 0)) + data[47:]
    first = 47 + 4 * parts + struct.unpack_from("<I", data, 43)[0]
    return data[:first] + struct.pack("<I", zlib.crc32(data[:first])) + data[first + 4 :]


def mutated(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """The input with one kind of damage."""
    if draw.random() < 0.4 and (values := list(VALUE.finditer(data[:5000]))):
        value = draw.choice(values)
        return data[: value.start()] + draw.choice(ODD) + data[value.end() :]
    place = draw.randrange(len(data) + 1)
    end = min(len(data), place + draw.choice((1, 1, 2, 4, 8, 64, 1000)))
    match draw.randrange(8):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + data[end:]
        case 2:
            return data[:place] + draw.choice(TOKENS) + data[place:]
        case 3:
            return data[:place] + draw.choice(TOKENS) + data[end:]
        case 4:
            return data[:place] + other[draw.randrange(len(other) + 1) :]
        case 5:
            return data[:end] + data[place:end] * draw.choice((1, 2, 50)) + data[end:]
        case 6:
            return data[:place] + draw.randbytes(end - place) + data[end:]
        case _:
            changed = bytearray(data)
            for _ in range(draw.choice((1, 1, 3, 20)) if changed else 0):
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            return bytes(changed)


class Hang(BaseException):
    """A reader takes too long; not an Exception, which a reader might turn into its own error."""


class Fuzzer:
    """Tries inputs on one reader."""

    def __init__(self, reader: Reader, seed: int, kept: Sequence[bytes] = ()):
        self.reader = reader
        self._draw = random.Random(f"{reader.name} {seed}")
        self.pool = [*reader.seeds, *kept]
        self._lines: set[tuple[str, int]] = set()
        self.outcomes: Counter[str] = Counter()
        self.longest = 0.0

    def step(self, number: int) -> None:
        """Try one input.

        Raises:
            Exception: any that the reader must not raise; `current` is the input.
        """
        draw, self.current = self._draw, b""
        data = draw.choice(self.pool)
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            data = mutated(data, draw.choice(self.pool), draw)[:LONGEST]
        if self.reader.mended is not None and draw.random() < 0.8:
            data = self.reader.mended(data)
        before = len(self._lines)
        # Tracing and deep recursion together are more than CPython can bear.
        self.try_input(data, traced=number % TRACED == 0 and b"[[[[[[[[" not in data)
        if len(self._lines) > before and len(self.pool) < 500:
            self.pool.append(data)

    def try_input(self, data: bytes, *, traced: bool = False) -> None:
        """Give an input to the reader; it may return, or raise its own error."""
        self.current = data
        started = time.process_time()
        with _limited(), _tracing(self._lines if traced else None):
            try:
                self.reader.read(data)
                self.outcomes["read"] += 1
            except self.reader.error as error:
                self.outcomes["refused"] += 1
                sentence = str(error)
                assert sentence, "an error without a sentence"
        self.longest = max(self.longest, time.process_time() - started)


@contextmanager
def _limited() -> Iterator[None]:
    """Raise `Hang` in code that computes for too long; what other programs use does not count."""

    def hang(*_: Any) -> None:
        raise Hang(f"it takes more than {SECONDS} seconds")

    before = signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _tracing(lines: set[tuple[str, int]] | None) -> Iterator[None]:
    """Add the lines of the package that run."""
    if lines is None:
        yield
        return

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def restrict_memory() -> None:
    """Make an allocation beyond `MEMORY` fail, where the system can (Linux)."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as statistics:
        pages = int(statistics.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)


def kept_inputs(corpus: Path, name: str) -> list[bytes]:
    """The inputs of a reader that are kept."""
    return [path.read_bytes() for path in sorted((corpus / name).glob("*"))]


def fuzz(
    inputs: int, seed: int, corpus: Path, names: Sequence[str] = (), seconds: float = math.inf
) -> tuple[list[Fuzzer], int]:
    """Try the kept inputs and so many new ones, in turns on every reader, but no longer than these seconds.

    Returns:
        The fuzzers, and how many failed; each failure is printed, and its input is kept in the corpus.
    """
    failures, end = 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        found = readers(Path(folder))
        fuzzers = [Fuzzer(found[name], seed, kept_inputs(corpus, name)) for name in (names or found)]
        for fuzzer in fuzzers:
            for data in fuzzer.pool:
                failures += _fails(fuzzer, partial(fuzzer.try_input, data), corpus)
        for number in range(inputs // len(fuzzers)):
            if time.monotonic() > end:
                break
            for fuzzer in fuzzers:
                failures += _fails(fuzzer, partial(fuzzer.step, number), corpus)
    return fuzzers, failures


def _fails(fuzzer: Fuzzer, attempt: Callable[[], None], corpus: Path) -> bool:
    """Whether an input fails; it is printed then, and kept."""
    try:
        attempt()
    except (Exception, Hang):
        path = corpus / fuzzer.reader.name / f"{zlib.crc32(fuzzer.current):08x}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fuzzer.current)
        print(f"{fuzzer.reader.name}: {path}\n{traceback.format_exc(limit=-6)}", flush=True)
        return True
    return False


def main() -> int:
    """Run the fuzzer and print the outcomes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=100_000, help="how many inputs to try")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many seconds")
    parser.add_argument("--seed", type=int, default=0, help="the same seed tries the same inputs")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="where failing inputs are kept")
    parser.add_argument("readers", nargs="*", help="only these")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    restrict_memory()
    started = time.perf_counter()
    fuzzers, failures = fuzz(options.inputs, options.seed, options.corpus, options.readers, options.seconds)
    for fuzzer in fuzzers:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(fuzzer.outcomes.items()))
        print(f"{fuzzer.reader.name:12s} {counts}; {len(fuzzer.pool)} kept, longest {fuzzer.longest:.2f} s")
    total = sum(fuzzer.outcomes.total() for fuzzer in fuzzers)
    print(f"{total} inputs, {time.perf_counter() - started:.0f} s, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
