"""`torchrun -m adaptask train`: one folder, one voice, and a run that survives its processes."""

import json
import shutil
import signal

import pytest
import torch
from torch.distributed import TCPStore

from adaptask.cli import main
from adaptask.report.run import read_metrics
from adaptask.training.checkpoints import load_checkpoint
from adaptask.training.run_folder import FolderLock

SECONDS = 120
# Adam makes steps out of gradients that are nothing but rounding.
PLAIN = ["--optimizer.name", "sgd", "--lr", "0.01", "--n-tasks", "4", "--steps", "24"]

# Which make the run of the fixture once.
pytestmark = pytest.mark.xdist_group("torchrun runs")


@pytest.fixture(scope="module")
def words(tiny_words):
    """The options of a run."""
    return [*tiny_words, *PLAIN]


@pytest.fixture
def meeting():
    """Where machines meet: here, at a port that nobody else can have taken meanwhile."""
    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="module")
def finished(torchrun, words, tmp_path_factory):
    """A run that two processes made, and what they said."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    process = torchrun("-m", "adaptask", "train", *words, "--output", folder)
    said = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 0, said
    return folder, said


def records(folder):
    return [
        {key: value for key, value in record.items() if key != "seconds"}
        for record in read_metrics(folder / "metrics.jsonl")
    ]


def check_alike(left, right, *, tolerance):
    """Compare records but for rounding."""
    for ours, theirs in zip(left, right, strict=True):
        assert ours.pop("split") == theirs.pop("split")
        assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance)


def state(folder):
    trainer = load_checkpoint(folder / "last.pt")["trainer"]
    trainer.pop("seconds")
    return trainer


# A process that signals itself does so in the middle of a run, however slow the machine is.
SIGNALS_ITSELF = """
import os, sys, time
from pathlib import Path

from adaptask.cli import main
from adaptask.training.trainer import Trainer

rank, number, at_step, note, *arguments = sys.argv[1:]
advance = Trainer._advance

def advance_or_die(trainer, n_steps):
    is_first_time = not Path(note).exists()
    if os.environ["RANK"] == rank and is_first_time and trainer.step == int(at_step):
        Path(note).write_text(str(os.getpid()))
        os.kill(os.getpid(), int(number))
    return advance(trainer, n_steps)

if os.environ["RANK"] == rank and Path(note).exists():
    time.sleep(2)  # so that the others look for it, and find what it left before it died

