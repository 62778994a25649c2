"""The description of a site in its kit: its role, the experiment, its server and its members."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from sfedhp.config import Experiment, from_dict, to_dict
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.core.parsing import parse_json
from sfedhp.data.schema import Schema
from sfedhp.deploy.federation_file import Limits

FILE = "sfedhp.json"
INITIAL = "initial.safetensors"  # the initial weights, in every kit
AUTHORITIES = "authorities"  # the folder of the certificate authorities; it is part of no kit
REVOKED = "revoked.json"  # the list of revoked certificates, in the kits' folder and in servers' kits
PRIVACY_FILE = (
    "privacy.json"  # in the folder of a run: the secret of a role that adds noise, and its releases
)
SERVER, MEMBER = "server", "member"  # the two processes of an edge, as folders of its kit
Role = Literal["cloud", "edge", "client"]
# Sections that may differ between sites without changing what is computed.
_OWN = ("device", "checkpoint", "engine", "links", "evaluation", "data")
# Keys that the first version had. Later ones are left out of the hash at their defaults, so that kits, and
# running federations, of an earlier version can still be used.
_FIRST_KEYS: Final = {
    "": "batch_size clients_per_edge density_threshold dtype edges rounds sampled_clients sampled_edges seed",
    "algorithm": "adaptation_rate anchor attention chains client_proximity client_sparsity cloud_mixing "
    "edge_proximity edge_rate edge_rounds edge_sparsity edge_sparsity_rounds gibbs_steps local_rate "
    "local_rounds local_steps meta_rate name order penalty personal_rate personal_steps proximity "
    "self_weight smoothing solver sparsity_floor start support_rows tolerance",
    "model": "name weight_decay initial",
    "wire": "threshold values count tiers difference",
}


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
    # What the data calls this site and those below it, by name; empty if the data has no names.
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    monitor: int = 0  # the port of its figures on loopback; 0: none
    # Of the data that was read when the kits were made; None if there was none, and in older kits.
    schema: Schema | None = field(default=None, compare=False)
    added: tuple[str, ...] = ()  # the names of clients below a server that were added later, in that order
    outputs: int = 0  # of the network, if they are not classes
    sums: bool = False  # inputs and targets are scaled by totals that the clients report

    @property
    def width(self) -> int:
        """How many numbers the network gives for each row."""
        return self.outputs or self.classes

    @property
    def below(self) -> list[str]:
        """The names of a server's members, by seat."""
        experiment = self.experiment
        if self.role == "edge":
            return self.clients_of(self.edge)
        if experiment.algorithm.tiers == 3:
            return [edge_name(edge) for edge in range(experiment.edges)]
        first = (self._first_clients(edge) for edge in range(experiment.edges))
        return [*(name for names in first for name in names), *self.added]

    def clients_of(self, edge: int) -> list[str]:
        """The names of the clients below an edge."""
        return [*self._first_clients(edge), *self._added_to(edge)]

    def _first_clients(self, edge: int) -> list[str]:
        return [client_name(edge, seat) for seat in range(self.experiment.edge_sizes[edge])]

    def _added_to(self, edge: int) -> list[str]:
        return [name for name in self.added if name.rpartition("-")[0] == f"client-{edge}"]

    @property
    def config(self) -> str:
        """A hash of everything that decides what is computed; both ends of a message must have the same."""
        values = _hashed(self.experiment)
        values |= {"shape": self.shape, "classes": self.classes, "federation": self.federation}
        values |= {"outputs": self.outputs} if self.outputs else {}
        values |= {"sums": True} if self.sums else {}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _hashed(experiment: Experiment) -> dict[str, Any]:
    """The config without keys that a site may set itself, and without newer keys at their defaults."""
    defaults = to_dict(dataclasses.replace(Experiment(), algorithm=type(experiment.algorithm)()))
    found: dict[str, Any] = {}
    for name, value in to_dict(experiment).items():
        if name in _OWN:
            continue
        if isinstance(value, dict):
            first = _FIRST_KEYS.get(name, "").split()
            default = defaults[name]
            value = {key: each for key, each in value.items() if key in first or each != default.get(key)}
            if value:
                found[name] = value
        elif name in _FIRST_KEYS[""].split() or value != defaults.get(name):
            found[name] = value
    return found


def edge_name(edge: int) -> str:
    """The name of an edge in its certificate: edge-i."""
    return f"edge-{edge}"


def client_name(edge: int, seat: int) -> str:
    """The name of a client, the same for methods with two and with three tiers."""
    return f"client-{edge}-{seat}"


def startup_folders(kit: Path) -> list[Path]:
    """The folders of a kit's certificates; an edge has two, one for each of its processes.

    Other folders of a kit are not read: a running role creates and removes folders there.
    """
    places = (kit, kit / SERVER, kit / MEMBER)
    return [place / "startup" for place in places if (place / "startup").is_dir()]


def write_site(site: Site, kit: Path) -> None:
    """Write the description of a site into its kit."""
    values: dict[str, Any] = {
        option.name: getattr(site, option.name)
        for option in dataclasses.fields(site)
        if option.name not in ("experiment", "limits", "schema") and (option.name != "names" or site.names)
    }
    if not site.monitor:
        del values["monitor"]  # a kit without it can be read by earlier versions
    if not site.sums:
        del values["sums"]
    if site.schema is not None:
        values["schema"] = site.schema.to_dict()
    values |= {"experiment": to_dict(site.experiment), "limits": dataclasses.asdict(site.limits)}
    write_text(kit / FILE, json.dumps(values, indent=2) + "\n")


def read_site(kit: Path, role: Role | None = None) -> Site:
    """The site of a kit.

    Raises:
        InputError: the folder is not a kit, or is the kit of another role.
    """
    try:
        values = parse_json((kit / FILE).read_bytes())
        values["experiment"] = from_dict(values["experiment"])
        values["limits"] = Limits(**values["limits"])
        for name in ("shape", "clients", "added"):
            values[name] = tuple(values.get(name, ()))
        values["names"] = dict(values.get("names", {}))
        if "schema" in values:
            values["schema"] = Schema.from_dict(values["schema"])
        site = Site(**values)
    except OSError:
        remedy = "make kits with `sfedhp provision`"
        if (kit / "cloud" / FILE).is_file():
            remedy = f"name one of the kits in it, for example {kit / 'cloud'}"
        raise InputError(f"{kit} is not a kit (it has no {FILE}): {remedy}.") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{kit / FILE} cannot be read ({error}): make new kits.") from None
    if role is not None and site.role != role:
        raise InputError(f"{kit} is the kit of {site.name}: start it with `sfedhp {site.role} {kit}`.")
    return site
