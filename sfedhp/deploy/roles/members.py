"""The group of a server's members, with or without secure aggregation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfedhp.deploy.messaging.gather import MemberGroup
from sfedhp.deploy.messaging.transport import Transport
from sfedhp.deploy.site import SERVER, Site
from sfedhp.runs.method_options import clients_of_server, largest_sum, secure_options


def member_group(site: Site, kit: Path, transport: Transport, **options: Any) -> MemberGroup:
    """The members of a server.

    Args:
        site: the server's.
        kit: its folder.
        transport: to its members.
        options: as for `MemberGroup`.

    Raises:
        InputError: the kit has no certificates, and they are needed.
    """
    experiment, secure = site.experiment, secure_options(site.experiment)
    of_edges = site.role == "cloud" and experiment.algorithm.tiers == 3
    if secure is None or of_edges:
        return MemberGroup(transport, site.below, **options)
    from sfedhp.deploy.identity import CardReader  # cryptography comes with FLARE
    from sfedhp.deploy.messaging.secure_gather import SecureGroup

    workspace = kit / SERVER if site.role == "edge" else kit
    return SecureGroup(
        transport,
        site.below,
        **options,
        secure=secure,
        seats=largest_sum(experiment),
        clients=clients_of_server(experiment, site.edge),
        threshold=site.limits.secure_threshold,
        cards=CardReader.of(workspace, site.config),
    )
