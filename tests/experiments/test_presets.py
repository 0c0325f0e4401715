import re
from pathlib import Path

import pytest

from adaptask.cli import main
from adaptask.errors import ArgumentError
from adaptask.experiments.config import check_config
from adaptask.experiments.config_file import changes, dump_config, load_config, parse_config
from adaptask.experiments.recipes import preset_config, preset_groups, presets, recipe
from adaptask.training import StepSchedule

PRESETS = presets()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name):
    config = preset_config(name)
    check_config(config)
    assert parse_config(dump_config(config)) == config
    assert config.sampler.name == "uniform"  # as they were published


@pytest.mark.parametrize(
    ("dataset", "n_shot", "smoothing"), [("cifar-fs", 5, 0), ("mini-imagenet", 15, 0.1)]
)
def test_the_recipe_is_metaoptnets(dataset, n_shot, smoothing):
    for learner in ("protonet", "metaoptnet-ridge", "metaoptnet-svm"):
        config = preset_config(f"{learner}-resnet12-{dataset}")
        assert config.learner.label_smoothing == smoothing
        assert (config.task.n_shot, config.task.n_query, config.task.n_tasks) == (n_shot, 6, 8)
        rates = StepSchedule(config.optimizer.milestones, config.optimizer.factors)
        by_epoch = [0.1 * rates(1000 * epoch, config.steps) for epoch in (19, 20, 40, 50, 59)]
        assert by_epoch == pytest.approx([0.1, 0.006, 0.0012, 0.00024, 0.00024])
        assert config.steps == 60_000


def test_the_file_on_the_page_of_metaoptnet_is_the_preset():
    page = Path(__file__).parents[2] / "docs" / "learners" / "metaoptnet-svm.md"
    (file,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    preset = preset_config("metaoptnet-svm-resnet12-cifar-fs")
    differing = {key for key, _, _ in changes(parse_config(file), preset)}
    assert differing == {"every.checkpoint", "every.snapshot"}


def test_prototypical_networks_on_resnet12_can_train_with_the_shots_of_the_test():
    for shots in (1, 5):
        config = preset_config(f"protonet-resnet12-mini-imagenet-{shots}shot")
        assert config.task.n_shot == config.tested_shot == shots
        ours = preset_config("protonet-resnet12-mini-imagenet")
        assert (config.optimizer, config.learner) == (ours.optimizer, ours.learner)


@pytest.mark.parametrize(("shots", "steps"), [(1, 60_000), (5, 40_000)])
def test_the_recipe_is_closer_looks(shots, steps):
    for learner in ("protonet", "matchingnet"):
        config = preset_config(f"{learner}-conv4-cifar-fs-{shots}shot")
        assert config.steps == steps
        assert (config.task.n_shot, config.task.n_query, config.task.n_tasks) == (shots, 16, 1)
        assert (config.optimizer.name, config.optimizer.lr) == ("adam", 1e-3)
        assert (config.every.validate, config.evaluation.n_validation) == (500, 200)
        assert config.data.augmentation == "crop-flip"
        larger = preset_config(f"{learner}-conv4-mini-imagenet-{shots}shot")
        assert larger.data.augmentation == "resized-crop-jitter-flip"
    # Their Matching Network reads the support set once for every image of it.
    assert (config.learner.full_context, config.learner.n_reads) == (True, 5 * shots)


@pytest.mark.parametrize("shots", [1, 5])
def test_the_recipe_is_that_of_how_to_train_your_maml(shots):
    for learner in ("maml", "maml++"):
        config = preset_config(f"{learner}-conv4-mini-imagenet-{shots}shot")
        assert (config.steps, config.task.n_tasks, config.task.n_shot) == (50_000, 2, shots)
        assert (config.learner.inner_steps, config.learner.inner_lr) == (5, 0.01)
        assert (config.evaluation.keep_best, config.evaluation.n_validation) == (5, 600)
        assert config.data.augmentation == "none"
        assert not config.learner.first_order
    options = config.learner
    assert all((options.multi_step_loss, options.per_step_norm, options.per_layer_rates))
    assert options.multi_step_share == 15 / 100
    assert not options.anneal_order


@pytest.mark.parametrize(("shots", "batch"), [(1, 5), (5, 15)])
def test_the_recipe_is_reptiles(shots, batch):
    config = preset_config(f"reptile-conv4-mini-imagenet-{shots}shot")
    assert (config.steps, config.task.n_tasks, config.task.n_shot) == (100_000, 5, 15)
    assert (config.tested_shot, config.learner.evaluation_batch_size) == (shots, batch)
    assert (config.learner.inner_steps, config.learner.batch_size) == (8, 10)
    assert (config.learner.inner_lr, config.learner.evaluation_steps) == (0.001, 50)
    # Plain SGD at 1 moves to where the learner points.
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.momentum) == ("sgd", 1, 0)


