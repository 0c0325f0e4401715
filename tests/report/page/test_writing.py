"""The page as a whole: what is on it, what is left out, and that nothing in it can run."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from adaptask.errors import TrainingError
from adaptask.report.page.writing import script_json, write_report
from adaptask.report.records import ForgivingRecord, RunRecord
from adaptask.report.study import Arm, PlannedRun, Study
from adaptask.report.table import Cell, Table

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    '" onmouseover="alert(3)',
    "' & \u2028 `${alert(4)}` $x$",
    "\u202eكلب",
    "very-long-" * 20,
    "unbroken" * 40,
    "",
    "]]> --> {{ 7 * 7 }}",
]
N_CLASSES, STEPS = 20, (50, 100, 150, 200)
CONFIG = """format = 1
steps = 200
seed = {seed}
[data]
dataset = "made-up"
[task]
n_way = 5
n_shot = {shots}
[model]
learner = "protonet"
backbone = "conv4"
[sampler]
name = "{sampler}"
"""


def potentials(step, seed, n_classes=N_CLASSES):
    """Classes in groups of four, which are the more confused the later it is."""
    random = np.random.default_rng(seed)
    groups = np.arange(n_classes) % 5
    half = np.triu(
        np.equal.outer(groups, groups) * step / 200 + random.exponential(0.1, (n_classes,) * 2), 1
    )
    matrix = (half + half.T).astype(np.float32)
    np.fill_diagonal(matrix, -np.inf)
    return matrix


def write_run(folder, *, sampler, seed, shots="1", names=None, until=200, accuracy=0.6):
    """Write the files of a run, ended or not."""
    random = np.random.default_rng(seed)
    (folder / "snapshots").mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG.format(seed=seed, sampler=sampler, shots=shots))
    (folder / "environment.json").write_text(json.dumps([{"step": 0, "python": "3.11.0"}]))
    records = []
    for step in range(10, until + 1, 10):
        level = accuracy * (1 - np.exp(-step / 60)) + random.normal(0, 0.02)
        records.append({"step": step, "split": "train", "loss": 1 - level, "accuracy": level})
    for step in STEPS:
        if step <= until:
            kl = 0.0 if sampler == "uniform" else step / 500
            records.append({"step": step, "split": "sampler", "kl": kl, "entropy": 9.0 - kl})
            records.append({"step": step, "split": "val", "accuracy": accuracy, "loss": 1.0})
            parts = {"class_counts": random.poisson(step / 4, N_CLASSES)}
            if sampler == "gcp":
                parts["distribution"] = potentials(step, 10 * int(shots) + seed)
            np.savez(folder / "snapshots" / f"step-{step:07d}.npz", **parts)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(lines)
    if until < STEPS[-1]:
        return
    test = {"accuracies": random.normal(accuracy, 0.1, 50).tolist(), "loss": 1.0, "steps": [200]}
    (folder / "test.json").write_text(json.dumps(test))
    features = np.eye(5)[np.arange(N_CLASSES) % 5] + 0.3 * random.normal(size=(N_CLASSES, 5))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    np.savez(
        folder / "portrait.npz",
        class_names=np.array(names or [f"class-{i}" for i in range(N_CLASSES)]),
        images=random.integers(0, 256, (N_CLASSES, 4, 12, 12, 3), dtype=np.uint8),
        similarity=(features @ features.T).astype(np.float32),
        tasks=np.stack([random.permutation(N_CLASSES)[:5] for _ in range(6)]),
    )


def arm(folder, name, labels, seeds, *, baseline=None, **options):
    """Write the runs of an arm, and return it."""
    runs = tuple(PlannedRun(seed, f"runs/{name}/seed-{seed}") for seed in seeds)
    for run in runs:
        kept = {key: labels[key] for key in ("sampler", "shots") if key in labels}
        write_run(folder / run.folder, seed=run.seed, **{**kept, **options})
    return Arm(name, labels, runs, baseline)


def full_study(folder, names=None, title="Uniform against gcp"):
    """Two settings, two samplers, two seeds; a run that stopped, one that failed, one to come."""
    arms = [
        arm(folder, f"{sampler}-{shots}", {"shots": shots, "sampler": sampler}, (0, 1), names=names)
        for shots in "15"
        for sampler in ("uniform", "gcp")
    ]
    stopped = arm(folder, "c-1", {"shots": "1", "sampler": "c"}, (0, 1), until=100)
    (folder / "runs/c-1/seed-1/failure.txt").write_text("the loss is <b>no number</b>")
    to_come = Arm("c-5", {"shots": "5", "sampler": "c"}, (PlannedRun(0, "runs/c-5/seed-0"),))
    return Study(
        title=title,
        arms=(*arms, stopped, to_come),
        command="adaptask compare --title '<b>'",
        notes=("A note with <i>markup</i>.",),
    )


TABLE = Table(
    name="results",
    title="Test accuracy <%>",
    headings=("sampler", "1-shot"),
    rows=((Cell("uniform"), Cell("60.0")), (Cell("gcp & co"), Cell("61.0 <b>", is_best=True))),
    notes=("A note & more.",),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A full report, every name in it hostile."""
    folder = tmp_path_factory.mktemp("study")
    names = (HOSTILE + [f"class-{i}" for i in range(N_CLASSES)])[:N_CLASSES]
    study = full_study(folder, names, title="<script>alert(0)</script> & co")
    formats = {"txt": lambda table: table.title.encode()}
    return write_report(folder, study, [TABLE], ["No difference <is> shown."], formats=formats)


