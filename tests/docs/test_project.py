"""The files about the project itself: metadata, citation, workflows, community pages."""

from __future__ import annotations

import re
import subprocess
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import sfedhp
from tests.support.paths import ROOT
from tests.support.tools import load_tool

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ["3.11", "3.12", "3.13"]
YAML = [ROOT / "CITATION.cff", ROOT / ".pre-commit-config.yaml", *sorted((ROOT / ".github").rglob("*.yml"))]


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_files_can_be_read(path: Path) -> None:
    assert isinstance(read_yaml(path), dict)


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert read_yaml(ROOT / "CITATION.cff")["version"] == sfedhp.__version__
    for name in load_tool("release").IMAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert set(re.findall(r"sfedhp:(\d+\.\d+\.\d+)", text)) == {sfedhp.__version__}, name


def test_the_workflow_tests_every_python_that_is_promised() -> None:
    workflow = read_yaml(ROOT / ".github" / "workflows" / "test.yml")
    job = workflow["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    assert {name.split("-")[0] for name in job["strategy"]["matrix"]["os"]} == {"ubuntu", "macos"}
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test"]
    versions = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"]
    ]
    assert [found[1] for found in versions if found] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_the_lowest_versions_that_are_promised_are_tested() -> None:
    promised = dict(line.split(">=") for line in PROJECT["dependencies"])
    tested = dict(
        line.split("==") for line in (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").split()
    )
    assert tested.keys() == promised.keys()
    for name, version in promised.items():
        assert f"{tested[name]}.0".startswith(f"{version}.") or tested[name] == version
    for path in (ROOT / "tests" / "lowest.txt").read_text(encoding="utf-8").split():
        assert (ROOT / path).exists(), path
    jobs = read_yaml(ROOT / ".github" / "workflows" / "test.yml")["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    wanted = {"test": "make test", "package": "make dist", "lowest": "make test-lowest"}
    wanted |= {"siege": "make test-siege", "audit": "make audit sbom"}
    assert commands == {name: [command] for name, command in wanted.items()}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
    assert {"test-lowest", "test-siege", "audit", "sbom", "dist", "release"} <= set(targets)


def test_the_locked_packages_are_those_of_the_constraints() -> None:
    """`make lock` writes the file anew; what is locked may not be older than what is tested."""
    lines = (ROOT / "requirements-linux-x86_64.lock").read_text(encoding="utf-8").splitlines()
    head, *packages = lines
    assert head == "# Linux x86_64, Python 3.11: sfedhp[deploy], by tools/lock.py"
    found = [re.fullmatch(r"([\w.-]+)==([\w.+]+) --hash=sha256:[0-9a-f]{64}", line) for line in packages]
    locked = {each[1].replace("_", "-"): each[2].partition("+")[0] for each in found if each}
    assert len(locked) == len(packages)
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    assert {name: version for name, version in locked.items() if pinned.get(name, version) != version} == {}
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["deploy"]]
    assert {re.split("[>=]", each)[0] for each in wanted} <= locked.keys()


def test_a_package_without_a_hash_is_not_locked() -> None:
    tool = load_tool("lock")

    def entry(name: str, **archive: object) -> dict[str, object]:
        return {"metadata": {"name": name, "version": "1.2"}, "download_info": archive}

    torch = entry("Torch", archive_info={"hashes": {"sha256": "ab"}})
    lines = tool.locked({"install": [torch, entry("sfedhp")]}, "sfedhp")
    assert lines == ["torch==1.2 --hash=sha256:ab"]
    with pytest.raises(ValueError, match=r"numpy 1\.2 has no hash"):
        tool.locked({"install": [entry("numpy", archive_info={"hashes": {}})]}, "sfedhp")


def test_a_release_changes_version_citation_and_changelog() -> None:
    tool = load_tool("release")
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in tool.CHANGED}
    changed = tool.changed_files(texts, "7.0.0", date(2030, 1, 2))
    assert '__version__ = "7.0.0"' in changed["sfedhp/_version.py"]
    assert changed.keys() == set(tool.CHANGED)
    assert all(re.findall(r"sfedhp:([\d.]+\d)", changed[name]) == ["7.0.0"] for name in tool.IMAGES)
    assert yaml.safe_load(changed["CITATION.cff"])["version"] == "7.0.0"
    assert yaml.safe_load(changed["CITATION.cff"])["date-released"] == date(2030, 1, 2)
    log = changed["CHANGELOG.md"]
    assert "## [Unreleased]\n\n## [7.0.0] - 2030-01-02\n" in log
    assert tool.notes_of(log) == tool.notes_of(texts["CHANGELOG.md"]).partition("first release.")[2].strip()
    again = changed | {"CHANGELOG.md": log.replace("## [Unreleased]", "## [Unreleased]\n\n- More.")}
    assert tool.notes_of(again["CHANGELOG.md"]) == "- More."
    assert tool.changed_files(again, "7.0.1", date(2030, 1, 3))["CITATION.cff"].count("date-released") == 1
    for version, why in (("7", "is no version"), ("7.0.0", "not after 7.0.0"), ("6.9.9", "not after")):
        with pytest.raises(ValueError, match=why):
            tool.changed_files(again, version, date(2030, 1, 3))
    with pytest.raises(ValueError, match=r"nothing under ## \[Unreleased\]"):
        tool.changed_files(changed, "7.0.1", date(2030, 1, 3))


