"""Names that earlier versions gave to settings of a run, and what they are called now.

Version 1 of `config.toml` had the choices in `[model]` and the options of each algorithm in a
section of its own name, such as `[maml]`. Version 2 has `[learner]`, `[backbone]` and `[sampler]`,
each with `name` and the options of that class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = {"model.learner": "learner.name", "model.backbone": "backbone.name"}
_SECTIONS = {
    "optimiser": ("optimizer", ""),
    "protonet": ("learner", "protonet"),
    "matchingnet": ("learner", "matchingnet"),
    "relationnet": ("learner", "relationnet"),
    "maml": ("learner", "maml"),
    "maml_plus_plus": ("learner", "maml++"),
    "anil": ("learner", "anil"),
    "reptile": ("learner", "reptile"),
    "metaoptnet_ridge": ("learner", "metaoptnet-ridge"),
    "metaoptnet_svm": ("learner", "metaoptnet-svm"),
    "r2d2": ("learner", "r2d2"),
    "conv4": ("backbone", "conv4"),
    "resnet12": ("backbone", "resnet12"),
}
"""The section of today, and the name of the algorithm whose options the section had."""
_OPTIONS = {
    "regularisation": "regularization",
    "learn_regularisation": "learn_regularization",
    "no_learn_regularisation": "no_learn_regularization",
}
_INNER_LOOP_LEARNERS = ("maml", "maml++", "reptile")


def upgrade_key(key: str) -> str:
    """Return what a setting is called now; a key of today is returned as it is.

    >>> upgrade_key("maml.inner_lr"), upgrade_key("model.learner"), upgrade_key("sampler.tau")
    ('learner.inner_lr', 'learner.name', 'sampler.tau')
    """
    section, dot, name = key.partition(".")
    section, _ = _SECTIONS.get(section, (section, ""))
    return _KEYS.get(key) or f"{section}{dot}{_OPTIONS.get(name, name)}"


def upgrade_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `config.toml` of any version with the sections of today.

    The options of an algorithm that was not chosen keep their old section: they have no place now.

    >>> upgrade_settings({"model": {"learner": "maml"}, "maml": {"inner_lr": 0.1}})
    {'learner': {'name': 'maml', 'inner_lr': 0.1}}
    """
    model = settings.get("model")
    chosen = model if isinstance(model, Mapping) else {}
    upgraded: dict[str, Any] = {}
    for section, values in settings.items():
        if not isinstance(values, Mapping):
            upgraded[section] = values
            continue
        kind, algorithm = _SECTIONS.get(section, (section, ""))
        is_idle = bool(algorithm) and chosen.get(kind, algorithm) != algorithm
        is_idle = is_idle or not isinstance(settings.get(kind, {}), Mapping)
        for name, value in values.items():
            key = f"{section}.{name}" if is_idle else upgrade_key(f"{section}.{name}")
            now, _, option = key.partition(".")
            upgraded.setdefault(now, {})[option] = value
        if not values and not is_idle and kind != "model":
            upgraded.setdefault(kind, {})
    learner = upgraded.get("learner")
    if isinstance(learner, dict) and learner.get("name") in _INNER_LOOP_LEARNERS:
        learner.pop("task_chunk", None)  # it changed no result
        if learner.get("per_step_statistics") is False:
            del learner["per_step_statistics"]  # an option that is gone, and was off
    return upgraded
