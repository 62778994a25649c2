"""Builds the wheel: the experiment files travel with it, and the records of their runs, compressed."""

from __future__ import annotations

import gzip
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithStudies(build_py):
    """Copies what `sfedhp.paper.packaged` looks for; a clone is used as it is."""

    def run(self) -> None:
        """Build the package, then add experiments/ and results/ of the clone."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "sfedhp", "paper")
        for folder in ("experiments", "records"):
            (target / folder).mkdir(parents=True, exist_ok=True)
        for path in sorted((ROOT / "experiments").glob("*.toml")):
            self.copy_file(str(path), str(target / "experiments" / path.name))
            records = ROOT / "results" / f"{path.stem}.jsonl"
            if records.exists():
                compressed = gzip.compress(records.read_bytes(), mtime=0)  # the same bytes at each build
                (target / "records" / f"{records.name}.gz").write_bytes(compressed)


setup(cmdclass={"build_py": BuildWithStudies})
