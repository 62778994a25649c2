"""Federation files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfedhp.core.errors import InputError
from sfedhp.deploy.federation_file import Address, FederationFile, Limits, read_federation
from sfedhp.deploy.local import on_loopback

WHOLE = """
name = "clinics"
experiment = "experiment.toml"
[cloud]
host = "cloud.example.org"
port = 9000
[[edges]]
host = "north.example.org"
[[edges]]
host = "south.example.org"
port = 9001
[limits]
client_seconds = 5
edge_quorum = 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "federation.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_whole_file(tmp_path):
    file = read_federation(written(tmp_path, WHOLE))
    assert file.cloud == Address("cloud.example.org", 9000)
    assert [address.host for address in file.edges] == ["north.example.org", "south.example.org"]
    assert file.experiment == str(tmp_path / "experiment.toml")
    assert file.limits == Limits(client_seconds=5, edge_quorum=2)
    assert file.addresses(2) == file.edges
    with pytest.raises(InputError, match="names 2"):
        file.addresses(3)


def test_an_empty_file_is_this_machine(tmp_path):
    file = read_federation(written(tmp_path, ""))
    assert file == FederationFile()
    assert [(address.host, address.port) for address in file.addresses(2)] == [
        ("127.0.0.1", 8101),
        ("127.0.0.1", 8102),
    ]


def test_the_clouds_limit_covers_the_edges_rounds():
    assert Limits(client_seconds=7.0).of_edges(20) >= 20 * 7.0
    assert Limits(edge_seconds=33.0).of_edges(20) == 33.0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nam = 'x'", "did you mean name"),
        ("[limits]\nclient_secs = 3", "limits.client_seconds"),
        ("[limits]\nclient_seconds = 0", "above 0"),
        ("[limits]\nclient_seconds = 'long'", "is not a number"),
        ("[limits]\nclient_seconds = inf", "at most"),
        ("classes = 3\ninputs = 3", "as [784]"),
        ("classes = 3\ninputs = [4.5]", "as [784]"),
        ("classes = 3\ninputs = [0]", "as [784]"),
        ("[cloud]\nport = 0", "cloud.port"),
        ("[cloud]\nport = 90000", "cloud.port"),
        ("cloud = 3", "must be a table"),
        ("edges = 3", "[[edges]]"),
        ("name = 'two words'", "letters"),
        ("classes = 3", "go together"),
        ("x = [", "not a federation file"),
        ("[cloud]\nzzz = 1", "use host, port"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path, text, word):
    with pytest.raises(InputError) as caught:
        read_federation(written(tmp_path, text))
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_federation(tmp_path / "none.toml")


def test_loopback_takes_free_ports():
    file = on_loopback(FederationFile(cloud=Address("cloud.example.org", 80)), 3)
    ports = {file.cloud.port, *(edge.port for edge in file.edges)}
    assert len(ports) == 4
    assert {edge.host for edge in (file.cloud, *file.edges)} == {"127.0.0.1"}