class Elements(HTMLParser):
    """Collects elements, attributes and the text of the page; fails on what is not closed."""

    VOID = ("meta", "img", "input", "br", "link")

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def elements(page):
    return Elements(page.read_text(encoding="utf-8"))


def test_hostile_names_are_text_and_nothing_else(elements):
    tags = [tag for tag, _ in elements.found]
    assert tags.count("script") == 2  # the data, and our own
    for tag, attributes in elements.found:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        if tag == "img":
            assert attributes["src"].startswith("data:image/png;base64,")
            assert attributes["alt"]
    for name in HOSTILE[:2]:
        assert name in elements.text
    assert "<script>alert(0)</script> & co" in elements.text
    assert "the loss is <b>no number</b>" in elements.text
    assert "A note with <i>markup</i>." in elements.text
    assert "61.0 <b>" in elements.text
    assert "49" not in re.findall(r"\]\]> --> (\S+)", elements.text)


def test_the_data_of_the_heatmap_cannot_end_its_script(page):
    text = page.read_text(encoding="utf-8")
    data = text.split('id="heatmap-data">')[1].split("</script>")[0]
    assert data.isascii()
    assert "<" not in data
    found = json.loads(data)
    assert found["catalogues"][0]["names"][:2] == HOSTILE[:2]
    assert found["catalogues"][0]["names"][7] == "(class 7)"
    assert script_json("\u2028</script>") == r'"\u2028\u003c/script\u003e"'


def test_the_page_asks_for_nothing_and_says_so(elements):
    policies = [a["content"] for tag, a in elements.found if a.get("http-equiv")]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; img-src data:;")
    assert re.search(r"script-src 'sha256-[\w+/=]{44}';", policies[0])
    for _, attributes in elements.found:
        for name in ("src", "href", "srcset", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), attributes


def test_no_id_is_there_twice_and_every_link_leads_somewhere(elements):
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"][1:] for _, a in elements.found if a.get("href", "").startswith("#")]
    assert set(links) <= set(ids)


def test_all_parts_are_there_and_every_plot_has_words(elements, page):
    for part in ("curves", "potentials", "pairs", "map", "tasks", "distribution", "provenance"):
        assert any(attributes.get("id") == part for _, attributes in elements.found), part
    tags = [tag for tag, _ in elements.found]
    assert tags.count("figure") == tags.count("figcaption")
    plots = ("validation", "training-loss", "difficulty", "kl", "entropy", "class-counts")
    for name in (*plots, "class-map", "potentials", "evolution", "pairs", "tasks"):
        for kind in ("png", "svg"):
            assert (page.parent / "plots" / f"{name}.{kind}").stat().st_size > 500
    assert (page.parent / "tables" / "results.txt").read_text() == TABLE.title
    assert not list(page.parent.rglob("*.tmp"))


def test_what_has_no_result_is_listed(elements):
    assert "4 arms" not in elements.text
    assert "8 are finished" in elements.text
    assert "3 of 11 runs have no result" in elements.text
    assert "seed 0: unfinished: 100 of 200 steps" in elements.text
    assert "seed 1: failed after step 100: the loss is" in elements.text
    assert "seed 0: not begun" in elements.text


