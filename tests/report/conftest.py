"""Folders of runs that nobody trained: files as a run writes them, with chosen results in them."""

import json

import numpy as np
import pytest
import tomlkit

from adaptask.report.run import Run
from adaptask.report.study import Arm, Published, Study

SAMPLER_OPTIONS = {
    "uniform": {},
    "c": {"alpha": 1.0, "tau": 0.5, "strategy": "hard"},
    "gcp": {"alpha": 1.0, "tau": 0.5, "strategy": "hard", "confusion": "sum", "exploration": 0.0},
}
LEARNER_OPTIONS = {"protonet": {"temperature": 1.0}, "maml": {"inner_lr": 0.01, "n_inner": 5}}


def run_config(*, seed=0, learner="protonet", sampler="uniform", steps=1000, changes=None):
    """The configuration of a run, complete but for options that play no part."""
    config = {
        "format": 2,
        "steps": steps,
        "seed": seed,
        "data": {"dataset": "glyphs", "augmentation": "default"},
        "task": {"n_way": 5, "n_shot": 1, "n_query": 15, "n_tasks": 1},
        "learner": {"name": learner, **LEARNER_OPTIONS.get(learner, {})},
        "backbone": {"name": "conv4", "filters": 64},
        "sampler": {"name": sampler, **SAMPLER_OPTIONS.get(sampler, {})},
        "optimizer": {"name": "adam", "lr": 1e-3},
        "evaluation": {"n_query": 15, "n_episodes": 200, "seed": 0},
        "every": {"log": 50, "validate": 500},
        "machine": {"device": "cpu", "precision": "float32"},
    }
    for key, value in (changes or {}).items():
        section, _, name = key.rpartition(".")
        (config[section] if section else config)[name] = value
    return config


def episode_accuracies(mean, n_episodes, seed=0):
    """Accuracies with exactly that mean, of episodes that are equally hard in every run."""
    noise = np.random.default_rng(seed).normal(0, 0.08, n_episodes)
    accuracies = mean + noise - noise.mean()
    assert accuracies.min() >= 0
    assert accuracies.max() <= 1
    return accuracies


def metrics_lines(*, steps, seconds_per_step, every=50):
    for step in range(every, steps + 1, every):
        # The first record has what is done once.
        seconds = 1.0 + seconds_per_step * step
        loss, accuracy = 1.6 - step / steps, 0.2 + 0.3 * step / steps
        train = {"step": step, "split": "train", "loss": loss, "accuracy": accuracy}
        yield json.dumps(train | {"lr": 1e-3, "seconds": seconds})
        if step % (10 * every) == 0:
            yield json.dumps({"step": step, "split": "sampler", "kl": 0.1, "entropy": 3.0})
            val = {"step": step, "split": "val", "accuracy": accuracy, "interval": 0.01}
            yield json.dumps(val | {"loss": loss})


def write_arrays(folder, *, n_classes, steps):
    rng = np.random.default_rng(0)
    (folder / "snapshots").mkdir()
    for step in (steps // 2, steps):
        half = rng.normal(0, 0.3, (n_classes, n_classes)).astype(np.float32)
        potentials = half + half.T
        np.fill_diagonal(potentials, -np.inf)
        np.savez_compressed(
            folder / "snapshots" / f"step-{step:07d}.npz",
            distribution=potentials,
            class_counts=np.arange(n_classes) * step,
        )
    np.savez_compressed(
        folder / "portrait.npz",
        class_names=np.array([f"class {i}" for i in range(n_classes)]),
        images=rng.integers(0, 256, (n_classes, 2, 8, 8, 1), dtype=np.uint8),
        similarity=np.eye(n_classes, dtype=np.float32),
        tasks=rng.integers(0, n_classes, (6, 5)),
    )


@pytest.fixture
def write_run():
    """A function that writes the folder of a run.

    What it takes: `folder`; `accuracy`, the mean over the test episodes, or None of a run that is
    not finished; `accuracies`, those of the episodes themselves; `seed`, `learner`, `sampler`,
    `steps` and `changes` of the configuration, such as `{"task.n_shot": 5}`;
    `seconds_per_step`; `failure`, the text of a failed run; `arrays`, whether there are snapshots
    and a portrait.
    """

    def write(
        folder,
        *,
        accuracy=None,
        accuracies=None,
        n_episodes=200,
        seconds_per_step=0.01,
        failure=None,
        arrays=False,
        **settings,
    ):
        folder.mkdir(parents=True)
        config = run_config(**settings)
        (folder / "config.toml").write_text(tomlkit.dumps(config), encoding="utf-8")
        environment = {"step": 0, "torch": "2.13.0", "threads": 1, "devices": [], "device": "cpu"}
        (folder / "environment.json").write_text(json.dumps([environment]))
        lines = metrics_lines(steps=config["steps"], seconds_per_step=seconds_per_step)
        (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
        if arrays:
            write_arrays(folder, n_classes=8, steps=config["steps"])
        if failure is not None:
            (folder / "failure.txt").write_text(failure + "\n", encoding="utf-8")
        if accuracies is None and accuracy is not None:
            accuracies = episode_accuracies(accuracy, n_episodes)
        if accuracies is not None:
            result = {"accuracy": float(np.mean(accuracies)), "interval": 0.01, "loss": 1.0}
            result |= {"steps": [config["steps"]], "accuracies": list(map(float, accuracies))}
            (folder / "test.json").write_text(json.dumps(result))
        return folder

    return write


@pytest.fixture
def study_folder(tmp_path, write_run):
    """A function that writes a study: its file and its runs.

    What it takes: `results`, the accuracies of each arm by its labels and by seed, such as
    `{("protonet", "gcp"): {0: 0.51, 1: 0.52}}`, where None is a run that has not ended, "" one
    that has not begun and another text one that failed; `keys`, what the labels are called;
    `published`, figures by labels; `seconds`, times a step by labels; and what `Study` takes.
    The arm with the sampler `uniform` and otherwise the same labels is the baseline.
    """

    def write(results, *, keys=("learner", "sampler"), published=None, seconds=None, **study):
        folder = tmp_path / "study"
        arms = []
        for labels, values in results.items():
            known = dict(zip(keys, labels, strict=True))
            uniform = tuple({**known, "sampler": "uniform"}.values())
            settings = {k: known[k] for k in ("learner", "sampler") if k in known}
            runs = []
            for seed, value in values.items():
                place = folder / f"runs/{len(arms)}/{seed}"
                runs.append(Run(place, seed))
                if value == "":
                    continue
                ending = {"failure": value} if isinstance(value, str) else {"accuracy": value}
                pace = (seconds or {}).get(labels, 0.01)
                write_run(place, seed=seed, seconds_per_step=pace, **ending, **settings)
            printed = (published or {}).get(labels)
            arms.append(
                Arm(
                    name=" ".join(labels),
                    labels=known,
                    runs=tuple(runs),
                    baseline=" ".join(uniform)
                    if uniform != labels and uniform in results
                    else None,
                    published=None if printed is None else Published(**printed),
                )
            )
        folder.mkdir(exist_ok=True)
        Study(**{"title": "A study", "arms": tuple(arms), **study}).write(folder)
        return folder

    return write
