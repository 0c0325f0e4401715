"""Every command, flag and configuration that the pages show is understood, and could be started.

Blocks of Python are run by `test_docs.py`.
"""

import contextlib
import functools
import inspect
import io
import itertools
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser
from tyro.extras import SubcommandApp

from adaptask import cli
from adaptask.data.datasets import check_name
from adaptask.experiments.compare_command import comparison
from adaptask.experiments.config import RunConfig, check_config
from adaptask.experiments.config_file import dump_config, parse_config
from adaptask.experiments.paper.reproduction import plan
from adaptask.experiments.sweep import parse_space, plan_trials
from adaptask.registry import BACKBONES, LEARNERS, SAMPLERS

ROOT = Path(__file__).parents[1]
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = sorted([*(ROOT / name for name in TOP), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", flags=re.M | re.S)
GROUPS = {*(registry.group for registry in (SAMPLERS, LEARNERS, BACKBONES)), "adaptask.datasets"}
LANGUAGES = {"python", "sh", "toml", "math", "bibtex", ""}


def fences(page):
    return [(words.split()[:1], block) for words, block in FENCE.findall(page.read_text())]


def commands(page):
    """The `adaptask` lines of all blocks, and what stands in the text with flags."""
    text = page.read_text()
    blocks = "".join(block for language, block in fences(page) if language in ([], ["sh"]))
    lines = blocks.replace("\\\n", " ").splitlines()
    inline = re.findall(r"`((?:adaptask|torchrun) [^`\n]*--[^`\n]*)`", FENCE.sub("", text))
    return [words for line in [*lines, *inline] if (words := words_of(line)) is not None]


def words_of(line):
    """What a line gives to adaptask, if it is one that starts it, by itself or by torchrun."""
    if line.startswith("adaptask "):
        return shlex.split(line, comments=True)[1:]
    if not (line.startswith("torchrun ") and " -m adaptask " in line):
        return None
    return get_args_parser().parse_args(shlex.split(line, comments=True)[1:]).training_script_args


def configs(page):
    return [block for language, block in fences(page) if language == ["toml"]]


COMMANDS = [(page, words) for page in PAGES for words in commands(page)]


def label(value):
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else " ".join(value)


def plan_only(name, command):
    """The command with its signature, which checks what it is given and does nothing."""

    @functools.wraps(command)
    def stand_in(*args, **kwargs):
        given = inspect.signature(command).bind(*args, **kwargs)
        given.apply_defaults()
        PLANS.get(name, lambda **_: None)(**given.arguments)

    return stand_in


def plan_comparison(*, run, **_):
    base, options = cli._line.split_shared(run)
    chosen = {"learners": cli._line.learners, "samplers": cli._line.samplers}
    for trial in comparison(base, **chosen, options=options):
        check_config(trial.config)


def plan_sweep(*, run, vary, search, trials, search_seed, **_):
    space = parse_space(run, vary)
    plan_trials(run, space, search=search, n_trials=trials, seed=search_seed)


def plan_reproduction(*, target, dry_run, output, workers, cluster, **choice):
    plan(target, **choice)


PLANS = {
    **dict.fromkeys(("train", "pretrain"), lambda *, run, **_: check_config(run)),
    "compare": plan_comparison,
    "sweep": plan_sweep,
    "reproduce": plan_reproduction,
}


def planning(app):
    """The command line, with commands that only check."""
    found = SubcommandApp()
    for name, spec in app._subcommands.items():
        is_group = isinstance(spec.target, SubcommandApp)
        target = planning(spec.target) if is_group else plan_only(name, spec.target)
        found.command(target, name=name, help=spec.help)
    return found


OWN_SAMPLER = """
from adaptask.samplers import GCPSampler

class MySampler(GCPSampler):
    def __init__(self, *, boldness: float = 1.0, **kwargs):
        super().__init__(**kwargs)
"""


@pytest.fixture
def run_planned(tmp_path, monkeypatch):
    """Gives words to the command line, in a folder that has the files they name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_module.py").write_text(OWN_SAMPLER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    monkeypatch.setattr(cli, "app", planning(cli.app))
    # What the pages about own images and features have prepared.
    monkeypatch.setattr(
        "adaptask.experiments.command_line.check_name",
        lambda name: name in ("birds", "dino", "pets") or check_name(name),
    )
    monkeypatch.setattr(
        "adaptask.experiments.command_line._for_dataset", lambda base, dataset: base
    )
    for command in cli._CONFIGURED.values():
        monkeypatch.setattr(command, "__defaults__", command.__defaults__)

    def give(words):
        for flag, path in itertools.pairwise(words):
            file = {"--config": Path(path), "--resume": Path(path) / "config.toml"}.get(flag)
            if file is not None:
                (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / file).write_text(dump_config(RunConfig()))
        try:
            return cli.main(list(words))
        except SystemExit as stop:
            return stop.code

    return give


def test_commands_are_found_on_the_pages():
    assert {words[0] for _, words in COMMANDS} >= {"train", "compare", "sweep", "reproduce", "data"}
    by_torchrun = [" ".join(words) for page, words in COMMANDS if page.name == "distributed.md"]
    assert "train --dataset cifar-fs --n-tasks 8 --output runs/wide" in by_torchrun
    assert "train --resume runs/wide" in by_torchrun  # which stands in the text


@pytest.fixture
def write_package(tmp_path, monkeypatch):
    """Writes the Python of a page to `my_package.my_module`, which its commands may name."""

    def write(page):
        (tmp_path / "my_package").mkdir()
        code = "\n".join(block for language, block in fences(page) if language == ["python"])
        (tmp_path / "my_package" / "my_module.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)

    yield write
    for name in ("my_package", "my_package.my_module"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=label)
def test_a_command_of_a_page_is_understood(page, words, run_planned, write_package, capsys):
    if any("my_package" in word for word in words):
        write_package(page)
    assert run_planned(words) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--no-such-flag", "1"],
        ["train", "--sampler", "gpc"],
        ["train", "--sampler", "uniform", "--tau", "0.3"],
        ["compare", "--samplers", "gcp:beta=2"],
        ["sweep", "--vary", "optimizer.learning_rate=1,2"],
        ["reproduce", "table-9"],
        ["data", "prepare", "folder"],
    ],
    ids=" ".join,
)
def test_the_check_of_commands_finds_mistakes(words, run_planned, capsys):
    assert run_planned(words) != 0


def test_the_check_of_commands_finds_mistakes_in_the_words_for_torchrun(capsys):
    with pytest.raises(SystemExit):
        words_of("torchrun --no-such-flag 4 -m adaptask train")


def other_lines(page):
    """The lines of shell blocks that start something other than adaptask."""
    blocks = "".join(block for language, block in fences(page) if language == ["sh"])
    lines = [shlex.split(line, comments=True) for line in blocks.replace("\\\n", " ").splitlines()]
    return [words for words in lines if words and words[0] not in ("adaptask", "torchrun")]


def is_known(words):
    """Whether a line starts something that there is."""
    match words:
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text()
            return all(re.search(rf"^{re.escape(t)}:", makefile, flags=re.M) for t in targets)
        case ["pip", "install", what]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            name, extras = re.fullmatch(r"([\w.]+)(?:\[([\w,]+)\])?", what).groups()
            known = project["optional-dependencies"].keys()
            return name in (".", project["name"]) and set((extras or "dev").split(",")) <= known
        case ["python", script, *_]:
            return (ROOT / script).is_file()
        case ["jupyter", "lab", notebook]:
            return (ROOT / notebook).is_file()
        case ["git", "clone", *_] | ["ray", "start", *_] | [".venv/bin/pre-commit", "install"]:
            return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_other_line_of_a_shell_block_starts_something_that_there_is(page):
    for words in other_lines(page):
        assert is_known(words), " ".join(words)


@pytest.mark.parametrize(
    "line", ["make tests", "pip install '.[cuda]'", "python examples/none.py", "adaptsk list"]
)
def test_the_check_of_other_lines_finds_mistakes(line):
    assert not is_known(shlex.split(line))


@pytest.fixture(scope="module")
def known_flags():
    """Every flag of every command and of torchrun, from its help."""
    names = [[name] for name in cli.app._subcommands if name not in ("data", *cli._CONFIGURED)]
    names += [["data", name] for name in cli.app._subcommands["data"].target._subcommands]
    shown = [get_args_parser().format_help()]
    shown += [help_of([*words, "--help"]) for words in names]
    shown += [
        help_of([name, flag]) for name in cli._CONFIGURED for flag in ("--help", "--help-all")
    ]
    chosen = [*(("--learner", name) for name in LEARNERS), ("--backbone", "resnet12")]
    chosen += [("--sampler", name) for name in ("uniform", "c", "cp")]
    shown += [help_of(["train", *words, "--help-all"]) for words in chosen]
    return set(re.findall(r"--[a-z][\w.-]*\w", "".join(shown)))


def help_of(words):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        cli.main(words)
    return shown.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_flag_of_a_page_exists(page, known_flags):
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text()))
    code = " ".join(code for code in inline if "benchmarks/" not in code)
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", code)) - known_flags
    assert flags <= own_flags(page)


def own_flags(page):
    """Flags of a class that a page defines: its arguments."""
    code = "".join(block for language, block in fences(page) if language == ["python"])
    arguments = [name.replace("_", "-") for name in re.findall(r"\b(\w+): ", code)]
    kinds = ("sampler", "learner", "backbone")
    return {f"--{kind}.{argument}" for kind in kinds for argument in arguments}


@pytest.mark.parametrize(
    ("page", "text"), [(p, t) for p in PAGES for t in configs(p)], ids=lambda v: Path(v).name[:40]
)
def test_a_configuration_of_a_page_is_one(page, text):
    project = tomllib.loads(text).get("project")
    if project is None:
        check_config(parse_config(text))
        return
    # Part of a pyproject.toml: entry points, by which a package adds names.
    (group,) = project["entry-points"]
    assert group in GROUPS


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_block_of_a_page_has_a_language_that_is_checked(page):
    for language, block in fences(page):
        assert (language or [""])[0] in LANGUAGES, block
