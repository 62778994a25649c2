"""Write the screenshots of docs/report.md: a run and a comparison in headless Chromium.

python tools/screenshots.py docs/images
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.browser import Browser, find_chromium

RUN = ["run", "rounds=20", "data.partition=dirichlet", "data.concentration=0.4"]
COMPARE = ["compare", "rounds=10", "--only", "sfedhp,hierfavg,fedavg,pfedme"]
SHOTS = {
    "report-run": ("first", 1240, 900, "light"),
    "report-phone": ("first", 360, 720, "dark"),
    "report-compare": ("methods", 1240, 860, "dark"),
}


def main() -> None:
    """Run, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("There is no chromium: install it.")
    with tempfile.TemporaryDirectory() as here:
        for words, name in ((RUN, "first"), (COMPARE, "methods")):
            command = [sys.executable, "-m", "sfedhp", *words, "--out", name]
            subprocess.run(command, cwd=here, check=True, capture_output=True)
        with Browser(chromium) as browser:
            for name, (run, width, height, scheme) in SHOTS.items():
                with browser.open(Path(here, run, "report.html"), width, scheme) as opened:
                    opened.page.set_viewport_size({"width": width, "height": height})
                    picture = Image.open(io.BytesIO(opened.page.screenshot()))
                    picture.convert("RGB").quantize(256).save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
