"""Figures as files and as parts of a page."""

import re
from xml.etree import ElementTree

from adaptask.report.page.arm_plots import VALIDATION, draw_curves
from adaptask.report.page.data import Style, aggregate
from adaptask.report.page.figures import grid, inline_svg, plot_style, write_figure

HOSTILE = '<img src=x onerror=alert(1)> id="a" $\\frac{1}$ & 猫'


def drawing(axes):
    import numpy as np

    steps = np.arange(1, 6) * 100
    curve = aggregate([(steps, steps / 1000), (steps, steps / 500)])
    draw_curves(axes, [(Style("#d55e00", (4, 2)), curve)], VALIDATION)
    axes.plot([100, 200], [1, 2], "o")  # a mark is a reference inside the file


def test_the_same_figure_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        with plot_style():
            write_figure(tmp_path / name, "plot", grid([(HOSTILE, drawing)]))
    for kind in ("png", "svg"):
        first, second = (tmp_path / name / f"plot.{kind}" for name in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()


def test_text_stays_text_in_files_and_page(tmp_path):
    with plot_style():
        write_figure(tmp_path, "plot", grid([(HOSTILE, drawing)]))
        inline = inline_svg(grid([(HOSTILE, drawing)]), "plot", HOSTILE)
    for svg in ((tmp_path / "plot.svg").read_text(), inline):
        assert "<img" not in svg
        root = ElementTree.fromstring(svg)
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert any(text and text.startswith("<img src=x") and "$" in text for text in texts)
    assert ElementTree.fromstring(inline).get("aria-label") == HOSTILE


def test_ids_in_a_page_are_unlike_and_lead_somewhere():
    with plot_style():
        both = [inline_svg(grid([(HOSTILE, drawing)]), name, "") for name in ("one", "two")]
    roots = [list(ElementTree.fromstring(svg).iter()) for svg in both]
    ids = [[element.get("id") for element in root if element.get("id")] for root in roots]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    for svg, own in zip(both, ids, strict=True):
        assert len(own) == len(set(own))
        referred = re.findall(r'(?:url\(|href=")#([^)"]+)', svg)
        assert referred
        assert set(referred) == set(own)
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_ink_takes_the_color_of_the_page():
    with plot_style():
        svg = inline_svg(grid([(HOSTILE, drawing)]), "plot", "")
    assert "currentColor" in svg
    assert "#20242b" not in svg
