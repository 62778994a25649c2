"""What `--help` and `--version` teach."""

from __future__ import annotations

import dataclasses
import platform
import re
import typing

import click
import numpy
import pytest
import torch

from sfedhp import __version__
from sfedhp.algorithms import ALGORITHMS
from sfedhp.bench.loop import METHODS
from sfedhp.cli import COMMANDS, main
from sfedhp.cli.help import COMMON, COMMON_OF_METHOD
from sfedhp.config import SECTIONS, Experiment, tables_of
from sfedhp.core.options import help_of
from sfedhp.data.registry import IMAGE_SETS
from sfedhp.nn.presets import MODELS
from sfedhp.paper.studies import MORE
from sfedhp.wire.cost import LinksOptions


def test_the_version(sfedhp):
    first, libraries, machine = sfedhp("--version").stdout.splitlines()
    assert first == f"sfedhp, version {__version__}"
    assert f"torch {torch.__version__}, numpy {numpy.__version__}, safetensors " in libraries
    assert libraries.startswith(f"Python {platform.python_version()}")
    assert machine == platform.platform()


def test_the_help_lists_the_commands(sfedhp):
    result = sfedhp("--help")
    assert result.exit_code == 0
    for name, text in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(text)}$", result.stdout, re.MULTILINE)
    assert main.list_commands(click.Context(main)) == list(COMMANDS)


@pytest.mark.parametrize("words", [[name] for name in COMMANDS] + [["data", "show"]])
def test_each_command_teaches_with_examples(sfedhp, words):
    result = sfedhp(*words, "--help")
    assert result.exit_code == 0
    assert f"Usage: sfedhp {' '.join(words)}" in result.stdout
    assert "Example" in result.stdout
    assert f"  sfedhp {' '.join(words)}" in result.stdout


def test_every_key_is_listed_with_its_default_and_its_help_text(sfedhp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "112")
    text = sfedhp("run", "--help-all").stdout
    flowing = "".join(text.split())  # words with a hyphen may be broken at it
    within = {f"links.{name}": kind for name, kind in tables_of(LinksOptions).items()}
    assert len(within) == 3
    sections = {"": Experiment, **SECTIONS, **within, **ALGORITHMS}
    for section, kind in sections.items():
        prefix = "algorithm." if section in ALGORITHMS else f"{section}." if section else ""
        for option in dataclasses.fields(kind):
            if option.name in tables_of(kind):
                continue
            default = "…" if option.default is None else option.default
            default = str(default).lower() if isinstance(default, bool) else default
            entry = f"{prefix}{option.name}={default}{help_of(kind)[option.name]}"
            assert "".join(entry.split()) in flowing, entry
    for name in ALGORITHMS:
        assert f"Keys of [algorithm] for {name}:" in text
    assert f"Keys of [links.client_edge]:\n  {help_of(LinksOptions)['client_edge']}\n" in text


@pytest.mark.parametrize("command", ["run", "check"])
def test_every_choice_is_listed(sfedhp, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "112")
    flowing = "".join(sfedhp(command, "--help-all").stdout.split())
    sections = {**SECTIONS, "": Experiment, "links.client_edge": tables_of(LinksOptions)["client_edge"]}
    listed = 0
    for section, kind in (sections | ALGORITHMS).items():
        prefix = "algorithm." if section in ALGORITHMS else f"{section}." if section else ""
        hints = typing.get_type_hints(kind)
        for option in dataclasses.fields(kind):
            if typing.get_origin(hints[option.name]) is typing.Literal:
                choices = ", ".join(typing.get_args(hints[option.name]))
                text = f"{help_of(kind)[option.name]}; one of {choices}"
                entry = f"{prefix}{option.name}={option.default}{text}"
                assert "".join(entry.split()) in flowing, entry
                listed += 1
    assert listed >= 17
    for entry in (
        "data.partition=autohowrowsaredividedamongclients",
        ";oneofauto,paper,paper-as-written,dirichlet,nested-dirichlet,shards,iid,given,pfllib",
        "dtype=float32typeofweightsandinputs;oneoffloat32,float64",
        ";oneofexact,float32,float16,bfloat16,int8",
        ";oneofanchor,carried",
    ):
        assert entry in flowing


@pytest.mark.parametrize("command", ["run", "check"])
def test_the_short_help_lists_the_common_keys_and_says_how_to_list_all(sfedhp, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "112")
    text, everything = sfedhp(command, "--help").stdout, sfedhp(command, "--help-all").stdout
    listed = re.findall(r"^  ([a-z_.]+)=", text, re.MULTILINE)
    assert listed == [*COMMON, "algorithm.name", *COMMON_OF_METHOD]
    assert 12 <= len(listed) <= 16
    assert f"`sfedhp {command} --help-all` lists all keys" in text
    # A common key has the same line in both, and both have the same usage, options and examples.
    for key in COMMON:
        (line,) = re.findall(rf"^  {re.escape(key)}=\S+ .*$", text, re.MULTILINE)
        assert " ".join(line.split()) in " ".join(everything.split())
    assert everything.startswith(text.partition("Common keys:")[0])
    assert len(everything.splitlines()) > 3 * len(text.splitlines())


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["compare"], [*ALGORITHMS]),
        (["bench"], [*METHODS, *MODELS]),
        (["data", "get"], [*IMAGE_SETS]),
        (["reproduce"], [*MORE]),
    ],
)
def test_what_can_be_chosen_is_named(sfedhp, monkeypatch, words, names):
    monkeypatch.setenv("COLUMNS", "112")
    flowing = "".join(sfedhp(*words, "--help").stdout.split())
    listed = [set(part.split(",")) for part in re.findall(r"(?:,of|isoneof|file:)([\w,-]+)[;.]", flowing)]
    assert set().union(*listed) == set(names)


@pytest.mark.parametrize(("command", "default"), [("provision", "kits]"), ("deploy", "runs/deploy-")])
def test_help_names_the_default_folder_of_kits(sfedhp, command, default):
    assert re.search(
        rf"Thefolderofthekits.*default.*{re.escape(default)}",
        "".join(sfedhp(command, "--help").stdout.split()),
    )
