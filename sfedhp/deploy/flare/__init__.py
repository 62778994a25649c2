"""The bridge to NVIDIA FLARE: its component and transport, the allowlist, and the processes of a site."""

from typing import Any


def __getattr__(name: str) -> Any:
    # The component's name in kits made while `flare` was one module; keep it for one release.
    if name == "Station":
        from sfedhp.deploy.flare.component import RoleComponent

        return RoleComponent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
