"""The description of a site in its kit: its role, the experiment, its server and its members."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sfedhp.config import Experiment, from_dict, to_dict
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.deploy.federation_file import Limits

FILE = "sfedhp.json"
SERVER, MEMBER = "server", "member"  # the two processes of an edge, as folders of its kit
Role = Literal["cloud", "edge", "client"]
# Sections that may differ between sites without changing what is computed.
_OWN = ("device", "checkpoint", "engine", "links", "evaluation", "data")


@dataclass(frozen=True)
class Site:
    """One site of a federation."""

    role: Role
    name: str  # in its certificate: cloud, edge-0, client-0-1
    federation: str
    experiment: Experiment
    limits: Limits
    shape: tuple[int, ...]  # of one input
    classes: int
    edge: int = 0  # its number, or that of a client's edge
    seat: int = 0  # below its server
    client: int = 0  # a client's id, by which its batches are drawn
    clients: tuple[int, ...] = ()  # the ids of the clients below the cloud of a two-tier method, by seat

    @property
    def below(self) -> list[str]:
        """The names of a server's members, by seat."""
        experiment = self.experiment
        if self.role == "edge":
            return [client_name(self.edge, seat) for seat in range(experiment.edge_sizes[self.edge])]
        if experiment.algorithm.tiers == 3:
            return [edge_name(edge) for edge in range(experiment.edges)]
        return [
            client_name(edge, seat) for edge, size in enumerate(experiment.edge_sizes) for seat in range(size)
        ]

    @property
    def config(self) -> str:
        """A hash of everything that decides what is computed; both ends of a message must have the same."""
        values = {name: value for name, value in to_dict(self.experiment).items() if name not in _OWN}
        values |= {"shape": self.shape, "classes": self.classes, "federation": self.federation}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def edge_name(edge: int) -> str:
    """The name of an edge, as in its certificate."""
    return f"edge-{edge}"


def client_name(edge: int, seat: int) -> str:
    """The name of a client, the same for methods with two and with three tiers."""
    return f"client-{edge}-{seat}"


def write_site(site: Site, kit: Path) -> None:
    """Write the description of a site into its kit."""
    values: dict[str, Any] = {
        field.name: getattr(site, field.name)
        for field in dataclasses.fields(site)
        if field.name not in ("experiment", "limits")
    }
    values |= {"experiment": to_dict(site.experiment), "limits": dataclasses.asdict(site.limits)}
    write_text(kit / FILE, json.dumps(values, indent=2) + "\n")


def read_site(kit: Path, role: Role | None = None) -> Site:
    """The site of a kit.

    Raises:
        InputError: the folder is not a kit, or is the kit of another role.
    """
    try:
        values = json.loads((kit / FILE).read_text(encoding="utf-8"))
        values["experiment"] = from_dict(values["experiment"])
        values["limits"] = Limits(**values["limits"])
        values["shape"], values["clients"] = tuple(values["shape"]), tuple(values["clients"])
        site = Site(**values)
    except OSError:
        raise InputError(
            f"{kit} is not a kit (it has no {FILE}): make kits with `sfedhp provision`."
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{kit / FILE} cannot be read ({error}): make new kits.") from None
    if role is not None and site.role != role:
        raise InputError(f"{kit} is the kit of {site.name}: start it with `sfedhp {site.role} {kit}`.")
    return site
