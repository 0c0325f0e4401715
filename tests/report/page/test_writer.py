"""The page as a whole: what is on it, what is left out, and that nothing in it can run."""

import json
import re
from html.parser import HTMLParser
from itertools import combinations

import numpy as np
import pytest

from adaptask.errors import TrainingError
from adaptask.report.formats import to_markdown
from adaptask.report.page import writer
from adaptask.report.page.figures import make_plot
from adaptask.report.page.writer import write_report
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study
from adaptask.report.summary import summarize
from adaptask.report.tables import Table

PARTS = ("curves", "potentials", "tasks")


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
    assert "script" not in tags
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


def test_the_page_asks_for_nothing_and_says_so(elements):
    policies = [a["content"] for tag, a in elements.found if a.get("http-equiv")]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline';")
    assert "script" not in policies[0]
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
    plots = ("validation", "difficulty", "kl", "class-counts")
    for name in (*plots, "potentials", "evolution", "differences"):
        for kind in ("png", "svg"):
            assert (page.parent / "plots" / f"{name}.{kind}").stat().st_size > 500
    assert (page.parent / "tables" / "results.md").read_text() == to_markdown(table)
    assert not list(page.parent.rglob("*.tmp"))


def test_a_reproduced_figure_comes_first_and_only_then_there_is_a_map(tmp_path, arm):
    arms = tuple(
        arm(tmp_path, sampler, {"sampler": sampler}, (0,), baseline=baseline)
        for sampler, baseline in (("uniform", None), ("gcp", "uniform"))
    )

    def sections(study):
        text = write_report(tmp_path, summarize(study), []).read_text(encoding="utf-8")
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
    found = Elements(write_report(tmp_path, summarize(study), []).read_text(encoding="utf-8"))
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
    found = Elements(write_report(tmp_path, summarize(Study("Own", arms)), []).read_text("utf-8"))
    assert "Task samplers: uniform and Mine." in found.text
    assert "Mine draws <i> all" in found.text


def test_what_has_no_result_is_listed(elements):
    assert "4 arms" not in elements.text
    assert "8 are finished" in elements.text
    assert "3 of 11 runs have no result" in elements.text
    assert "c-1, seed 0 not finished: 100 of 200 steps." in elements.text
    assert "c-1, seed 1 failed: the loss is <b>no number</b>" in elements.text
    assert "c-5, seed 0 not finished: not begun." in elements.text


def ids_of(found):
    return {attributes["id"] for _, attributes in found.found if "id" in attributes}


def test_a_lone_uniform_run_has_no_potentials_and_no_verdict(tmp_path, arm):
    study = Study("Alone", (arm(tmp_path, "u", {"sampler": "uniform"}, (3,)),))
    found = Elements(write_report(tmp_path, summarize(study), []).read_text(encoding="utf-8"))
    assert "could be compared" not in found.text
    assert ("p", {"class": "lead"}) not in found.found
    assert not ids_of(found) & {"verdicts", "potentials", "plot-potentials"}
    assert {"curves", "tasks", "provenance"} <= ids_of(found)
    assert not (tmp_path / "plots" / "evolution.png").exists()


def test_a_study_that_has_not_begun_has_a_page(tmp_path):
    study = Study("Soon", (Arm("a", {"sampler": "gcp"}, (Run(tmp_path / "runs/a"),)),))
    found = Elements(write_report(tmp_path, summarize(study), []).read_text(encoding="utf-8"))
    assert "1 run planned; none has begun." in found.text
    assert not ids_of(found) & {"curves", "potentials", "tasks"}


def test_a_running_run_is_shown_without_images_and_twice_the_same(tmp_path, arm):
    study = Study("Now", (arm(tmp_path, "g", {"sampler": "gcp"}, (0,), until=100),))
    first = write_report(tmp_path, summarize(study), []).read_text(encoding="utf-8")
    found = Elements(first)
    assert "plot-potentials" in ids_of(found)
    assert "(class 3)" in found.text
    assert "tasks" not in ids_of(found)
    assert write_report(tmp_path, summarize(study), []).read_text(encoding="utf-8") == first


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
    page = write_report(tmp_path, summarize(Study("Torn", tuple(arms))), [])
    found = Elements(page.read_text(encoding="utf-8"))
    listed = found.text[found.text.index("Runs without a result") :]
    for words in (*(words for _, words in harms.values()), "step-0000100.npz is damaged"):
        assert words in listed
    assert "4 are finished" in found.text
    plots = {"plot-validation", "plot-potentials", "plot-evolution", "plot-class-counts"}
    assert plots <= ids_of(found)


