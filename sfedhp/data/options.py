"""The options of `[data]`: where the rows come from and which client holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sfedhp.core.options import Bounds, Help
from sfedhp.core.types import Augment

Partition = Literal[
    "auto",
    "paper",
    "paper-as-written",
    "dirichlet",
    "nested-dirichlet",
    "shards",
    "iid",
    "given",
    "pfllib",
    "pfllib-dirichlet",
]
Scale = Literal["auto", "unit", "symmetric", "standard", "per_pixel", "none"]
Rule = Literal["sliding", "blocks"]
EdgeOrder = Literal["consecutive", "random", "labels"]
CountOrNone = Annotated[int | None, Bounds(1)]
CountFromZeroOrNone = Annotated[int | None, Bounds(0)]
FromZero = Annotated[float, Bounds(0)]
Positive = Annotated[float, Bounds(0, exclusive=True)]
HeldOutShare = Annotated[float, Bounds(0, 0.99, exclusive=True)]


@dataclass(frozen=True)
class DataOptions:
    """The `[data]` section of a config; None means "by partition and source" and is resolved on loading."""

    source: Annotated[
        str,
        Help(
            "fmnist-mini (embedded), mnist, fmnist, cifar10, synthetic, a file (my.npz, my.csv, my.parquet), "
            "or a folder of images (label/*.png, or client/label/*.png) or of PFLlib"
        ),
    ] = "fmnist-mini"
    partition: Annotated[
        Partition,
        Help(
            "how rows are divided among clients; auto: paper for images, a file's own clients, otherwise iid"
        ),
    ] = "auto"
    labels_per_client: Annotated[
        CountOrNone, Help("labels per client; default 2 for paper, 5 for paper-as-written")
    ] = None
    train_per_label: Annotated[
        CountOrNone, Help("training images per label and client (paper partitions)")
    ] = None
    test_per_label: Annotated[CountOrNone, Help("test images per label and client (paper partitions)")] = None
    validation_per_label: Annotated[
        CountFromZeroOrNone, Help("validation images per label and client; 0: none")
    ] = None
    rule: Annotated[
        Rule, Help("labels of client u: u + j (sliding) or u·L + j (blocks), modulo the number of classes")
    ] = "sliding"
    scale: Annotated[
        Scale,
        Help(
            "scaling of inputs: unit (pixels / 255), symmetric (pixels, −1 to 1), standard (mean 0 and "
            "deviation 1 of each channel or column), per_pixel or none; auto: unit for pixels, standard for "
            "tables, none for other floats"
        ),
    ] = "auto"
    augment: Annotated[
        Augment, Help("random crops (moved by up to 4 pixels) and flips of training images")
    ] = "none"
    test_share: Annotated[
        HeldOutShare,
        Help("share of a client's rows to test on, if neither counts nor a `test` column decide"),
    ] = 0.25
    edge_order: Annotated[
        EdgeOrder, Help("how clients are assigned to edges: by id, at random, or by similar labels")
    ] = "consecutive"
    held_out: Annotated[
        int, Bounds(0), Help("clients per edge that are held out of training, to join afterwards")
    ] = 0
    concentration: Annotated[Positive, Help("Dirichlet α; the smaller, the fewer labels per client")] = 0.5
    shards_per_client: Annotated[int, Bounds(1), Help("shards of the label-sorted rows per client")] = 2
    synthetic_alpha: Annotated[
        FromZero, Help("α of Synthetic(α, β): how far the clients' true models differ")
    ] = 0.5
    synthetic_beta: Annotated[
        FromZero,
        Help("β of Synthetic(α, β): how far the clients' inputs differ"),
    ] = 0.5
    target: Annotated[
        str | tuple[str, ...] | None, Help("column of a table to predict; a list [a,b] for several numbers")
    ] = None
    client_column: Annotated[str | None, Help("column of a table that names the client of each row")] = None
    edge_column: Annotated[
        str | None,
        Help("column of a table that names the edge of each client; decides edges and clients_per_edge"),
    ] = None
    test_column: Annotated[
        str | None, Help("column of a table: true or 1 for rows to test on, false or 0 for the others")
    ] = None
    image_size: Annotated[
        CountOrNone,
        Help("height and width to which images of a folder are scaled; default: all have the same size"),
    ] = None
    drop: Annotated[tuple[str, ...] | None, Help("columns of a table to leave out: [id,name]")] = None


TABLE_KEYS = ("target", "client_column", "edge_column", "test_column", "drop")  # options of tables alone
