"""The page as a whole: what is on it, what is left out, and that nothing in it can run."""

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from adaptask.errors import TrainingError
from adaptask.report.page import writer
from adaptask.report.page.figures import make_plot
from adaptask.report.page.writer import script_json, write_report
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study
from adaptask.report.tables import Table

PARTS = ("curves", "potentials", "pairs", "tasks", "distribution", "classes")


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


def test_hostile_names_are_text_and_nothing_else(elements, hostile):
    tags = [tag for tag, _ in elements.found]
    assert tags.count("script") == 2  # the data, and our own
    for tag, attributes in elements.found:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        if tag == "img":
            assert attributes["src"].startswith("data:image/png;base64,")
            assert attributes["alt"]
    for name in hostile[:2]:
        assert name in elements.text
    assert "<script>alert(0)</script> & co" in elements.text
    assert "the loss is <b>no number</b>" in elements.text
    assert "A note with <i>markup</i>." in elements.text
    assert "61.0 <b>" in elements.text
    assert "49" not in re.findall(r"\]\]> --> (\S+)", elements.text)


def test_the_data_of_the_heatmap_cannot_end_its_script(page, hostile):
    text = page.read_text(encoding="utf-8")
    data = text.split('id="heatmap-data">')[1].split("</script>")[0]
    assert data.isascii()
    assert "<" not in data
    found = json.loads(data)
    assert found["catalogs"][0]["names"][:2] == hostile[:2]
    assert found["catalogs"][0]["names"][7] == "(class 7)"
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


def test_all_parts_are_there_and_every_plot_has_words(elements, page, table):
    for part in ("verdicts", "tables", *PARTS, "provenance"):
        assert any(attributes.get("id") == part for _, attributes in elements.found), part
    tags = [tag for tag, _ in elements.found]
    assert tags.count("figure") == tags.count("figcaption")
    plots = ("validation", "training-loss", "difficulty", "kl", "class-counts")
    for name in (*plots, "evolution", "differences", "test-accuracy", "test-confusion"):
        for kind in ("png", "svg"):
            assert (page.parent / "plots" / f"{name}.{kind}").stat().st_size > 500
    assert (page.parent / "tables" / "results.txt").read_text() == table.title
    assert not list(page.parent.rglob("*.tmp"))


def test_a_reproduced_figure_comes_first_and_only_then_there_is_a_map(tmp_path, arm):
    arms = tuple(arm(tmp_path, s, {"sampler": s}, (0,)) for s in ("uniform", "gcp"))

    def sections(study):
        text = write_report(tmp_path, study, [], []).read_text(encoding="utf-8")
        return [a["aria-labelledby"] for tag, a in Elements(text).found if tag == "section"]

    plain = sections(Study("Plain", arms))
    assert plain[0] == "verdicts"
    assert "map" not in plain
    assert sections(Study("Figure 4", arms, first_section="map"))[:2] == ["map", "verdicts"]
    assert (tmp_path / "plots/class-map.png").exists()
    assert sections(Study("Figure 5", arms, first_section="potentials"))[0] == "potentials"


def test_adding_a_plot_takes_one_function_and_one_entry(tmp_path, arm, monkeypatch):
    def mine(data):
        draw = [("panel", lambda axes: axes.plot([1, 2]))]
        return make_plot(data.plots, draw, name="mine", title="Mine", caption="A line.")

    section = writer.Section("own", "Own", "My own plot", plots=(mine,))
    monkeypatch.setattr(writer, "SECTIONS", (*writer.SECTIONS, section))
    study = Study("Own", (arm(tmp_path, "u", {"sampler": "uniform"}, (0,)),))
    found = Elements(write_report(tmp_path, study, [], []).read_text(encoding="utf-8"))
    assert {"own", "plot-mine"} <= {attributes.get("id") for _, attributes in found.found}
    assert "#own" in {attributes.get("href") for _, attributes in found.found}
    assert (tmp_path / "plots/mine.svg").exists()


def test_a_plug_in_is_described_by_its_folder_and_never_imported(tmp_path, arm):
    arms = tuple(arm(tmp_path, s, {"sampler": s}, (0,)) for s in ("uniform", "mine"))
    for path in (tmp_path / "runs/mine").iterdir():
        text = (path / "config.toml").read_text().replace('"mine"', '"no.such_module:Mine"')
        (path / "config.toml").write_text(text)
        sampler = {
            "name": "no.such_module:Mine",
            "description": "draws <i> all.",
            "learns": 1,
        }
        (path / "algorithms.json").write_text(json.dumps({"sampler": sampler}))
    found = Elements(write_report(tmp_path, Study("Own", arms), [], []).read_text("utf-8"))
    assert "Task samplers: uniform and Mine." in found.text
    assert "Mine draws <i> all" in found.text