def test_a_preview_with_tasks_of_other_classes_is_damaged(tmp_path, write_run):
    write_run(tmp_path / "run", sampler="gcp", seed=0)
    break_tasks(tmp_path / "run")
    record = Run(tmp_path / "run")
    assert record.preview is None
    assert "its tasks are not of 20 classes" in record.damage["portrait.npz"]


def test_snapshots_that_cannot_be_read_leave_those_before_them(tmp_path, arm):
    study = Study("Torn", (arm(tmp_path, "g", {"sampler": "gcp"}, (0,), until=100),))
    (tmp_path / "runs/g/seed-0/snapshots/step-0000100.npz").write_bytes(b"torn")
    write_report(tmp_path, summarize(study), [])
    assert "step 50" in (tmp_path / "plots/evolution.svg").read_text(encoding="utf-8")
    assert "step 100" not in (tmp_path / "plots/evolution.svg").read_text(encoding="utf-8")


def test_the_potentials_are_of_the_highest_pairs_and_of_the_first_tasks(tmp_path, arm):
    arms = tuple(arm(tmp_path, s, {"sampler": s}, (0,)) for s in ("uniform", "gcp"))
    text = write_report(tmp_path, summarize(Study("Both", arms)), []).read_text(encoding="utf-8")
    runs = {sampler: Run(tmp_path / f"runs/{sampler}/seed-0") for sampler in ("uniform", "gcp")}
    svg = (tmp_path / "plots/potentials.svg").read_text(encoding="utf-8")
    shown = set(re.findall(r">class-(\d+)<", svg))
    last = runs["gcp"].last_snapshot.distribution
    wanted = set(np.unravel_index(last.argmax(), last.shape))
    for run in runs.values():
        wanted |= set(run.preview.tasks[0])
    assert {str(c) for c in wanted} <= shown
    # What the caption says of each sampler, by hand: pairs of a task, of all tasks.
    for name, run in runs.items():
        pairs = [last[a, b] for task in run.preview.tasks for a, b in combinations(task, 2)]
        assert f"{name} {np.mean(pairs):.3f} (in 6 tasks)" in text


def test_the_page_of_many_classes_stays_small(tmp_path, arm):
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
    for path in (tmp_path / "runs/gcp/seed-0/snapshots").iterdir():
        half = np.triu(random.exponential(0.1, (n_classes, n_classes)), 1)
        counts = random.poisson(9, n_classes)
        np.savez(path, distribution=(half + half.T).astype(np.float32), class_counts=counts)
    page = write_report(tmp_path, summarize(Study("Many", arms)), [])
    assert page.stat().st_size < 1e6


def test_a_folder_that_cannot_be_made_is_named(tmp_path, arm):
    study = Study("Blocked", (arm(tmp_path, "u", {"sampler": "uniform"}, (0,)),))
    (tmp_path / "plots").write_bytes(b"in the way")
    with pytest.raises(TrainingError, match=r"could not write .*plots"):
        write_report(tmp_path, summarize(study), [])


def test_what_the_page_has_said_is_not_said_again(tmp_path, arm):
    study = Study("Said", (arm(tmp_path, "u", {"sampler": "uniform"}, (0,)),), notes=("Small.",))
    tables = [
        Table(name, "Said", ("a",), (), notes=("Small.", "Bold is best."), heading=f"The {name}")
        for name in ("results", "paper")
    ]
    found = Elements(write_report(tmp_path, summarize(study), tables).read_text(encoding="utf-8"))
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


def test_what_a_high_potential_means_follows_the_strategy(tmp_path, arm):
    arms = [arm(tmp_path, s, {"strategy": s}, (0,), sampler="gcp") for s in ("easy", "hard")]
    for name in ("easy", "hard"):
        seek(tmp_path / "runs" / name, name)
    found = Elements(
        write_report(tmp_path, summarize(Study("Both", tuple(arms))), []).read_text("utf-8")
    )
    words = " ".join(found.text.split())
    assert "after the last snapshot (gcp, hard, seed 0)" in words
    assert "rises when the model confuses queries of the two" in words
    alone = write_report(tmp_path, summarize(Study("Easy", arms[:1])), []).read_text("utf-8")
    words = " ".join(Elements(alone).text.split())
    assert "rises when the model tells the two apart" in words
    assert "confuses" not in words
