"""A recurrent network and a transformer with dropout train on a GPU as on the CPU: their masks are keyed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sfedhp

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


class Series(nn.Module):
    """An LSTM of two layers with dropout between them."""

    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__()
        self.recurrent = nn.LSTM(shape[-1], 8, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, outputs)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.recurrent(series)[0][:, -1])
        return scores


class Tokens(nn.Module):
    """A transformer encoder of two layers with dropout, which leaves padding out; 0 is padding."""

    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__()
        self.embed = nn.Embedding(9, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, outputs)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == 0
        values = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        scores: torch.Tensor = self.head(values.masked_fill(padding.unsqueeze(-1), 0.0).mean(1))
        return scores


@pytest.mark.parametrize("kind", [Series, Tokens])
@pytest.mark.parametrize("algorithm", [sfedhp.FedAvg(local_steps=4), sfedhp.SFedHP(edge_rounds=2)])
def test_a_gpu_ends_where_the_cpu_ends_and_records_its_rounds(
    kind: Any, algorithm: Any, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(120, 6, 2)) if kind is Series else random.integers(1, 9, (120, 6))
    if kind is Tokens:
        inputs[::3, 4:] = 0
    data = {"inputs": inputs, "labels": np.arange(120) % 3, "client": np.arange(120) % 5}
    experiment = sfedhp.Experiment(
        rounds=3, edges=2, clients_per_edge=(2, 3), dtype="float64", algorithm=algorithm, device="cpu"
    )
    runs = [
        sfedhp.run(replace(experiment, device=device), data=data, model=kind, out=tmp_path / device)
        for device in ("cpu", "cuda")
    ]
    environment = json.loads((tmp_path / "cuda" / "environment.json").read_text(encoding="utf-8"))
    assert environment["captured"] == "cuda graph"
    models = [run.global_model for run in runs]
    for on_cpu, on_gpu in zip(*(model.cpu().state_dict().values() for model in models if model), strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-6, atol=1e-8)