def test_what_has_no_result_is_listed(elements):
    assert "4 arms" not in elements.text
    assert "8 are finished" in elements.text
    assert "3 of 11 runs have no result" in elements.text
    assert "c-1, seed 0 not finished: 100 of 200 steps." in elements.text
    assert "c-1, seed 1 failed: the loss is <b>no number</b>" in elements.text
    assert "c-5, seed 0 not finished: not begun." in elements.text


def test_a_lone_uniform_run_says_what_there_is_not(tmp_path, arm):
    study = Study("Alone", (arm(tmp_path, "u", {"sampler": "uniform"}, (3,)),))
    found = Elements(write_report(tmp_path, study, [], []).read_text(encoding="utf-8"))
    assert "No potentials to show: none of these runs has a sampler that learns" in found.text
    assert "No pairs to show" in found.text
    assert "No two arms could be compared" in found.text
    assert not any(attributes.get("id") == "heatmap" for _, attributes in found.found)
    assert not (tmp_path / "plots" / "evolution.png").exists()


def test_a_study_that_has_not_begun_has_a_page(tmp_path):
    study = Study("Soon", (Arm("a", {"sampler": "gcp"}, (Run(tmp_path / "runs/a"),)),))
    found = Elements(write_report(tmp_path, study, [], []).read_text(encoding="utf-8"))
    assert "1 run planned; none has begun." in found.text
    assert "No curves" in found.text


def test_a_running_run_is_shown_without_images_and_twice_the_same(tmp_path, arm):
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
    np.savez(run / "portrait.npz", **{**parts, "tasks": parts["tasks"] + len(parts["class_names"])})


def tear(name):
    return lambda run: (run / name).write_bytes(b"torn\n")


