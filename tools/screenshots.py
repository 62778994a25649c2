"""Write the pictures of docs/report.md and docs/watch.md: a run, a comparison and a deployment in Chromium.

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

import sfedhp
from sfedhp.report.watch import watch
from tests.support.browser import Browser, Opened, find_chromium
from tests.support.deploy_processes import Fleet

RUN = ["run", "rounds=20", "data.partition=dirichlet", "data.concentration=0.4"]
COMPARE = ["compare", "rounds=10", "--only", "sfedhp,hierfavg,fedavg,pfedme"]
FEW_STEPS = sfedhp.SFedHP(edge_rounds=2)
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
                    take(opened, folder / f"{name}.png", width, height)
            deployed(browser, Path(here, "kits"), folder / "watch.png")


def deployed(browser: Browser, kits: Path, picture: Path) -> None:
    """The live page of a federation, a client of which was killed."""
    experiment = sfedhp.Experiment(
        rounds=400, edges=2, clients_per_edge=4, model=sfedhp.ModelOptions("mlr"), algorithm=FEW_STEPS
    )
    with Fleet(kits, experiment) as fleet:
        fleet.start()
        fleet.until(lambda: fleet.edge_round("edge-0") >= (20, 1))
        server = watch([kits])
        server.start()
        with browser.open(server.address, 1240) as opened:
            fleet.send("client-0-1")
            opened.page.locator("li[data-member=client-0-1]", has_text="silent").wait_for()
            take(opened, picture, 1240, 900)
        server.stop()


def take(opened: Opened, picture: Path, width: int, height: int) -> None:
    """Write what is on the screen."""
    opened.page.set_viewport_size({"width": width, "height": height})
    pixels = Image.open(io.BytesIO(opened.page.screenshot()))
    pixels.convert("RGB").quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    main()