Trainer._advance = advance_or_die
sys.exit(main(arguments))
"""


@pytest.fixture
def signalled(torchrun, words, tmp_path):
    """Makes a run whose second process signals itself; returns its folder, launcher and pid."""

    def start(number, *, at_step, options=()):
        script, folder, note = (tmp_path / name for name in ("script.py", "run", "pid"))
        script.write_text(SIGNALS_ITSELF)
        run = ("train", *words, "--output", folder)
        launcher = torchrun(script, 1, int(number), at_step, note, *run, options=options)
        said = launcher.communicate(timeout=SECONDS)[1]
        return folder, launcher.returncode, said, int(note.read_text())

    return start


def test_two_processes_leave_the_run_of_one(words, finished, tiny, tmp_path, capsys):
    folder, said = finished
    assert main(["train", *words, "--output", str(tmp_path / "one")]) == 0
    spoken = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("step ")]
    assert len(lines) == len([line for line in spoken.splitlines() if line.startswith("step ")])
    assert said.count("Test accuracy") == 1
    one = tmp_path / "one"
    assert {p.name for p in folder.iterdir()} == {p.name for p in one.iterdir()}
    check_alike(records(folder), records(one), tolerance=1e-4)
    ours, theirs = state(folder), state(one)
    for part in ("learner", "sampler"):
        for key, value in theirs[part].items():
            if isinstance(value, torch.Tensor):
                assert torch.allclose(ours[part][key], value, atol=1e-4), key
    assert torch.equal(ours["class_counts"], theirs["class_counts"])
    tests = [json.loads((path / "test.json").read_text()) for path in (folder, one)]
    assert tests[0]["accuracies"] == tests[1]["accuracies"]
    assert json.loads((folder / "environment.json").read_text())[0]["n_processes"] == 2


def test_a_killed_process_is_named_and_torchrun_goes_on_to_the_same_end(finished, signalled, same):
    # After the first checkpoint, which comes after four steps.
    folder, code, said, victim = signalled(
        signal.SIGKILL, at_step=6, options=("--max-restarts", "1")
    )
    assert code == 0, said
    assert said.count("adaptask: ") == 1
    assert "adaptask: a process of this run is gone" in said
    assert f"failed (exitcode: -9) local_rank: 1 (pid: {victim})" in said
    assert "resuming from step 4 of" in said
    whole, _ = finished
    assert records(folder) == records(whole)
    assert same(state(folder), state(whole))
    assert json.loads((folder / "test.json").read_text()) == json.loads(
        (whole / "test.json").read_text()
    )


def test_all_stop_at_the_same_step_and_one_process_can_go_on(finished, signalled, tiny):
    folder, code, said, _ = signalled(signal.SIGTERM, at_step=3)
    assert code == 1
    step = state(folder)["step"]
    assert 3 < step < 24
    assert f"Stopped after step {step}." in said
    assert "To continue: torchrun ... -m adaptask train --resume" in said
    assert "adaptask: " not in said
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    whole, _ = finished
    ours, theirs = state(folder), state(whole)
    assert torch.equal(ours["class_counts"], theirs["class_counts"])
    assert torch.allclose(
        ours["sampler"]["log_potentials"], theirs["sampler"]["log_potentials"], atol=1e-4
    )


def test_four_processes_go_on_with_what_two_began(finished, torchrun, tiny, tmp_path):
    whole, _ = finished
    four, one = tmp_path / "four", tmp_path / "one"
    for folder in (four, one):
        shutil.copytree(whole, folder)
    more = ("--steps", "30", "--quiet")
    launcher = torchrun("-m", "adaptask", "train", "--resume", four, *more, n_processes=4)
    said = launcher.communicate(timeout=SECONDS)[1]
    assert launcher.returncode == 0, said
    assert main(["train", "--resume", str(one), *more]) == 0
    ours, theirs = state(four), state(one)
    assert ours["step"] == theirs["step"] == 30
    assert torch.equal(ours["class_counts"], theirs["class_counts"])
    assert torch.allclose(
        ours["sampler"]["log_potentials"], theirs["sampler"]["log_potentials"], atol=1e-4
    )
    check_alike(records(four), records(one), tolerance=1e-4)
    assert sizes(four) == [2, 4]


def sizes(folder):
    """How many processes made the run, one after the other."""
    environments = json.loads((folder / "environment.json").read_text())
    return [entry.get("n_processes", 1) for entry in environments]


def test_an_error_of_the_first_process_before_training_ends_all(words, torchrun, tmp_path):
    folder = tmp_path / "taken"
    folder.mkdir()
    with FolderLock(folder / "lock").held():
        launcher = torchrun("-m", "adaptask", "train", *words, "--output", folder)
        said = launcher.communicate(timeout=SECONDS)[1]
    assert launcher.returncode == 1
    assert said.count("adaptask: ") == 1
    assert f"adaptask: another process is training in {folder}" in said


@pytest.mark.parametrize("command", ["compare", "demo", "sweep", "evaluate"])
def test_commands_for_one_process_are_refused(tiny, monkeypatch, tmp_path, capsys, command):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    flags = {"sweep": ["--alpha", "1", "2"], "evaluate": [str(tmp_path)]}
    assert main([command, *flags.get(command, [])]) == 1
    assert f"{command} is for one process. Start it without torchrun." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_process_on_a_gpu_captures_its_messages_and_makes_the_same_run(
    words, torchrun, tiny, tmp_path
):
    run = ["train", *words, "--device", "cuda", "--engine", "graph"]
    launcher = torchrun("-m", "adaptask", *run, "--output", tmp_path / "run", n_processes=1)
    said = launcher.communicate(timeout=SECONDS)[1]
    assert launcher.returncode == 0, said
    assert main([*run, "--output", str(tmp_path / "alone")]) == 0
    found, expected = (
        [record for record in records(tmp_path / name) if record["split"] == "train"]
        for name in ("run", "alone")
    )
    # A GPU adds in another order each time.
    check_alike(found, expected, tolerance=1e-2)


def test_two_machines_that_share_no_folder_make_the_run_of_two_processes(
    finished, torchrun, words, meeting, tmp_path, same
):
    endpoint = ("--rdzv-endpoint", f"localhost:{meeting.port}", "--rdzv-conf", "is_host=0")
    options = ["--nnodes", "2", "--rdzv-backend", "c10d", *endpoint]
    folders = [tmp_path / "here", tmp_path / "there"]
    machines = [
        torchrun(
            *("-m", "adaptask", "train", *words, "--output", folder),
            n_processes=1,
            options=(*options, "--rdzv-id", "7"),
        )
        for folder in folders
    ]
    for machine in machines:
        said = machine.communicate(timeout=SECONDS)[1]
        assert machine.returncode == 0, said
    [folder] = [folder for folder in folders if folder.exists()]
    whole, _ = finished
    assert same(state(folder), state(whole))
    assert records(folder) == records(whole)


def test_two_machines_go_on_after_a_kill_on_one_and_it_costs_one_restart(
    finished, torchrun, words, meeting, monkeypatch, tmp_path, same
):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # torchrun counts a restart on the machine of the process that died, and none on the first.
    script, folder, note = (tmp_path / name for name in ("script.py", "run", "pid"))
    script.write_text(SIGNALS_ITSELF)
    options = ("--nnodes", "2", "--max-restarts", "1", "--rdzv-backend", "c10d")
    options += ("--rdzv-endpoint", f"localhost:{meeting.port}", "--rdzv-conf", "is_host=0")
    kill = (script, 1, int(signal.SIGKILL), 6, note)
    machines = [
        torchrun(*kill, "train", *words, "--output", folder, n_processes=1, options=options)
        for _ in range(2)
    ]
    try:
        said = [machine.communicate(timeout=SECONDS / 2)[1] for machine in machines]
    finally:
        for machine in machines:
            machine.terminate()
            machine.communicate()
    assert [machine.returncode for machine in machines] == [0, 0], said
    everything = "".join(said)
    assert everything.count("adaptask: ") == 1
    assert "adaptask: a process of this run is gone" in everything
    assert f"failed (exitcode: -9) local_rank: 0 (pid: {note.read_text()})" in everything
    assert everything.count("resuming from step 4 of") == 1
    whole, _ = finished
    assert records(folder) == records(whole)
    assert same(state(folder), state(whole))
