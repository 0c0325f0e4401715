"""A study through a Ray of its own, stopped by Ctrl-C: it saves, and no process stays behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adaptask.experiments.config_file import dump_config
from adaptask.report.run import Run
from adaptask.training.checkpoints import load_checkpoint

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]
SCRIPT = """
    import sys
    from pathlib import Path
    from adaptask.experiments.backends.ray import ClusterOptions
    from adaptask.experiments.compare_command import compare
    from adaptask.experiments.config_file import load_config

    folder = Path(sys.argv[1])
    config = load_config(folder / "config.toml")
    parts = {"learners": ["protonet"], "samplers": ["gcp"], "seeds": 1}
    compare(config, **parts, output=folder / "s", cluster=ClusterOptions(cluster="ray"))
"""


def family(session):
    """The processes of a session that have not ended, and what they do."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = path.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found[int(path.parent.name)] = path.with_name("cmdline").read_text()
        except OSError:
            pass  # it has ended
    return found


def test_after_ctrl_c_runs_have_saved_and_all_processes_end(tiny_config, tmp_path):
    config = replace(tiny_config, steps=100_000, every=replace(tiny_config.every, checkpoint=20))
    (tmp_path / "config.toml").write_text(dump_config(config))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    ray_folder = tempfile.mkdtemp(dir="/tmp")
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
        env=os.environ | {"RAY_TMPDIR": ray_folder, "RAY_ADDRESS": ""},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = tmp_path / "s/runs/protonet-gcp/seed-0"
    deadline = time.monotonic() + 120
    while not (run / "previous.pt").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(family(process.pid)) > 4
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while left := family(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    # Stopped after a step, with a checkpoint of it.
    step = load_checkpoint(run / "last.pt")["trainer"]["step"]
    assert step >= Run(run).steps_done > 0
    assert out == ""
    assert err.startswith("To continue, run the same command again; finished work is kept.\n")
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "ray::" not in err
    shutil.rmtree(ray_folder)
