"""The page on models: its table lists the presets."""

from sfedhp.nn.presets import MODELS
from tests.support.pages import DOCS, tables

PAGE = DOCS / "models.md"


def test_the_table_lists_the_models() -> None:
    names = [name.strip(" `") for row in tables(PAGE) for name in row[0].split(",") if len(row) == 3]
    assert sorted(set(names) & set(MODELS)) == sorted(MODELS)
