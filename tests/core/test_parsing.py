"""Text of others as JSON or TOML."""

import pytest

from sfedhp.core.parsing import parse_toml

KEY = ".".join("a" * 64)  # as many tables in each other as are allowed


def test_a_key_may_have_64_parts_and_no_more() -> None:
    assert parse_toml(f"{KEY} = 1")
    for text in (f"{KEY}.a = 1", f"[{KEY}.a]", f"a = {{{KEY}.a = 1}}", KEY.replace("a", "'.'") + ".a = 1"):
        with pytest.raises(ValueError, match="nested more than 64 levels deep"):
            parse_toml(text)


@pytest.mark.parametrize("key", ["a." * 40_000 + "a", ".".join(['"a.b"'] * 20_000), " . ".join("a" * 40_000)])
def test_a_key_of_thousands_of_parts_is_refused_at_once(key: str) -> None:
    """Python's parser needs minutes for one."""
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse_toml(f"{key} = 1")


@pytest.mark.parametrize(
    "value",
    [
        '"DOTS"',
        "'DOTS'",
        '"""DOTS\n\\"""DOTS"""',
        '"""DOTS"""""',
        "'''DOTS\nDOTS'''''",
        '"\\"DOTS"',
        "'DOTS\\'",
        '1  # it isn\'t "long" DOTS',
        "[" + "1.5, " * 100 + "]",
        "[\n" + "1.5 ,\n" * 100 + "]",
        "['DOTS', \"DOTS\"]",
    ],
)
def test_dots_in_strings_comments_and_numbers_are_no_levels(value: str) -> None:
    assert parse_toml("a = " + value.replace("DOTS", "." * 100) + "\nb = 2")["b"] == 2


@pytest.mark.parametrize("text", ['a = "' * 2000, "a = '''" * 2000, 'a = """\\"""' * 2000, "#" * 10**6])
def test_quotes_that_do_not_end_take_no_time(text: str) -> None:
    if text.startswith("#"):
        assert parse_toml(text) == {}
    else:
        with pytest.raises(ValueError, match="line 1"):
            parse_toml(text)
