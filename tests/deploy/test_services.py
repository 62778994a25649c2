"""Files that run the roles as services, from the same kits."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sfedhp.core.errors import InputError
from sfedhp.deploy.federation_file import FederationFile
from sfedhp.deploy.services import services_of, write_compose, write_helm, write_systemd
from sfedhp.deploy.topology import lay_out
from tests.support.deploy_memory import experiment

NAMES = ["client-0-0", "client-0-1", "client-1-0", "client-1-1", "cloud", "edge-0", "edge-1"]


@pytest.fixture
def kits(tmp_path):
    """Kits without certificates: the files need none."""
    layout = lay_out(FederationFile(), experiment())
    for site in layout.sites:
        layout.write(site, tmp_path / site.name)
    for folder, port in (("cloud", 8100), ("edge-0/server", 8101), ("edge-1/server", 8102)):
        path = tmp_path / folder / "startup" / "fed_server.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"servers": [{"service": {"target": f"localhost:{port}"}}]}))
    return tmp_path


def test_a_unit_for_each_role(kits, tmp_path):
    paths = write_systemd(services_of(kits), tmp_path / "systemd")
    assert [path.name for path in paths] == [f"sfedhp-{name}.service" for name in NAMES]
    text = paths[4].read_text()
    assert "ExecStart=/opt/sfedhp/bin/sfedhp cloud /var/lib/sfedhp/cloud\n" in text
    assert "RestartPreventExitStatus=2" in text
    assert "data.source=" in paths[0].read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_the_units(kits, tmp_path):
    for path in write_systemd(services_of(kits), tmp_path / "systemd"):
        # The program and its user are not installed here.
        text = path.read_text().replace("/opt/sfedhp/bin/sfedhp", "/bin/true").replace("User=sfedhp\n", "")
        path.write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
        )
        said = [line for line in done.stderr.splitlines() if path.name in line]
        assert not said, said


def test_a_container_for_each_role(kits, tmp_path):
    (path,) = write_compose(services_of(kits), tmp_path)
    found = json.loads(path.read_text())["services"]
    assert sorted(found) == NAMES
    assert found["edge-1"]["command"] == ["edge", "/var/lib/sfedhp/edge-1"]
    assert found["edge-1"]["ports"] == ["8102:8102"]
    assert "ports" not in found["client-0-0"]
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(path.read_text())["services"] == found


def test_a_chart_with_a_stateful_set_for_each_role(kits, tmp_path):
    yaml = pytest.importorskip("yaml")
    chart, values, *templates = write_helm(services_of(kits), tmp_path)
    assert yaml.safe_load(chart.read_text())["apiVersion"] == "v2"
    known = yaml.safe_load(values.read_text())
    assert [path.stem for path in templates] == NAMES
    for path in templates:
        text = re.sub(
            r"\{\{ \.Values\.(\w+) \| quote \}\}", lambda found: json.dumps(known[found[1]]), path.read_text()
        )
        assert "{{" not in text
        kinds = [document["kind"] for document in yaml.safe_load_all(text)]
        assert kinds == (["StatefulSet"] if path.stem.startswith("client") else ["StatefulSet", "Service"])
        pod = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == known["image"]
        assert pod["securityContext"]["runAsNonRoot"] is True


def test_a_pod_unpacks_its_kit_once_into_a_volume_of_root(kits):
    """Also after a kill while it was unpacked. The volume can be written by its group alone."""
    yaml = pytest.importorskip("yaml")
    *_, template = write_helm(services_of(kits, ["edge-1"]), kits)
    plain = re.sub(r"\{\{.*?\}\}", '""', template.read_text())
    (start,) = next(yaml.safe_load_all(plain))["spec"]["template"]["spec"]["initContainers"]
    shell, option, script = start["command"]
    (kits / "edge-1").chmod(0o700)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    user: dict[str, Any] = {"user": 10001, "group": 10001, "extra_groups": []} if root else {}
    with tempfile.TemporaryDirectory() as folder:  # pytest's own can be entered by nobody else
        volume, secret = Path(folder) / "volume", Path(folder) / "kit.tar.gz"
        subprocess.run(["tar", "-czf", secret, "-C", kits / "edge-1", "."], check=True)
        Path(folder).chmod(0o755)
        (volume / ".new" / "half").mkdir(parents=True)
        if root:
            for path in (volume, volume / ".new", volume / ".new" / "half"):
                os.chown(path, 0 if path == volume else 10001, 10001)
            volume.chmod(0o2775)
        script = script.replace("/var/lib/sfedhp", str(volume)).replace("/secret/kit.tar.gz", str(secret))
        for _ in range(2):
            subprocess.run([shell, option, script], check=True, **user)
            assert [path.name for path in volume.iterdir()] == ["edge-1"]
            assert (volume / "edge-1").stat().st_mode & 0o777 == 0o700
            assert not (volume / "edge-1" / "half").exists()
            (volume / "edge-1" / "startup.json").write_text("changed since")
        assert (volume / "edge-1" / "sfedhp.json").read_bytes() == (kits / "edge-1/sfedhp.json").read_bytes()
        assert (volume / "edge-1" / "startup.json").read_text() == "changed since"


def test_one_kit_alone_and_none(kits, tmp_path):
    assert [service.site.name for service in services_of(kits, ["edge-1"])] == ["edge-1"]
    with pytest.raises(InputError, match="not a kit"):
        services_of(kits, ["edge-7"])
    with pytest.raises(InputError, match="no kits"):
        services_of(tmp_path / "nothing")
    (kits / "cloud" / "startup" / "fed_server.json").write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        services_of(kits, ["cloud"])
