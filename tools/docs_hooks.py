"""What the site has beside docs/: a page per command, the Python API, and files of the repository.

MkDocs calls the functions `on_…` while it builds the site (`make docs`). Nothing that they make is
committed: the pages of commands come from their help, those of the API from the docstrings. Pages of docs/
link to other files of the repository as a code host shows them; on the site these links lead to a page with
the file.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from sfedhp.cli import COMMANDS, main
from sfedhp.core.options import help_of

ROOT = Path(__file__).parents[1]
PROJECT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
PACKAGES = {
    "sfedhp": "What most programs need.",
    "sfedhp.data": "Data sets, federations and how rows are divided.",
    "sfedhp.wire": "Models as bytes, and what they cost on a link.",
    "sfedhp.theory": "What the theorems say about settings.",
    "sfedhp.checks": "The battery that every method passes.",
    "sfedhp.paper": "The paper's tables beside ours.",
}
_COMMAND, _API = "reference/commands/{}.md", "reference/api/{}.md"
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_WIDTH = 80  # columns of a help text, as on a terminal
_LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".yml": "yaml"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of commands and packages into the navigation."""
    _fill_section(config.nav, _COMMAND.format("index"), {name: _COMMAND.format(name) for name in COMMANDS})
    _fill_section(config.nav, _API.format("index"), {name: _API.format(name) for name in PACKAGES})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and every file outside docs/ that a page links to."""
    pages = {**_command_pages(), **_api_pages()}
    texts = {_path(file.src_uri): file.content_string for file in files.documentation_pages()}
    texts |= {name: (ROOT / name).read_text(encoding="utf-8") for name in PROJECT}
    pages |= {_uri(name): texts[name] for name in PROJECT}
    linked = {target for path, text in texts.items() for target in _targets(path, text)}
    pages |= {_uri(path): _source_page(path) for path in sorted(linked) if _uri(path).startswith("source/")}
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of the repository to their pages on the site."""
    path = _path(page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri) or "."

    def lead(match: re.Match[str]) -> str:
        return posixpath.relpath(_uri(_resolve(path, match[0])), folder)

    parts = _FENCED.split(markdown)
    return "".join(part if number % 2 else _LINK.sub(lead, part) for number, part in enumerate(parts))


def _fill_section(entries: Any, index: str, pages: dict[str, str]) -> None:
    """Turn the entry of an index into a section with the index and these pages."""
    for entry in entries:
        ((title, target),) = entry.items() if isinstance(entry, dict) else (("", entry),)
        if target == index:
            entry[title] = [index, *({name: page} for name, page in pages.items())]
        elif isinstance(target, list):
            _fill_section(target, index, pages)


def _uri(path: str) -> str:
    """The place on the site of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"project/{path.lower()}" if path in PROJECT else f"source/{path}.md"


def _path(uri: str) -> str:
    """The file of the repository that a page of the site comes from, or would come from."""
    return next((name for name in PROJECT if _uri(name) == uri), f"docs/{uri}")


def _resolve(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _targets(path: str, text: str) -> Iterator[str]:
    """The files of the repository that a page links to."""
    for part in _FENCED.split(text)[::2]:
        yield from (_resolve(path, target) for target in _LINK.findall(part))


def _source_page(path: str) -> str:
    """A file of the repository as a page."""
    file = ROOT / path
    if not file.is_file():
        raise FileNotFoundError(f"A page links to {path}, and there is no such file.")
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    language = _LANGUAGES.get(file.suffix, "text")
    return f"# {path}\n\n````{language}\n{text.rstrip()}\n````\n"


def _command_pages() -> dict[str, str]:
    """A page per command, from its help, and an index."""
    rows = [f"| [`sfedhp {name}`]({name}.md) | {text} |" for name, text in COMMANDS.items()]
    index = ["# Commands", "", "| command | what it does |", "| --- | --- |", *rows]
    pages = {_COMMAND.format("index"): "\n".join(index) + "\n"}
    context = click.Context(main, info_name="sfedhp", max_content_width=_WIDTH, terminal_width=_WIDTH)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        text = "\n".join(_command_page(command, context, name, 1))
        pages[_COMMAND.format(name)] = text
    return pages


def _command_page(command: click.Command, parent: click.Context, name: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} sfedhp {context.command_path.removeprefix('sfedhp ')}\n"
    yield f"```text\n{context.get_help()}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from _command_page(found, context, each, level + 1)
    if "--help-all" in {option for each in command.get_params(context) for option in each.opts}:
        context.meta["help_all"] = True
        everything = context.get_help()
        keys = everything[everything.index("\nKeys:") :].strip("\n")
        yield f"{'#' * (level + 1)} All keys\n\n```text\n{keys}\n```\n"


def _api_pages() -> dict[str, str]:
    """A page per public package with the docstrings of its public names, and an index."""
    rows = [f"| [`{name}`]({name}.md) | {text} |" for name, text in PACKAGES.items()]
    index = ["# Python API", "", "| package | what is in it |", "| --- | --- |", *rows]
    pages = {_API.format("index"): "\n".join(index) + "\n"}
    described: dict[str, str] = {}  # the page of each name: a name of two packages is described once
    for package in PACKAGES:
        module = importlib.import_module(package)
        names = list(filter(None, (_defined_in(module, name) for name in module.__all__)))
        own = [name for name in names if described.setdefault(name, package) == package]
        other = [f"[`{name.rpartition('.')[2]}`][{name}]" for name in names if name not in own]
        lines = [f"# {package}", "", inspect.getdoc(module) or "", ""]
        lines += [f"Described elsewhere: {', '.join(other)}.", ""] if other else []
        lines += [line for name in own for line in (f"::: {name}", "", *_field_table(module, name))]
        pages[_API.format(package)] = "\n".join(lines)
    return pages


def _field_table(package: Any, name: str) -> list[str]:
    """The fields of a dataclass with their help texts, if they have some."""
    value = getattr(package, name.rpartition(".")[2])
    texts = help_of(value) if dataclasses.is_dataclass(value) else {}
    rows = [f"| `{field}` | {text.replace('|', '&#124;')} |" for field, text in texts.items()]
    return ["| field | what it is |", "| --- | --- |", *rows, ""] if rows else []


def _defined_in(package: Any, name: str) -> str:
    """The full name of a public class or function, where it is defined; constants have no docstring."""
    value = getattr(package, name)
    module = getattr(value, "__module__", "")
    if not (inspect.isclass(value) or inspect.isroutine(value)) or not module.startswith("sfedhp"):
        return ""
    return f"{module}.{value.__qualname__}"