def test_a_lock_has_a_hash_for_every_package() -> None:
    def package(name: str, **info: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "version": "1.0"}, "download_info": info}

    hashed = package("Torch", archive_info={"hashes": {"sha256": "ab"}})
    lock = load_tool("lock")
    assert lock.locked({"install": [package("sfedhp"), hashed]}, "sfedhp") == ["torch==1.0 --hash=sha256:ab"]
    with pytest.raises(ValueError, match=r"other 1\.0 has no hash"):
        lock.locked({"install": [package("other")]}, "sfedhp")


def test_the_project_says_who_and_where() -> None:
    assert PROJECT["authors"]
    assert all(address.startswith("https://") for address in PROJECT["urls"].values())
    (reference,) = read_yaml(ROOT / "CITATION.cff")["references"]
    assert PROJECT["urls"]["Paper"] == reference["url"]


@pytest.mark.parametrize("tool", ["ruff", "mypy"])
def test_lint_tools_are_pinned(tool: str) -> None:
    (pin,) = [each for each in PROJECT["optional-dependencies"]["dev"] if re.match(rf"{tool}\b", each)]
    assert re.fullmatch(rf"{tool}==[\d.]+", pin)


def test_what_make_installs_is_pinned() -> None:
    extras = PROJECT["optional-dependencies"].values()
    needed = [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = [pin.partition("==")[0] for pin in pins]
    assert all(re.fullmatch(r"[a-z-]+==[\w.]+", pin) for pin in pins)
    assert len(set(pinned)) == len(pinned)
    loose = {re.split(r"[>;\[]", each)[0].lower() for each in needed if "==" not in each.partition(";")[0]}
    assert loose <= set(pinned)


def commands_of(target: str) -> list[str]:
    """What `make` runs for a target in a fresh clone."""
    dry = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    return subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_demo_installs_the_package_alone_and_the_tests_all_extras() -> None:
    installs = [line.split(" -e ")[1] for line in commands_of("demo") if " install " in line]
    assert installs == ["."]
    *_, last = [line.split(" -e ")[1] for line in commands_of("test") if " install " in line]
    extras = re.findall(r"[\w-]+", last)
    assert set(PROJECT["optional-dependencies"]) - set(extras) == {"report"}  # dev has it


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in folder.glob("0*.md"))
    assert re.findall(r"\((0\d+[\w-]+\.md)\)", index) == pages
    for number, name in enumerate(pages, start=1):
        head = (folder / name).read_text(encoding="utf-8").splitlines()[0]
        assert name.startswith(f"{number:04}-")
        assert head.startswith(f"# {number}. ")
