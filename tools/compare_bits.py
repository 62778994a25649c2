"""Check that a change of the code changes no number: hash short runs of two checkouts and compare.

python tools/compare_bits.py record ../before hashes.json     # run the checkout, write its hashes
python tools/compare_bits.py check . hashes.json              # run this one, name every difference

Everything goes through the command line and the files of a run, so the two checkouts may be laid out
differently. Hashes depend on the machine and on torch: record and check on the same one. A folder of the
recorded runs can be kept with --keep, to try whether the other checkout still opens it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SMALL = ["rounds=3", "edges=2", "clients_per_edge=3", "data.train_per_label=12", "data.test_per_label=6"]
# What takes time or names a place, and so differs between two runs of one checkout.
VOLATILE = {"seconds", "folder", "started"}
METHODS = ["sfedhp", "fedavg", "hierfavg", "fedprox", "perfedavg", "pfedme", "heurfedamp", "pfedgp"]
RUNS = {
    **{method: [f"algorithm={method}", *SMALL] for method in METHODS},
    "float64": ["dtype=float64", *SMALL],
    "sampled-edges": ["sampled_edges=1", *SMALL],
    "sampled-clients": ["algorithm=fedavg", "sampled_clients=4", *SMALL],
    "sparse-wire": [
        "algorithm.client_sparsity=1e-4", "algorithm.edge_sparsity=1e-4", "wire.count=encode",
        "wire.values=float16", "wire.difference=true", "wire.threshold=1e-4", *SMALL,
    ],
    "exact-l1": ["algorithm.penalty=l1", "algorithm.client_sparsity=1e-4", "algorithm.start=carried", *SMALL],
    "nesterov": ["algorithm.solver=nesterov", "algorithm.tolerance=1e-3", "algorithm.anchor=client", *SMALL],
    "decay": ["model.weight_decay=1e-3", "model.name=dnn", "algorithm=pfedme", *SMALL],
    "in-pieces": ["engine.clients_at_once=2", *SMALL],
    "plain": ["engine.inner=plain", *SMALL],
    "ragged": ["data.source=ragged.npz", "rounds=3", "edges=2", "clients_per_edge=3", "batch_size=16"],
    "batch-norm": [
        "data.source=colors.npz", "rounds=2", "edges=2", "clients_per_edge=2", "model.name=vgg",
        "algorithm.edge_rounds=3",
    ],
    "batch-norm-fedavg": [
        "algorithm=fedavg", "data.source=colors.npz", "rounds=2", "edges=2", "clients_per_edge=2",
        "model.name=vgg", "algorithm.local_steps=3", "wire.count=size",
    ],
    "group-norm": [
        "algorithm=hierfavg", "data.source=colors.npz", "rounds=2", "edges=2", "clients_per_edge=2",
        "model.name=vgg-gn", "algorithm.local_steps=2", "algorithm.edge_rounds=2",
    ],
}  # fmt: skip


def main() -> None:
    """Record the hashes of a checkout, or compare them with recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["record", "check"])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("hashes", type=Path)
    parser.add_argument("--keep", type=Path, help="keep the folders of the runs here")
    parser.add_argument("--only", help="cases to run, separated by commas")
    parser.add_argument("--no-deploy", action="store_true", help="leave the deployed run out")
    given = parser.parse_args()
    only = given.only.split(",") if given.only else None
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        hashes = run_all(given.checkout.resolve(), folder, only, not given.no_deploy)
    if given.what == "record":
        given.hashes.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
        return
    known = json.loads(given.hashes.read_text(encoding="utf-8"))
    different = [name for name in hashes if hashes[name] != known.get(name)]
    for name in different:
        print(f"{name}: different")
    print(f"{len(hashes) - len(different)} of {len(hashes)} cases have the same bits")
    sys.exit(bool(different))


def run_all(checkout: Path, folder: Path, only: list[str] | None, deploy: bool) -> dict[str, str]:
    """The hash of every case, run with the package of the checkout."""
    make_data(folder)
    hashes = {}

    def wanted(name: str) -> bool:
        return only is None or name in only

    for name, words in RUNS.items():
        if wanted(name):
            sfedhp(checkout, folder, "run", *words, "--out", name)
            hashes[name] = hash_of(folder / name)
    if wanted("sweep"):
        sfedhp(
            checkout,
            folder,
            "sweep",
            *SMALL,
            "algorithm.personal_rate=0.03,0.05",
            "seed=1,2",
            "--out",
            "sweep",
        )
        hashes["sweep"] = hash_of(folder / "sweep")
    if wanted("pages"):
        printed = sfedhp(checkout, checkout, "reproduce", "--show", "--json")
        hashes["pages"] = hashlib.sha256(printed.encode()).hexdigest()
    if deploy and wanted("deployed"):
        federation = str(checkout / "experiments" / "deployment" / "federation.toml")
        sfedhp(checkout, folder, "deploy", federation, "--local", *SMALL, "--out", "deployed")
        hashes["deployed"] = hash_of(folder / "deployed", bytes_too=False)  # headers vary
    return hashes


def sfedhp(checkout: Path, folder: Path, *words: str, quiet: bool = False) -> str:
    """Run a command of the checkout's package on one thread; returns what it printed."""
    env = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    code = "from sfedhp.cli import main; main()"
    if not quiet:
        print("sfedhp", *words, flush=True)
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}")
    return done.stdout


def make_data(folder: Path) -> None:
    """Two files of made-up rows: clients of different sizes, and small color images."""
    random = np.random.default_rng(0)
    sizes = [31, 24, 60, 17, 45, 23]
    client = np.repeat(np.arange(6), sizes)
    labels = np.concatenate([np.arange(size) % 4 for size in sizes])
    inputs = random.normal(size=(len(client), 12)).astype(np.float32) + labels[:, None].astype(np.float32)
    np.savez(folder / "ragged.npz", inputs=inputs, labels=labels, client=client)
    labels = np.arange(160) % 5
    images = random.integers(0, 200, (160, 3, 32, 32), np.uint8) + labels[:, None, None, None].astype(
        np.uint8
    )
    np.savez(folder / "colors.npz", inputs=images, labels=labels, client=np.arange(160) // 40)


def hash_of(folder: Path, bytes_too: bool = True) -> str:
    """The hash of all models and histories below a folder, with the bytes that were counted or without."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors" and "checkpoint" not in path.parts and "models" in path.parts:
            total.update(str(path.relative_to(folder)).encode() + tensors_of(path))
        elif path.name == "history.jsonl" or (path.name == "ledger.jsonl" and bytes_too):
            for line in path.read_text(encoding="utf-8").splitlines():
                row = {
                    name: value
                    for name, value in json.loads(line).items()
                    if name not in VOLATILE and (bytes_too or not name.startswith("bytes_"))
                }
                total.update(json.dumps(row, sort_keys=True).encode())
    return total.hexdigest()


def tensors_of(path: Path) -> bytes:
    """The names and bytes of a safetensors file's arrays, without its metadata."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    return json.dumps(header, sort_keys=True).encode() + raw[8 + length :]


if __name__ == "__main__":
    main()