def test_a_lone_uniform_run_says_what_there_is_not(tmp_path):
    study = Study("Alone", (arm(tmp_path, "u", {"sampler": "uniform"}, (3,)),))
    found = Elements(write_report(tmp_path, study, [], []).read_text(encoding="utf-8"))
    assert "No potentials to show: none of these runs has a sampler that learns" in found.text
    assert "No pairs to show" in found.text
    assert "No two arms could be compared" in found.text
    assert not any(attributes.get("id") == "heatmap" for _, attributes in found.found)
    assert any(attributes.get("id") == "plot-class-map" for _, attributes in found.found)
    assert not (tmp_path / "plots" / "potentials.png").exists()


def test_a_study_that_has_not_begun_has_a_page(tmp_path):
    study = Study("Soon", (Arm("a", {"sampler": "gcp"}, (PlannedRun(0, "runs/a"),)),))
    found = Elements(write_report(tmp_path, study, [], []).read_text(encoding="utf-8"))
    assert "1 run planned; none has begun." in found.text
    assert "No curves" in found.text


def test_a_run_under_way_is_shown_without_its_portrait_and_twice_the_same(tmp_path):
    study = Study("Now", (arm(tmp_path, "g", {"sampler": "gcp"}, (0,), until=100),))
    first = write_report(tmp_path, study, [], []).read_text(encoding="utf-8")
    found = Elements(first)
    assert any(attributes.get("id") == "heatmap" for _, attributes in found.found)
    assert "(class 3)" in found.text
    assert "No tasks to show" in found.text
    assert write_report(tmp_path, study, [], []).read_text(encoding="utf-8") == first


def break_toml(run):
    (run / "config.toml").write_text("steps = ", encoding="utf-8")


def break_sections(run):
    (run / "config.toml").write_text('seed = 0\nsteps = 200\nsampler = "gcp"\n', encoding="utf-8")


def break_tasks(run):
    with np.load(run / "portrait.npz") as found:
        parts = dict(found)
    np.savez(run / "portrait.npz", **{**parts, "tasks": parts["tasks"] + N_CLASSES})


def tear(name):
    return lambda run: (run / name).write_bytes(b"torn\n")


def test_what_is_damaged_is_named_and_the_rest_is_shown(tmp_path):
    harms = {
        0: (tear("portrait.npz"), "portrait.npz is damaged"),
        1: (break_toml, "config.toml cannot be read"),
        2: (break_sections, "config.toml is no configuration"),
        3: (tear("metrics.jsonl"), "line 1 of"),
        4: (tear("test.json"), "test.json is damaged"),
        5: (tear("snapshots/step-0000200.npz"), "step-0000200.npz is damaged"),
    }
    arms = [
        arm(tmp_path, "u", {"sampler": "uniform"}, (0,)),
        arm(tmp_path, "g", {"sampler": "gcp"}, harms),
    ]
    for seed, (harm, _) in harms.items():
        harm(tmp_path / f"runs/g/seed-{seed}")
    tear("snapshots/step-0000100.npz")(tmp_path / "runs/g/seed-0")
    page = write_report(tmp_path, Study("Torn", tuple(arms)), [], [])
    found = Elements(page.read_text(encoding="utf-8"))
    listed = found.text[found.text.index("Runs without a result") :]
    for words in (*(words for _, words in harms.values()), "step-0000100.npz is damaged"):
        assert words in listed
    assert "4 are finished" in found.text
    ids = {attributes.get("id") for _, attributes in found.found}
    assert {"heatmap", "plot-validation", "plot-class-map", "plot-class-counts"} <= ids


def test_a_portrait_with_tasks_of_other_classes_is_damaged(tmp_path):
    write_run(tmp_path / "run", sampler="gcp", seed=0)
    break_tasks(tmp_path / "run")
    record = ForgivingRecord(tmp_path / "run")
    assert record.portrait is None
    assert "its tasks are not of 20 classes" in record.damage[0]


def test_snapshots_that_cannot_be_read_leave_those_before_them(tmp_path):
    study = Study("Torn", (arm(tmp_path, "g", {"sampler": "gcp"}, (0,), until=100),))
    (tmp_path / "runs/g/seed-0/snapshots/step-0000100.npz").write_bytes(b"torn")
    text = write_report(tmp_path, study, [], []).read_text(encoding="utf-8")
    data = json.loads(text.split('id="heatmap-data">')[1].split("</script>")[0])
    assert data["runs"][0]["steps"] == [50]


