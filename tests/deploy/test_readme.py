"""The readme of a kit says how to start this role, what it connects to, and whom to ask."""

from __future__ import annotations

import re

import pytest

from sfedhp.deploy.federation_file import Address, FederationFile
from sfedhp.deploy.readme import write_readme
from sfedhp.deploy.topology import lay_out
from tests.support.deploy_memory import experiment

CLOUD, EDGE = Address("cloud.example.org", 8443), Address("north.example.org", 8100, listen_port=9000)


@pytest.fixture
def readme(tmp_path):
    """The readme of a site."""
    layout = lay_out(FederationFile(), experiment(edges=1))
    sites = {site.name: site for site in layout.sites}

    def of(name, contact="Jane Doe, jane@example.org"):
        own = None if name == "cloud" else EDGE
        write_readme(sites[name], tmp_path, CLOUD, own, contact)
        return (tmp_path / "readme.txt").read_text(encoding="utf-8")

    return of


@pytest.mark.parametrize(
    ("name", "command", "network"),
    [
        ("cloud", "sfedhp cloud .", "Its 1 member connects to port 8443 of this machine."),
        (
            "edge-0",
            "sfedhp edge .",
            "Its 2 members connect to port 9000 of this machine, and it connects to cloud.example.org, "
            "port 8443.",
        ),
        (
            "client-0-1",
            "sfedhp client . data.source=FILE",
            "It connects to north.example.org, port 8100. Nothing connects to it.",
        ),
    ],
)
def test_each_role_gets_its_own(readme, name, command, network):
    text = readme(name)
    assert text.startswith(f"{name}, ")
    assert re.findall(r"^ {8}(sfedhp .*)$", text, re.MULTILINE) == [command, "sfedhp status ."]
    assert network in text
    assert "Ask Jane Doe, jane@example.org." in text


def test_whom_to_ask_is_plain_text_and_never_empty(readme):
    assert "Ask the person who sent you this kit." in readme("cloud", contact="")
    assert "\x1b" not in readme("cloud", contact="\x1b[2J Eve")
