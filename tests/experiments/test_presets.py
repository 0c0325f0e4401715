import pytest

from adaptask.cli import main
from adaptask.errors import ArgumentError
from adaptask.experiments.config import check_config
from adaptask.experiments.config_file import dump_config, load_config, parse_config
from adaptask.experiments.presets import PRESETS, preset_config
from adaptask.training import StepSchedule


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name):
    config = preset_config(name)
    check_config(config)
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize(
    ("dataset", "n_shot", "smoothing"), [("cifar-fs", 5, 0), ("mini-imagenet", 15, 0.1)]
)
def test_the_recipe_is_metaoptnets(dataset, n_shot, smoothing):
    for learner in ("protonet", "metaoptnet-ridge", "metaoptnet-svm"):
        config = preset_config(f"{learner}-resnet12-{dataset}")
        assert config.learner_options.label_smoothing == smoothing
        assert (config.task.n_shot, config.task.n_query, config.task.n_tasks) == (n_shot, 6, 8)
        rates = StepSchedule(config.optimiser.milestones, config.optimiser.factors)
        by_epoch = [0.1 * rates(1000 * epoch, config.steps) for epoch in (19, 20, 40, 50, 59)]
        assert by_epoch == pytest.approx([0.1, 0.006, 0.0012, 0.00024, 0.00024])
        assert config.steps == 60_000


def test_a_preset_is_where_flags_and_files_start(tiny, tmp_path, capsys):
    file, output = tmp_path / "mine.toml", tmp_path / "run"
    file.write_text(
        "steps = 2\n[data]\ndataset = 'tiny'\naugmentation = 'none'\n"
        "[resnet12]\nwidths = [4, 4, 4, 4]\n[optimiser]\nlr = 0.01\n"
    )
    flags = "--n-way 3 --n-shot 2 --n-tasks 2 --evaluation.n-shot 1 --evaluation.n-episodes 4"
    flags += " --evaluation.n-validation 4 --evaluation.n-query 5 --device cpu --quiet"
    name = "metaoptnet-svm-resnet12-cifar-fs"
    run = ["train", "--preset", name, "--config", str(file), *flags.split()]
    assert main([*run, "--output", str(output)]) == 0, capsys.readouterr().err
    config = load_config(output / "config.toml")
    assert config.model.learner == "metaoptnet-svm"
    assert config.optimiser.name == "sgd"
    assert config.optimiser.lr == 0.01
    assert (config.task.n_shot, config.task.n_query) == (2, 6)


def test_what_cannot_be_is_refused(capsys):
    with pytest.raises(ArgumentError, match="preset must be one of protonet-resnet12-cifar-fs"):
        preset_config("nothing")
    assert main(["train", "--preset", "nothing"]) == 1
    assert main(["train", "--preset", "x", "--resume", "y"]) == 1
    assert "leave out --preset" in capsys.readouterr().err
    assert main(["train", "--config", "x", "--config", "y"]) == 1
    assert "once only" in capsys.readouterr().err
