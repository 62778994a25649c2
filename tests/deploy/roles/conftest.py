"""Shorter waits where the roles run in this process."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr("sfedhp.deploy.roles.uplink._GRACE", 0.0)
    monkeypatch.setattr("sfedhp.deploy.roles.uplink._RETRY", 0.1)
    monkeypatch.setattr("sfedhp.deploy.roles.edge._RETRY", 0.1)
