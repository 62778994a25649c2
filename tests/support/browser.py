"""Pages in a real Chromium without a window: what they show, log and ask for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from playwright.sync_api import Page, sync_playwright

SCREENS = [(360, "light"), (360, "dark"), (1440, "light"), (1440, "dark")]

# The lowest contrast of a text with what is behind it: a box of the page, or of a chart.
_CONTRAST = """
() => {
  const rgba = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ratio = (one, other) => {
    const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = rgba(getComputedStyle(each).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const panel = rgba(getComputedStyle(document.querySelector(".theme")).backgroundColor);
  let least = [21, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    const chart = element.closest("svg");
    const style = getComputedStyle(element);
    const color = rgba(chart ? style.fill : style.color);
    const grounds = chart ? [panel, behind(chart)] : [behind(element)];
    for (const ground of grounds) {
      const found = ratio(color, ground);
      if (found < least[0]) least = [found, `${element.getAttribute("class")}: ${element.textContent}`];
    }
  }
  return least;
}
"""


_CHART_TEXT = """
() => {
  const texts = [...document.querySelectorAll("svg.chart text")].filter((text) => text.checkVisibility());
  const sizes = texts.map((text) => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a);
  return [Math.min(...sizes), Math.max(...sizes)];
}
"""

EVIL = "evil.example"  # a name of somebody else that leads to this machine
_NAMES = f"MAP {EVIL} 127.0.0.1"
_TIMEOUT = 300_000.0  # ms; a busy machine is no failure


def find_chromium() -> str | None:
    """The Chromium of this machine, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


class Opened:
    """A page in a tab, with what it logged and asked for."""

    def __init__(self, page: Page):
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on(
            "console", lambda message: self.errors.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    @property
    def tip(self) -> list[str]:
        """The lines of the tip that is shown; none where there is no tip."""
        tip = self.page.locator("#tip")
        return tip.inner_text().splitlines() if tip.is_visible() else []

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return wide

    @property
    def chart_text(self) -> tuple[float, float]:
        """The smallest and the largest text of the charts, in pixels of the screen."""
        least, most = self.page.evaluate(_CHART_TEXT)
        return float(least), float(most)

    @property
    def contrast(self) -> tuple[float, str]:
        """The lowest contrast of a text, and which text it is."""
        least: list[Any] = self.page.evaluate(_CONTRAST)
        return float(least[0]), str(least[1])

    def column(self, table: str, number: int) -> list[str]:
        """The texts of a column of a table, from the top."""
        cells = self.page.locator(f"#{table} tbody tr td:nth-child({number})")
        return [text.strip() for text in cells.all_inner_texts()]


class Browser:
    """A Chromium, until the block ends."""

    def __init__(self, path: str):
        self._path = path

    def __enter__(self) -> Self:
        self._driver = sync_playwright().start()
        # Root, as in a container, has no sandbox.
        self._chromium = self._driver.chromium.launch(
            executable_path=self._path,
            timeout=_TIMEOUT,
            chromium_sandbox=False,
            args=["--disable-gpu", "--disable-background-networking", f"--host-resolver-rules={_NAMES}"],
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._chromium.close()
        self._driver.stop()

    @contextmanager
    def open(
        self, target: Path | str, width: int = 1440, scheme: Any = "light", *, touch: bool = False
    ) -> Iterator[Opened]:
        """A page of a file or an address, in a screen of this width; with `touch`, one for fingers."""
        page = self._chromium.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=touch
        )
        try:
            page.set_default_timeout(_TIMEOUT)
            opened = Opened(page)
            page.goto(target.as_uri() if isinstance(target, Path) else target)
            yield opened
        finally:
            page.close()
