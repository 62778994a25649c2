"""Kits made before `flare` became a package name their component by an older path."""

from __future__ import annotations

import subprocess
import sys

import pytest

OLD = "sfedhp.deploy.flare.Station"


def test_flare_resolves_the_component_of_an_old_kit():
    pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")
    from nvflare.fuel.utils.class_loader import load_class

    from sfedhp.deploy.flare.component import RoleComponent

    assert load_class(OLD) is RoleComponent


def test_the_package_itself_does_not_need_flare():
    code = (
        "import sys; import sfedhp.deploy.flare as flare; assert 'nvflare' not in sys.modules; "
        "assert not hasattr(flare, 'Statoin')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
