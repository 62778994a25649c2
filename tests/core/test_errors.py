"""The hint on an unknown name."""

from sfedhp.core.errors import did_you_mean


def test_case_does_not_matter():
    assert did_you_mean("AGE", ["sex", "age"], "leave it out.") == "did you mean age?"
    assert did_you_mean("age", ["SEX", "AGE"], "leave it out.") == "did you mean AGE?"


def test_the_nearest_known_name_is_asked_about_as_the_message_writes_it():
    assert did_you_mean("ronds", ["seed", "rounds"], "leave it out.") == "did you mean rounds?"
    assert did_you_mean("ronds", ["seed", "rounds"], "leave it out.", repr) == "did you mean 'rounds'?"


def test_without_a_near_name_there_is_a_remedy():
    assert did_you_mean("xyz", ["seed", "rounds"], "leave it out.") == "leave it out."
    assert did_you_mean("xyz", [], "leave it out.") == "leave it out."