def test_what_is_damaged_is_named_and_the_rest_is_shown(tmp_path, arm):
    harms = {
        0: (tear("portrait.npz"), "portrait.npz is damaged"),
        1: (break_toml, "config.toml is damaged"),
        2: (break_sections, "config.toml is damaged: sampler must be of type dict"),
        3: (tear("metrics.jsonl"), "metrics.jsonl is damaged: line 1"),
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
    assert {"heatmap", "plot-validation", "plot-evolution", "plot-class-counts"} <= ids


def test_a_preview_with_tasks_of_other_classes_is_damaged(tmp_path, write_run):
    write_run(tmp_path / "run", sampler="gcp", seed=0)
    break_tasks(tmp_path / "run")
    record = Run(tmp_path / "run")
    assert record.preview is None
    assert "its tasks are not of 20 classes" in record.damage["portrait.npz"]


def test_snapshots_that_cannot_be_read_leave_those_before_them(tmp_path, arm):
    study = Study("Torn", (arm(tmp_path, "g", {"sampler": "gcp"}, (0,), until=100),))
    (tmp_path / "runs/g/seed-0/snapshots/step-0000100.npz").write_bytes(b"torn")
    text = write_report(tmp_path, study, [], []).read_text(encoding="utf-8")
    data = json.loads(text.split('id="heatmap-data">')[1].split("</script>")[0])
    assert data["runs"][0]["steps"] == [50]


def test_of_many_classes_those_of_tasks_and_high_potentials_are_shown(tmp_path, arm, monkeypatch):
    monkeypatch.setattr("adaptask.report.page.data.MAX_CLASSES", 12)
    arms = tuple(arm(tmp_path, s, {"sampler": s}, (0,)) for s in ("uniform", "gcp"))
    text = write_report(tmp_path, Study("Many", arms), [], []).read_text(encoding="utf-8")
    data = json.loads(text.split('id="heatmap-data">')[1].split("</script>")[0])
    run, names = data["runs"][0], data["catalogs"][0]["names"]
    assert run["title"] == "gcp, seed 0, 12 of 20 classes"
    assert sorted(run["order"]) == sorted(run["rank"]) == list(range(12))
    assert len(base64.b64decode(run["data"])) == 4 * 12 * 11 // 2
    record = Run(tmp_path / "runs/gcp/seed-0")
    shown = [int(name.removeprefix("class-")) for name in names]
    first = record.preview.tasks[0].tolist()
    assert [shown[c] for c in run["tasks"][1]["tasks"][0]] == first
    last = record.last_snapshot.distribution
    assert set(np.unravel_index(last.argmax(), last.shape)) <= set(shown)
    # The first byte of the last matrix is the pair of the first two classes that are shown.
    byte = base64.b64decode(run["data"])[3 * 66]
    value = run["low"] + run["step"] * byte
    assert value == pytest.approx(last[shown[0], shown[1]], abs=run["step"])


def test_the_page_of_many_classes_stays_small(tmp_path, arm, monkeypatch):
    n_classes = 800
    arms = tuple(arm(tmp_path, s, {"sampler": s}, (0,)) for s in ("uniform", "gcp"))
    random = np.random.default_rng(0)
    for path in tmp_path.rglob("portrait.npz"):
        np.savez(
            path,
            class_names=np.array([f"class-{i}" for i in range(n_classes)]),
            images=random.integers(0, 256, (n_classes, 1, 28, 28, 1), dtype=np.uint8),
            similarity=np.eye(n_classes, dtype=np.float32),
            tasks=np.stack([random.permutation(n_classes)[:20] for _ in range(24)]),
        )
    for step in range(1, 41):
        half = np.triu(random.exponential(0.1, (n_classes, n_classes)), 1)
        path = tmp_path / f"runs/gcp/seed-0/snapshots/step-{step:07d}.npz"
        counts = random.poisson(9, n_classes)
        np.savez(path, distribution=(half + half.T).astype(np.float32), class_counts=counts)
    for path in (tmp_path / "runs/gcp/seed-0/snapshots").glob("step-*0.npz"):
        if int(path.stem[5:]) > 40:
            path.unlink()
    ordered = []
    monkeypatch.setattr(
        "adaptask.report.page.data.cluster_order",
        lambda matrix: ordered.append(len(matrix)) or np.arange(len(matrix)),
    )
    cleaned = []
    monkeypatch.setattr(
        "adaptask.report.page.class_plots.class_labels",
        lambda names: cleaned.append(len(names)) or tuple(names),
    )
    page = write_report(tmp_path, Study("Many", arms), [], [])
    # Once per plot, not once per class.
    assert 1 <= cleaned.count(n_classes) <= 4
    # 25 snapshots of 250 classes have 0.78 million pairs, which base64 makes 1.04 MB.
    assert page.stat().st_size < 2.5e6
    assert ordered == [250]


def test_what_an_earlier_report_left_is_removed_and_the_users_files_stay(tmp_path, arm, table):
    arms = tuple(arm(tmp_path, s, {"sampler": s}, (0,)) for s in ("uniform", "gcp"))
    formats = {"md": lambda table: table.title.encode()}
    both = [table, replace(table, name="paper")]
    write_report(tmp_path, Study("Both", arms), both, [], formats=formats)
    assert (tmp_path / "plots/evolution.svg").exists()
    assert (tmp_path / "tables/paper.md").exists()
    (tmp_path / "plots/mine.png").write_bytes(b"")
    write_report(tmp_path, Study("One", arms[:1]), [table], [], formats=formats)
    left = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"mine.png", "validation.png", "validation.svg"} <= left
    assert not left & {"evolution.png", "evolution.svg", "differences.png", "differences.svg"}
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["results.md"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path, arm):
    study = Study("Blocked", (arm(tmp_path, "u", {"sampler": "uniform"}, (0,)),))
    (tmp_path / "plots").write_bytes(b"in the way")
    with pytest.raises(TrainingError, match=r"could not write .*plots"):
        write_report(tmp_path, study, [], [])


def test_what_the_page_has_said_is_not_said_again(tmp_path, arm):
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


def test_high_potentials_are_called_hard_only_where_they_are(tmp_path, arm):
    arms = [arm(tmp_path, s, {"strategy": s}, (0,), sampler="gcp") for s in ("easy", "hard")]
    for name in ("easy", "hard"):
        seek(tmp_path / "runs" / name, name)
    found = Elements(write_report(tmp_path, Study("Both", tuple(arms)), [], []).read_text("utf-8"))
    words = " ".join(found.text.split())
    assert "the hardest and the easiest for the model" in words
    assert "after the last snapshot (gcp, hard, seed 0)" in words
    assert "with the strategy easy, when it tells them apart" in words
    assert "what the model tells apart is preferred instead" in words
    alone = Elements(write_report(tmp_path, Study("Easy", arms[:1]), [], []).read_text("utf-8"))
    words = " ".join(alone.text.split())
    assert "Hardest" not in words
    assert "hardest" not in words
    assert "most confused" not in words
    assert "Pairs with the highest and the lowest potentials" in words