@pytest.mark.parametrize("name", PRESETS)
def test_conv4_has_the_filters_and_tests_the_episodes_of_the_paper(name):
    config = preset_config(name)
    if config.backbone.name == "conv4":
        assert config.backbone.filters == 64
    assert (config.evaluation.n_episodes, config.evaluation.n_query) == (1000, 15)


def test_a_recipe_takes_any_dataset_and_does_not_mirror_characters():
    for learner, backbone in (("protonet", "conv4"), ("metaoptnet-svm", "resnet12")):
        assert recipe(learner, backbone, "glyphs", 1).data.augmentation == "none"
        assert "flip" in recipe(learner, backbone, "cub", 1).data.augmentation
    with pytest.raises(ArgumentError, match=r"learner must be one of protonet, .*; got 'maml'"):
        recipe("maml", "resnet12", "glyphs", 1)


def test_presets_are_listed_in_groups_that_name_them_all():
    groups = preset_groups()
    named = set()
    for pattern, description in groups.items():
        *_, listed = description.split(": ")
        datasets, _, shots = listed.partition("; ")
        for dataset in datasets.split(", "):
            for shot in shots.split(", "):
                named.add(pattern.replace("DATASET", dataset).replace("SHOTS", shot))
    assert named == set(PRESETS)
    assert len(groups) < 12


def test_a_preset_is_where_flags_and_files_start(tiny, tmp_path, capsys):
    file, output = tmp_path / "mine.toml", tmp_path / "run"
    file.write_text(
        "steps = 2\n[data]\ndataset = 'tiny'\naugmentation = 'none'\n"
        "[backbone]\nwidths = [4, 4, 4, 4]\n[optimizer]\nlr = 0.01\n"
    )
    flags = "--n-way 3 --n-shot 2 --n-tasks 2 --evaluation.n-shot 1 --evaluation.n-episodes 4"
    flags += " --evaluation.n-validation 4 --evaluation.n-query 5 --device cpu --quiet"
    name = "metaoptnet-svm-resnet12-cifar-fs"
    run = ["train", "--preset", name, "--config", str(file), *flags.split()]
    assert main([*run, "--output", str(output)]) == 0, capsys.readouterr().err
    config = load_config(output / "config.toml")
    assert config.learner.name == "metaoptnet-svm"
    assert config.optimizer.name == "sgd"
    assert config.optimizer.lr == 0.01
    assert (config.task.n_shot, config.task.n_query) == (2, 6)


def test_what_cannot_be_is_refused(capsys):
    with pytest.raises(ArgumentError, match=r"'maml\+\+-cifar'; .* maml\+\+-conv4-cifar-fs"):
        preset_config("maml++-cifar")
    with pytest.raises(ArgumentError, match=r"there is no preset .*; nearest to it are "):
        preset_config("?")
    assert main(["train", "--preset", "nothing"]) == 1
    assert main(["train", "--preset", "x", "--resume", "y"]) == 1
    assert "leave out --preset" in capsys.readouterr().err
    assert main(["train", "--config", "x", "--config", "y"]) == 1
    assert "once only" in capsys.readouterr().err
