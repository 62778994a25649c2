"""PFLlib, github.com/TsingZ0/PFLlib: a checkout of it."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from torch import Tensor, nn

_SERVERS = {"FedAvg": "serveravg", "FedProx": "serverprox", "pFedMe": "serverpFedMe"}


def build(job: dict[str, Any], clients: list[tuple[Tensor, Tensor]], module: nn.Module) -> Callable[[], None]:
    """What its server's `train` does in a round, but for the evaluations; rows come from memory, not disk."""
    sys.path.insert(0, str(Path(job["folder"]) / "system"))
    method, options = job["method"], job["options"]
    rows = [list(zip(*client, strict=True)) for client in clients]
    for name in ("flcore.clients.clientbase", "flcore.servers.serverbase"):
        base: Any = importlib.import_module(name)
        base.read_client_data = lambda dataset, index, is_train=True, few_shot=0: rows[index]
    code = importlib.import_module(f"flcore.servers.{_SERVERS[method]}")
    # It counts epochs: as many as hold the wanted number of mini-batches.
    steps = options.get("local_steps", options.get("local_rounds", options.get("edge_rounds", 0)))
    epochs = options.get("local_epochs") or max(1, steps * job["batch_size"] // job["rows"])
    arguments = Namespace(
        model=module,
        algorithm=method,
        dataset="MNIST",
        device=job["device"],
        num_classes=10,
        global_rounds=1,
        local_epochs=epochs,
        batch_size=job["batch_size"],
        local_learning_rate=options.get("local_rate", options.get("edge_rate")),
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        num_clients=len(rows),
        join_ratio=(job.get("cohort") or len(rows)) / len(rows),
        random_join_ratio=False,
        few_shot=0,
        time_select=False,
        goal="bench",
        time_threthold=float("inf"),
        save_folder_name="items",
        top_cnt=100,
        auto_break=False,
        eval_gap=1,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        dlg_eval=False,
        dlg_gap=100,
        batch_num_per_client=2,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
        mu=options.get("proximity", 0.0),
        lamda=options.get("client_proximity", 0.0),
        K=options.get("personal_steps", 0),
        p_learning_rate=options.get("personal_rate", 0.0),
        beta=options.get("cloud_mixing", 1.0),
    )
    with redirect_stdout(StringIO()):
        server = getattr(code, method)(arguments, 0)

    def step() -> None:
        server.selected_clients = server.select_clients()
        server.send_models()
        for client in server.selected_clients:
            client.train()
        if method == "pFedMe":
            server.previous_global_model = [
                part.detach().clone() for part in server.global_model.parameters()
            ]
        server.receive_models()
        server.aggregate_parameters()
        if method == "pFedMe":
            server.beta_aggregate_parameters()

    step.module = lambda: server.global_model  # type: ignore[attr-defined]
    return step