def test_what_an_earlier_report_left_is_removed_and_the_users_files_stay(tmp_path):
    arms = tuple(arm(tmp_path, s, {"sampler": s}, (0,)) for s in ("uniform", "gcp"))
    formats = {"md": lambda table: table.title.encode()}
    write_report(tmp_path, Study("Both", arms), [TABLE], [], formats=formats)
    assert (tmp_path / "plots/potentials.svg").exists()
    (tmp_path / "plots/mine.png").write_bytes(b"")
    (tmp_path / "tables/paper.md").write_bytes(b"")
    write_report(tmp_path, Study("One", arms[:1]), [TABLE], [], formats=formats)
    left = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"mine.png", "validation.png", "validation.svg"} <= left
    assert not left & {"potentials.png", "potentials.svg", "pairs.png", "evolution.svg"}
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["results.md"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    study = Study("Blocked", (arm(tmp_path, "u", {"sampler": "uniform"}, (0,)),))
    (tmp_path / "plots").write_bytes(b"in the way")
    with pytest.raises(TrainingError, match=r"could not write .*plots"):
        write_report(tmp_path, study, [], [])


def test_what_the_page_has_said_is_not_said_again(tmp_path):
    study = Study("Said", (arm(tmp_path, "u", {"sampler": "uniform"}, (0,)),), notes=("Small.",))
    tables = [
        Table(name, "Said", ("a",), (), notes=("Small.", "Bold is best."), heading=f"The {name}")
        for name in ("results", "paper")
    ]
    found = Elements(write_report(tmp_path, study, tables, []).read_text(encoding="utf-8"))
    assert found.text.count("Small.") == 1
    assert found.text.count("Bold is best.") == 1
    assert [h for h in ("The results", "The paper") if h in found.text] == [
        "The results",
        "The paper",
    ]
    assert found.text.count("Said") == 2  # in the title of the window, and on top


def seek(folder, strategy):
    for path in folder.glob("seed-*/config.toml"):
        path.write_text(path.read_text() + f'strategy = "{strategy}"\n')


def test_high_potentials_are_called_hard_only_where_they_are(tmp_path):
    arms = [arm(tmp_path, s, {"strategy": s}, (0,), sampler="gcp") for s in ("easy", "hard")]
    for name in ("easy", "hard"):
        seek(tmp_path / "runs" / name, name)
    found = Elements(write_report(tmp_path, Study("Both", tuple(arms)), [], []).read_text("utf-8"))
    words = " ".join(found.text.split())
    assert "The hardest and the easiest pairs" in words
    assert "after the last snapshot (gcp, hard, seed 0)" in words
    assert "with the strategy easy, when it tells them apart" in words
    assert "what the model tells apart is sought instead" in words
    alone = Elements(write_report(tmp_path, Study("Easy", arms[:1]), [], []).read_text("utf-8"))
    words = " ".join(alone.text.split())
    assert "Hardest" not in words
    assert "hardest" not in words
    assert "most confused" not in words
    assert "The pairs with the highest and the lowest potentials" in words


# In a browser

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
    for place, step in enumerate(STEPS[:-1]):
        move_slider(opened, place)
        assert part(opened, "step").inner_text() == f"step {step}"
        assert part(opened, "slider").get_attribute("aria-valuetext") == f"step {step}"
        seen.add(pixels(opened))
    assert len(seen) == 4


@browser_only
def test_a_cell_reads_what_the_snapshot_holds(opened, page):
    record = RunRecord(page.parent / "runs/gcp-1/seed-0")
    data = json.loads(opened.locator("#heatmap-data").text_content())
    run, names = data["runs"][0], data["catalogues"][0]["names"]
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
        assert value == pytest.approx(record.snapshots[place].distribution[a, b], abs=0.01)
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
    tasks = RunRecord(page.parent / "runs/gcp-1/seed-0").portrait.tasks
    names = json.loads(opened.locator("#heatmap-data").text_content())["catalogues"][0]["names"]
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
def test_the_command_is_copied(opened):
    opened.locator("#copy").click()
    wait_for(opened.locator("#copied"), "Copied.")


@browser_only
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_scrolls_sideways_on_a_phone(opened, scheme):
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size({"width": 360, "height": 740})
    opened.wait_for_timeout(100)
    assert opened.evaluate("document.documentElement.scrollWidth") == 360


@browser_only
def test_print_hides_controls_and_shows_the_last_state(opened):
    last = part(opened, "step").inner_text()
    move_slider(opened, 0)
    opened.emulate_media(media="print")
    wait_for(part(opened, "step"), last)
    for hidden in ("slider", "next", "zoom", "readout"):
        assert not part(opened, hidden).is_visible()
    assert not opened.locator("#copy").is_visible()
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
