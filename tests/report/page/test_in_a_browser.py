"""How the page looks in a browser: it fits, and asks for nothing."""

import io
import shutil
from pathlib import Path

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
browser_only = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium, chromium-browser or google-chrome on the path"
)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser, page):
    """The page in a browser; all that it says or asks for is recorded, and must be nothing."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    said, asked = [], []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    yield tab
    tab.wait_for_timeout(50)
    context.close()
    assert said == []
    outside = [url for url in asked if not url.startswith("data:")]
    assert outside == [page.as_uri()]


@browser_only
def test_a_click_selects_the_command(opened):
    opened.locator("#command").click()
    assert opened.evaluate("getSelection().toString()") == "adaptask compare --title '<b>'"


@browser_only
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_scrolls_sideways_on_a_phone(opened, scheme):
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size({"width": 360, "height": 740})
    opened.wait_for_timeout(100)
    assert opened.evaluate("document.documentElement.scrollWidth") == 360


@browser_only
def test_potentials_are_dark_in_dark_mode_and_light_on_paper(opened):
    def brightness():
        """Of the middle of the last cell of the diagonal, as it is seen, 0 to 255."""
        from PIL import Image

        image = opened.locator("#plot-potentials svg image").first
        shot = Image.open(io.BytesIO(image.screenshot())).convert("L")
        return shot.getpixel((shot.width - 4, shot.height - 4))

    opened.emulate_media(color_scheme="light")
    light = brightness()
    opened.emulate_media(color_scheme="dark")
    assert brightness() < light / 2
    opened.emulate_media(color_scheme="dark", media="print")
    assert brightness() == pytest.approx(light, abs=2)


@browser_only
def test_paper_has_the_results_and_no_contents(opened):
    assert opened.locator("nav").is_visible()
    opened.emulate_media(media="print")
    assert not opened.locator("nav").is_visible()
    assert opened.locator("#table-results").is_visible()


@browser_only
def test_the_policy_stops_what_is_not_ours(browser, page, tmp_path):
    text = page.read_text(encoding="utf-8").replace(
        "</body>", "<script>document.title = 'taken'</script></body>"
    )
    changed = Path(tmp_path / "changed.html")
    changed.write_text(text, encoding="utf-8")
    tab = browser.new_page()
    tab.goto(changed.as_uri())
    assert tab.title() == "<script>alert(0)</script> & co"
    assert tab.locator("#verdicts").is_visible()
    tab.close()
