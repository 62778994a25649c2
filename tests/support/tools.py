"""The programs of tools/, imported from their files."""

import importlib.util
import sys
from types import ModuleType

from tests.support.paths import ROOT


def load_tool(name: str) -> ModuleType:
    """tools/NAME.py as a fresh module, also entered in `sys.modules`, where dataclasses look for it."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
