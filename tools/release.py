"""Make a release: `make release VERSION=0.2.0` calls this after the tests have passed.

It sets the version, dates the changelog, builds and checks what is published (dist/: the wheel, the source
distribution, the site, the notes), and makes a commit and a tag. Nothing leaves the machine before
`git push --follow-tags`; then .github/workflows/release.yml publishes the same files, built anew.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ("Dockerfile", "docs/deployment.md")  # they name the image of a version
CHANGED = ("sfedhp/_version.py", "CITATION.cff", "CHANGELOG.md", *IMAGES)
UNRELEASED = "## [Unreleased]"
DIST = ROOT / "dist"


def main() -> None:
    """Make the release, or only write what a release of this version publishes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", nargs="?", help="the new version, as 0.2.0")
    parser.add_argument("--only-build", action="store_true", help="build and check; change no file")
    given = parser.parse_args()
    try:
        if given.only_build:
            build(notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
        else:
            release(given.version or "")
    except ValueError as error:
        sys.exit(f"error: {error}")


def release(version: str) -> None:
    """Change the files, build, check, commit and tag; a failure leaves the files as they were.

    Raises:
        ValueError: this version cannot be released from here.
    """
    if run("git", "status", "--porcelain"):
        raise ValueError("there are changes: commit them first.")
    if run("git", "tag", "--list", f"v{version}"):
        raise ValueError(f"there is a tag v{version}: choose another version.")
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in CHANGED}
    changed = changed_files(texts, version, datetime.now(UTC).date())
    notes = notes_of(changed["CHANGELOG.md"])
    try:
        write(changed)
        build(notes)
    except BaseException:
        write(texts)
        raise
    run("git", "commit", "--quiet", "--message", f"Release {version}", *CHANGED)
    run("git", "tag", "--annotate", "--cleanup=verbatim", "--message", notes, f"v{version}")
    print(f"v{version} is tagged, and dist/ has what it publishes. Publish it: git push --follow-tags")


def changed_files(texts: dict[str, str], version: str, today: date) -> dict[str, str]:
    """The files of `CHANGED` for a version.

    Args:
        texts: as they are.
        version: to be released.
        today: its date.

    Raises:
        ValueError: it is no version, or not after the last one, or nothing has changed since.
    """
    log = texts["CHANGELOG.md"]
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", log, re.MULTILINE)
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"{version!r} is no version: write for example 0.2.0.")
    if released and numbers(version) <= numbers(released[0]):
        raise ValueError(f"{version} is not after {released[0]}, the last release.")
    if UNRELEASED not in log or not sections_of(log)[0]:
        raise ValueError(f"CHANGELOG.md has nothing under {UNRELEASED}: say there what has changed.")
    log = re.sub(r"^This will be version [^\n]*\n\n", "", log, flags=re.MULTILINE)
    citation = re.sub(r"^date-released: .*\n", "", texts["CITATION.cff"], flags=re.MULTILINE)
    return {
        "CHANGELOG.md": log.replace(UNRELEASED, f"{UNRELEASED}\n\n## [{version}] - {today}", 1),
        "CITATION.cff": re.sub(
            r"^version: .*$", f"version: {version}\ndate-released: {today}", citation, flags=re.MULTILINE
        ),
        "sfedhp/_version.py": re.sub(r'"[\d.]+"', f'"{version}"', texts["sfedhp/_version.py"]),
        **{name: re.sub(r"\bsfedhp:\d+\.\d+\.\d+", f"sfedhp:{version}", texts[name]) for name in IMAGES},
    }


def notes_of(log: str) -> str:
    """What the first section of a changelog that has entries says; empty where none has."""
    return next(filter(None, sections_of(log)), "")


def sections_of(log: str) -> list[str]:
    """The sections of a changelog, the newest first."""
    return [section.strip() for section in re.split(r"^## \[.*$", log, flags=re.MULTILINE)[1:]]


def numbers(version: str) -> tuple[int, ...]:
    """A version in an order."""
    return tuple(int(part) for part in version.split("."))


def build(notes: str) -> None:
    """Write the wheel, the source distribution, the site and the notes to dist/, and check them."""
    shutil.rmtree(DIST, ignore_errors=True)
    python = sys.executable
    run(python, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT))
    run(python, "-m", "twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    run(python, "-m", "mkdocs", "build", "--strict")
    shutil.make_archive(str(DIST / "sfedhp-docs"), "gztar", ROOT, "site")
    (DIST / "notes.md").write_text(f"{notes}\n", encoding="utf-8")


def write(texts: dict[str, str]) -> None:
    """Write the files of `CHANGED`."""
    for name, text in texts.items():
        (ROOT / name).write_text(text, encoding="utf-8")


def run(*words: str) -> str:
    """What a command prints.

    Raises:
        ValueError: it failed.
    """
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"`{' '.join(words)}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
