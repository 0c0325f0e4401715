"""The site builds without a warning, is complete in itself, and holds the public API."""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from adaptask.registry import LEARNERS, SAMPLERS

ROOT = Path(__file__).parents[1]
NEEDED = [
    name for name in ("mkdocs", "material", "mkdocstrings") if not importlib.util.find_spec(name)
]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
PACKAGES = ("samplers", "learners", "backbones", "data", "training", "conformance")

pytestmark = [
    pytest.mark.skipif(bool(NEEDED), reason=f"{', '.join(NEEDED)} not installed: extra `docs`"),
    pytest.mark.xdist_group("site"),  # built once
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


class Loaded(HTMLParser):
    """Collects what a page loads by itself, and the formulas on it."""

    def __init__(self, page):
        super().__init__()
        self.addresses, self.n_formulas, self.ids = [], 0, set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.add(given.get("id"))
        if tag in ("script", "img", "iframe", "source"):
            self.addresses.append(given.get("src"))
        if tag == "link" and given.get("rel") != "canonical":
            self.addresses.append(given.get("href"))
        self.n_formulas += tag == "svg" and given.get("role") == "img"


def test_every_page_is_built_with_its_formulas(site):
    for page in (ROOT / "docs").rglob("*.md"):
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        blocks = re.findall(r"^```math\n(.*?)^```$", page.read_text(), flags=re.M | re.S)
        expected = sum(len(block.strip().splitlines()) for block in blocks)
        assert Loaded(built).n_formulas == expected, page.name


def test_no_page_loads_anything_from_elsewhere(site):
    for page in site.rglob("*.html"):
        for address in Loaded(page).addresses:
            assert not (address or "").startswith(("http:", "https:", "//")), page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.parametrize("name", PACKAGES)
def test_everything_public_is_in_the_api(site, name):
    package = importlib.import_module(f"adaptask.{name}")
    ids = Loaded(site / "api" / f"{name}.html").ids
    missing = [member for member in package.__all__ if f"adaptask.{name}.{member}" not in ids]
    assert not missing


def part_of_the_site(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("registry", [SAMPLERS, LEARNERS], ids=lambda registry: registry.kind)
def test_every_algorithm_is_in_the_navigation_and_in_the_overview(site, registry):
    folder = f"{registry.kind}s"
    overview = (site / folder / "index.html").read_text().partition("<article")[2]
    home = (site / "index.html").read_text()
    for name in map(quote, registry):
        assert f'href="{name}.html"' in overview
        assert f'href="{folder}/{name}.html"' in home


def test_doctests_come_out_as_code_and_the_rest_as_it_was():
    fenced = part_of_the_site("docstrings").fenced
    text = "Add.\n\n>>> x = (\n...     1\n... )\n>>> x\n1\n\nMore.\n\n>>> 2\n2"
    first = "```pycon\n>>> x = (\n...     1\n... )\n>>> x\n1\n```\n"
    assert fenced(text) == f"Add.\n\n{first}\nMore.\n\n```pycon\n>>> 2\n2\n```\n"
    assert fenced("Nothing to run: a >>> b.") == "Nothing to run: a >>> b."


def test_a_formula_is_drawn_as_wide_as_it_is_long_and_a_bad_one_is_refused():
    picture = part_of_the_site("formulas").picture
    widths = [float(re.search(r"width:([\d.]+)em", picture(f))[1]) for f in ("x", "x + x + x < y")]
    assert 0.3 < widths[0] < 1 < 5 < widths[1] < 10
    assert 'aria-label="x &lt; y"' in picture("x < y")
    with pytest.raises(ValueError, match="nosuch"):
        picture(r"\nosuch{x}")


@pytest.mark.skipif(CHROMIUM is None, reason=f"none of {', '.join(BROWSERS)} on the path")
def test_search_finds_pages_that_are_opened_from_disk_and_asks_for_nothing(site):
    sync_api = pytest.importorskip("playwright.sync_api")
    complaints = []
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url[: request.url.find(":")]))
        page.goto((site / "learners" / "maml.html").as_uri())
        page.locator(".md-search__input").click()
        page.locator(".md-search__input").press_sequentially("importance weight")
        found = page.locator(".md-search-result__link")
        found.first.wait_for(timeout=20_000)
        addresses = [link.get_attribute("href") for link in found.all()]
        browser.close()
    assert any("api/samplers.html" in address for address in addresses)
    assert set(complaints) <= {"file", "data", "blob"}
