"""What the page does in a browser: it answers, and asks for nothing."""

import json
import re
import shutil
from pathlib import Path

import pytest

from adaptask.report.run import Run, read_snapshots

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


def part(tab, name):
    return tab.locator(f'#heatmap [data-part="{name}"]')


def wait_for(locator, text):
    from playwright.sync_api import expect

    expect(locator).to_have_text(text)


def pixels(tab):
    return part(tab, "canvas").evaluate("canvas => canvas.toDataURL()")


def move_slider(tab, place):
    part(tab, "slider").evaluate(
        "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input')); }", place
    )


@browser_only
def test_the_slider_changes_picture_and_label(opened):
    assert part(opened, "step").inner_text() == "step 200"
    seen = {pixels(opened)}
    for place, step in enumerate((50, 100, 150)):
        move_slider(opened, place)
        assert part(opened, "step").inner_text() == f"step {step}"
        assert part(opened, "slider").get_attribute("aria-valuetext") == f"step {step}"
        seen.add(pixels(opened))
    assert len(seen) == 4


@browser_only
def test_a_cell_reads_what_the_snapshot_holds(opened, page):
    snapshots = read_snapshots(page.parent / "runs/gcp-1/seed-0/snapshots")
    data = json.loads(opened.locator("#heatmap-data").text_content())
    run, names = data["runs"][0], data["catalogs"][0]["names"]
    opened.locator('#heatmap input[value="all"]').check()
    canvas = part(opened, "canvas")
    canvas.scroll_into_view_if_needed()
    canvas.focus()
    for place in (0, 3):
        move_slider(opened, place)
        opened.keyboard.press("Escape")
        for _ in range(4):
            opened.keyboard.press("ArrowRight")
        opened.keyboard.press("ArrowDown")
        a, b = run["order"][1], run["order"][4]
        words = part(opened, "readout").inner_text()
        value = float(re.search(r"log potential (\d+\.\d\d)", words)[1])
        assert value == pytest.approx(snapshots[place].distribution[a, b], abs=0.01)
        for class_id in (a, b):
            assert " ".join(names[class_id].split()) in " ".join(words.split())


@browser_only
def test_pointing_at_a_cell_reads_it(opened):
    canvas = part(opened, "canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    opened.mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] / 2)
    first = part(opened, "readout").inner_text()
    assert "log potential" in first
    opened.mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] - 100)
    assert part(opened, "readout").inner_text() not in ("", first)
    assert part(opened, "lens").is_visible()
    part(opened, "zoom").click()
    assert part(opened, "zoom").inner_text() == "Back"


@browser_only
def test_tapping_a_cell_reads_it(browser, page):
    size = {"width": 360, "height": 740}
    context = browser.new_context(viewport=size, has_touch=True, is_mobile=True)
    tab = context.new_page()
    tab.goto(page.as_uri())
    canvas = part(tab, "canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.tap(position={"x": box["width"] - 5, "y": box["height"] * 0.6})
    assert "log potential" in part(tab, "readout").inner_text()
    context.close()


@browser_only
def test_the_buttons_go_through_the_tasks(opened, page):
    tasks = Run(page.parent / "runs/gcp-1/seed-0").preview.tasks
    names = json.loads(opened.locator("#heatmap-data").text_content())["catalogs"][0]["names"]
    before = pixels(opened)
    part(opened, "next").click()
    assert part(opened, "task-number").inner_text() == "task 2 of 6"
    assert pixels(opened) != before
    words = part(opened, "task-classes").inner_text()
    assert all(names[c][:20] in words for c in tasks[1])
    for _ in range(2):
        part(opened, "previous").click()
    assert part(opened, "task-number").inner_text() == "task 6 of 6"


@browser_only
def test_another_run_and_another_view_can_be_chosen(opened):
    before = pixels(opened)
    part(opened, "run").select_option("1")
    assert pixels(opened) != before
    seen = set()
    for view in ("all", "most", "task"):
        opened.locator(f'#heatmap input[value="{view}"]').check()
        seen.add(pixels(opened))
    assert len(seen) >= 2
    assert opened.locator('#heatmap input[value="task"]').is_checked()


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
def test_the_heatmap_opens_on_the_classes_of_the_marked_tasks(opened):
    assert opened.locator('#heatmap input[value="task"]').is_checked()
    assert "in view" not in part(opened, "task-classes").inner_text()


@browser_only
def test_the_heatmap_is_dark_in_dark_mode_and_light_on_paper(opened):
    def corner():
        """The color of a cell that no mark covers, the last one of the diagonal."""
        read = """canvas => {
            const copy = new OffscreenCanvas(1, 1).getContext("2d");
            copy.drawImage(canvas, 8 - canvas.width, 8 - canvas.height);
            return [...copy.getImageData(0, 0, 1, 1).data.slice(0, 3)];
        }"""
        return sum(part(opened, "canvas").evaluate(read))

    opened.emulate_media(color_scheme="light")
    light = corner()
    opened.emulate_media(color_scheme="dark")
    opened.wait_for_timeout(100)
    assert corner() < light / 2
    shown = opened.locator("#heatmap .scale i:visible")
    assert [shown.count(), shown.get_attribute("class")] == [1, "dark"]
    opened.emulate_media(color_scheme="dark", media="print")
    opened.wait_for_timeout(100)
    assert corner() == light


@browser_only
def test_a_wide_table_says_that_it_scrolls(opened):
    assert opened.locator("#table-results .scroll.wide").count() == 0
    opened.set_viewport_size({"width": 160, "height": 740})
    opened.wait_for_timeout(100)
    assert opened.locator("#table-results .scroll.wide").count() == 1


@browser_only
def test_the_contents_mark_the_section_that_is_read(opened):
    current = opened.locator("nav a[aria-current]")
    assert current.inner_text() == "Verdicts"
    opened.locator("#pairs").evaluate("heading => heading.scrollIntoView({behavior: 'instant'})")
    wait_for(current, "Pairs")


@browser_only
def test_print_hides_controls_and_shows_the_last_state(opened):
    last = part(opened, "step").inner_text()
    move_slider(opened, 0)
    opened.emulate_media(media="print")
    wait_for(part(opened, "step"), last)
    for hidden in ("slider", "next", "zoom", "readout"):
        assert not part(opened, hidden).is_visible()
    assert not opened.locator("nav").is_visible()
    assert part(opened, "canvas").is_visible()


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
    assert tab.locator('#heatmap [data-part="step"]').inner_text() == "step 200"
    tab.close()
