"""Opens a report of `vllm-apple verify` in a real browser, without a network, and looks at it as a reader does. Not part of tools/test.sh.

    vllm-apple verify --report DIR
    python -m venv .venv && .venv/bin/pip install playwright==1.65.2 && .venv/bin/playwright install chromium
    .venv/bin/python tools/test-report.py DIR [--chromium /usr/bin/chromium] [--screenshots DIR]

Checked at three widths, in light and in dark: nothing is fetched, no script or style fails, every line of report.json is there, every plot is drawn
inside of its frame, the page does not scroll sideways, no heading of a table is broken, and text has a contrast of at least 4.5 (WCAG AA).
"""

import argparse
import json
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

WIDTHS = [390, 820, 1280]
CONTRAST = 4.5

# Of every element with text of its own, the contrast with what is behind it.
LEAST_CONTRAST = """() => {
  const parse = (c) => { const n = c.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const luminance = ([r, g, b]) => {
    const f = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] > 0) return c;
    }
    return [255, 255, 255, 1];
  };
  let least = [99, ""];
  for (const e of document.body.querySelectorAll("*")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.tagName === "title") continue;
    const style = getComputedStyle(e);
    const [a, b] = [luminance(parse(e instanceof SVGElement ? style.fill : style.color)), luminance(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < least[0]) least = [contrast, e.tagName + ": " + e.textContent.slice(0, 40)];
  }
  return least;
}"""

# Shapes and texts of plots that leave their frame.
OUTSIDE = """() => [...document.querySelectorAll("svg")].flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  const leaves = (r) => r.left < frame.left - 1 || r.right > frame.right + 1 || r.top < frame.top - 1 || r.bottom > frame.bottom + 1;
  return [...svg.querySelectorAll("polyline, circle, text")].filter((e) => leaves(e.getBoundingClientRect())).map((e) => e.outerHTML.slice(0, 120));
})"""

# Headings of tables, each a word, that take more than a line.
BROKEN = """() => [...document.querySelectorAll("thead th")].filter((e) => {
  const range = document.createRange();
  range.selectNodeContents(e);
  return new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1;
}).map((e) => e.textContent)"""


def check(page: Page, report: dict) -> list[str]:
    """What is wrong with the page."""
    faults = []
    lines = sum(len(section["lines"]) for section in report["sections"])
    plots = [plot for section in report["sections"] for plot in section["plots"]]
    drawn = [plot for plot in plots if any(series["points"] for series in plot["series"])]
    for what, selector, expected in [
        ("lines", "section tbody tr", lines),
        ("sections", "section", len(report["sections"])),
        ("plots", "svg", len(drawn)),
        ("series", "svg g", sum(len(plot["series"]) for plot in drawn)),
    ]:
        found = page.locator(selector).count()
        if found != expected:
            faults.append(f"{found} {what} instead of {expected}")
    faults += [f"outside of its frame: {what}" for what in page.evaluate(OUTSIDE)]
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if wide > 0:
        faults.append(f"scrolls sideways by {wide} pixels")
    faults += [f"a heading is broken: {what}" for what in page.evaluate(BROKEN)]
    contrast, where = page.evaluate(LEAST_CONTRAST)
    if contrast < CONTRAST:
        faults.append(f"contrast {contrast:.2f}: {where}")
    for link in page.locator("nav a").all():
        target = link.get_attribute("href")
        if page.locator(f"section{target}").count() != 1:
            faults.append(f"a link to {target}, which is not there")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("report", type=Path, metavar="DIR")
    parser.add_argument("--chromium", help="the browser's program (default: playwright's own)")
    parser.add_argument("--screenshots", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    report = json.loads((arguments.report / "report.json").read_text())
    url = (arguments.report / "report.html").resolve().as_uri()
    faults = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=arguments.chromium)
        for scheme in ["light", "dark"]:
            for width in WIDTHS:
                context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True)
                page = context.new_page()
                where = f"{scheme}, {width} pixels"
                page.on("console", lambda message, where=where: faults.append(f"{where}: console: {message.text}"))
                page.on("pageerror", lambda error, where=where: faults.append(f"{where}: error: {error}"))
                page.on("request", lambda request, where=where: request.url == url or faults.append(f"{where}: fetches {request.url}"))
                page.goto(url)
                faults += [f"{where}: {fault}" for fault in check(page, report)]
                if arguments.screenshots:
                    arguments.screenshots.mkdir(parents=True, exist_ok=True)
                    page.screenshot(path=arguments.screenshots / f"{scheme}-{width}.png", full_page=True)
                context.close()
        version = browser.version
        browser.close()
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"Chromium {version}, {2 * len(WIDTHS)} views: " + (f"{len(faults)} faults" if faults else "nothing is wrong"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
