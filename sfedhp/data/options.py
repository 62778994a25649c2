"""The options of `[data]`: where the rows come from and which client holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sfedhp.core.types import Bounds

Partition = Literal["auto", "paper", "paper-as-written", "dirichlet", "shards", "iid", "given"]
Scale = Literal["unit", "standard", "per_pixel", "none"]
Rule = Literal["sliding", "blocks"]
EdgeOrder = Literal["consecutive", "random", "labels"]
Count = Annotated[int | None, Bounds(1)]
CountFromZero = Annotated[int | None, Bounds(0)]
FromZero = Annotated[float, Bounds(0)]
Positive = Annotated[float, Bounds(0, exclusive=True)]
Share = Annotated[float, Bounds(0, 0.99, exclusive=True)]


@dataclass(frozen=True)
class DataOptions:
    """The `[data]` section of a config; None means "by partition and source" and is resolved on loading."""

    source: str = "fmnist-mini"  # fmnist-mini (embedded), mnist, fmnist, cifar10, synthetic, or a file my.npz
    partition: Partition = "auto"  # who holds what; auto: paper for images, an npz's own clients, else iid
    labels_per_client: Count = None  # labels a client holds; paper: 2, paper-as-written: 5
    train_per_label: Count = None  # training images per label and client (paper partitions)
    test_per_label: Count = None  # test images per label and client (paper partitions)
    validation_per_label: CountFromZero = None  # validation images per label and client; 0: none
    rule: Rule = "sliding"  # labels of client u: u + j (sliding) or u·L + j (blocks), modulo the classes
    scale: Scale = "unit"  # pixels: unit /255, standard per channel, per_pixel, none; floats stay as they are
    test_share: Share = 0.25  # part of a client's rows to test on, where no counts or `test` column decide
    edge_order: EdgeOrder = "consecutive"  # clients fill edges by id, random, or labels (alike ones together)
    held_out: Annotated[int, Bounds(0)] = 0  # clients of each edge that are kept out, to join after training
    concentration: Positive = 0.5  # Dirichlet α: the smaller, the fewer labels a client holds
    shards_per_client: Annotated[int, Bounds(1)] = 2  # shards: pieces of the label-sorted rows a client gets
    synthetic_alpha: FromZero = 0.5  # α of Synthetic(α, β): how far the clients' true models differ
    synthetic_beta: FromZero = 0.5  # β of Synthetic(α, β): how far the clients' inputs differ
