"""Names that are imported at their first use."""

import sys

import pytest

from sfedhp.core.lazy import lazy_names


def test_a_name_is_imported_when_it_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text("")
    (tmp_path / "pack/inner.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    find = lazy_names("pack", {"answer": "inner"})
    assert "pack.inner" not in sys.modules
    assert find("answer") == 42
    assert "pack.inner" in sys.modules
    with pytest.raises(AttributeError, match="module 'pack' has no attribute 'question'"):
        find("question")
