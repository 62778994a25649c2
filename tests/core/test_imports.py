"""A user's own code by name, and its errors as one sentence."""

import pytest

from sfedhp.core.errors import InputError
from sfedhp.core.imports import import_named, is_import, reason_of, user_code, what_to_name


def test_an_object_is_imported_by_its_name():
    assert is_import("math:sqrt")
    assert not is_import("fedavg")
    assert import_named("loss.name", "math:sqrt")(4.0) == 2.0


@pytest.mark.parametrize(
    ("name", "reason", "remedy"),
    [
        (
            "no_such_module:f",
            "ModuleNotFoundError",
            ": start the command where no_such_module.py is, or name its folder in PYTHONPATH",
        ),
        (":f", "ValueError", ""),
    ],
)
def test_what_cannot_be_imported_is_refused(name, reason, remedy):
    message = rf"^loss\.name = '{name}' cannot be imported \({reason}: .*\){remedy}\.$"
    with pytest.raises(InputError, match=message):
        import_named("loss.name", name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("math:sqr", r"has no sqr: did you mean math:sqrt\?"),
        ("math:p", r"has no p: correct the name\."),  # `pi` is near, but it is no function
    ],
)
def test_a_name_that_a_module_does_not_have_is_refused_with_the_nearest(name, hint):
    with pytest.raises(InputError, match=rf"^loss\.name = '{name}' cannot be imported, because math {hint}$"):
        import_named("loss.name", name)


def test_a_dot_in_place_of_the_colon():
    written = "write package.module:Name, with a colon before the name in the module."
    assert what_to_name("package.module.Name", ["mlr"], "use mlr.") == written
    assert what_to_name("mrl", ["mlr"], "use mlr.") == "did you mean mlr?"
    assert what_to_name("Name", ["mlr"], "use mlr.") == "use mlr."


def test_an_error_of_a_users_code_becomes_a_sentence():
    message = r"^The model fails \(KeyError: 'rows'\): fix it\.$"
    with pytest.raises(InputError, match=message), user_code("The model fails", "fix it"):
        raise KeyError("rows")


def test_a_sentence_of_the_code_itself_passes():
    with pytest.raises(InputError, match=r"^Give rows\.$"), user_code("The model fails"):
        raise InputError("Give rows.")


def test_a_reason_is_one_line():
    assert reason_of(ValueError("first.\nsecond")) == "ValueError: first"
    assert reason_of(ValueError()) == "ValueError"
