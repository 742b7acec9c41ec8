"""Draw docs/gallery.md's pictures: the report of every task, wide and narrow, light and dark, by a real browser.

    python docs/pictures/gallery.py [TASK …]

Needs Chromium, and what the tests need.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from typer.testing import CliRunner

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(TESTS / "reports"), str(TESTS / "cli")]

from browser import Browser  # noqa: E402
from cli_world import write_jobs  # noqa: E402

from fedspan.cli.main import app  # noqa: E402
from fedspan.jobs.tasks import TASKS  # noqa: E402

FOLDER = HERE / "gallery"
VIEWS = [(1280, False), (1280, True), (400, False), (400, True)]
TALL = 1900  # pixels of a page that are shown
SCALE = 0.4
GAP = 12


def draw(report: Path, browser: Browser, folder: Path) -> Image.Image:
    """All views of a report beside each other."""
    shots = []
    for width, dark in VIEWS:
        browser.open(report, width, dark=dark)
        browser.screenshot(folder / "shot.png", TALL)
        with Image.open(folder / "shot.png") as shot:
            size = (round(shot.width * SCALE), round(shot.height * SCALE))
            shots.append(shot.convert("RGB").resize(size, Image.Resampling.LANCZOS))
    whole = Image.new("RGB", (sum(one.width + GAP for one in shots) - GAP, max(one.height for one in shots)), "#888")
    left = 0
    for one in shots:
        whole.paste(one, (left, 0))
        left += one.width + GAP
    return whole.quantize(96, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as name, Browser(Path(name) / "profile") as browser:
        world = Path(name) / "world"
        world.mkdir()
        write_jobs(world)
        for task in sys.argv[1:] or (task for task in TASKS if (world / f"{task}.toml").exists()):
            out = world / f"{task}-run"
            done = CliRunner().invoke(app, ["run", str(world / f"{task}.toml"), "--out", str(out)])
            if done.exit_code:
                sys.exit(done.output)
            path = FOLDER / f"{task}.png"
            draw(out / "report.html", browser, Path(name)).save(path, optimize=True)
            print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
