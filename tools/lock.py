"""Write every package of the project with its version and hash: `python tools/lock.py FILE`.

pip resolves the project with its constraints and says which files it would install. Their hashes are those of
this platform and Python version, so the file is made where it is used: `pip install --require-hashes -r FILE`
then refuses anything else.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def locked(report: dict[str, Any], project: str) -> list[str]:
    """A line for each package of pip's report but the project itself.

    Raises:
        ValueError: a package has no hash.
    """
    lines = []
    for each in report["install"]:
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        if name == project:
            continue
        digest = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is None:
            raise ValueError(f"{name} {version} has no hash")
        lines.append(f"{name.lower()}=={version} --hash=sha256:{digest}")
    return sorted(lines)


def main() -> int:
    """Resolve, and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--extras", default="", help="of the project, as ray,deploy")
    options = parser.parse_args()
    project = f"{ROOT}[{options.extras}]" if options.extras else str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "-c", str(ROOT / "constraints.txt"), project]
        subprocess.run(command, check=True)
        lines = locked(json.loads(report.read_text(encoding="utf-8")), "sfedhp")
    python = ".".join(map(str, sys.version_info[:2]))
    place = f"{platform.system()} {platform.machine()}, Python {python}"
    head = f"# {place}: sfedhp[{options.extras}], by tools/lock.py"
    options.file.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    print(f"{len(lines)} packages in {options.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
