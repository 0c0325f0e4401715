"""The demo is a comparison like any other, only smaller."""

from dataclasses import replace

from adaptask.cli import main
from adaptask.experiments import demo
from adaptask.report.study import read_study


def test_it_ends_with_a_table_and_a_report(glyphs_cache, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ADAPTASK_CACHE", str(glyphs_cache))
    full = demo.demo_config()
    small = replace(
        full,
        steps=4,
        evaluation=replace(full.evaluation, n_episodes=4, n_validation=2),
        machine=replace(full.machine, threads=1),
    )
    monkeypatch.setattr(demo, "demo_config", lambda: small)
    monkeypatch.setattr(demo, "SEEDS", 1)
    output = tmp_path / "demo"
    assert main(["demo", "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert "Does that make a better learner?" in said.err
    for sampler in ("uniform", "gcp", "neighbor"):
        assert f"`{sampler}`" in said.err
        assert sampler in said.out
    assert str(output / "report.html") in said.out.replace("\n", "")
    page = (output / "report.html").read_text()
    study = read_study(output)
    assert study.command == "adaptask demo"
    for arm in study.arms:
        (run,) = arm.runs
        assert f"{100 * run.test.accuracies.mean():.2f}" in page
