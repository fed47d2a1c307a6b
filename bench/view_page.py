"""Time to open a page in a browser, and smoothness of its movements: `python bench/view_page.py [--nodes 50000]`.

Headless Chromium opens a file with one graph of the given size. Times are from the start of loading, in seconds; frames
are those that the browser drew while the graph was moved, together with the longest gap between two of them.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from browser import Browser
from view_pages import Model, comparison, write_page

NODES_OF_A_LAYER = 64

FRAMES = """
const done = arguments[arguments.length - 1], act = new Function("part", arguments[0]), gaps = [];
let last = performance.now(); const began = last;
const frame = (now) => {
  gaps.push(now - last); last = now;
  if (now - began > 2000) {
    gaps.shift(); done([gaps.length / 2, Math.max(...gaps)]); return;
  }
  act((now - began) / 2000);
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
"""
WHEEL = """const at = document.querySelector(".react-flow__pane").getBoundingClientRect();
document.querySelector(".react-flow__pane").dispatchEvent(new WheelEvent("wheel",
  {deltaY: part < 0.5 ? 40 : -40, clientX: at.x + 300, clientY: at.y + 300, bubbles: true, cancelable: true}));"""
SCROLL = 'const rows = document.querySelector(".rows"); rows.scrollTop = part * rows.scrollHeight;'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=50_000)
    nodes = parser.parse_args().nodes
    with tempfile.TemporaryDirectory() as directory:
        layers = max(1, nodes // NODES_OF_A_LAYER)
        data = comparison(Model(layers=layers, fault=layers // 2))
        page = write_page(Path(directory) / "page.html", data)
        print(f"{len(data['units'][0]['graph']['name'])} nodes, file of {page.stat().st_size / 1e6:.1f} MB")
        with Browser() as browser:
            browser.open(page)
            print(f"verdict on the screen after {browser.run('return window.msprobeReady / 1000'):.2f} s")

            def timed(what: str, act) -> None:
                began = time.perf_counter()
                act()
                browser.run_async("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")
                print(f"{what}: {time.perf_counter() - began:.2f} s")

            timed(
                "jump to the culprit in the graph", lambda: (browser.click("jump-1"), browser.wait_for(".box.chosen"))
            )
            timed("search", lambda: browser.search("down_proj 77"))
            browser.keys("\ue00c", "\ue00c")  # Escape
            timed("next difference", lambda: browser.keys("n"))
            timed("side by side", lambda: (browser.keys("s"), browser.wait_for(".pane-golden .box")))
            for what, act in (("graph", WHEEL), ("outline", SCROLL)):
                rate, gap = browser.run_async(FRAMES, act)
                print(f"moving the {what}: {rate:.0f} frames a second, the longest gap {gap:.0f} ms")


if __name__ == "__main__":
    main()
