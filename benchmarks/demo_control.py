"""What the demo has to be compared with: a control of `neighbor`, and training with more ways.

    python benchmarks/demo_control.py permuted    # two to three minutes on two cores
    python benchmarks/demo_control.py 20-way

`permuted`: the classes of `update` are permuted once. Tasks are then as uneven as those of
`neighbor`, and made of classes that have nothing in common: it must gain nothing.

`20-way`: one task of 20 classes per step instead of four of five, as many images.

Both compare with uniform sampling, in the settings and with the seeds of the demo otherwise.

Six seeds on two CPU cores, accuracy in percent and paired difference with its 95 % interval:

    the demo    uniform 69.43    gcp 69.63, +0.20 [-0.20, +0.60]
                                 neighbor 70.76, +1.33 [+0.94, +1.72]
    permuted    uniform 69.43    permuted 68.99, -0.44 [-0.79, -0.09]

The same with a fixed strength (`beta` 1, `target_accuracy` None), which was the first default:

    the demo    uniform 69.43    neighbor 71.24, +1.81 [+1.51, +2.11]
    permuted    uniform 69.43    permuted 69.04, -0.39 [-0.70, -0.08]
    20-way      uniform 74.54    neighbor 74.16, -0.38 [-0.63, -0.14]
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adaptask.samplers import NeighborSampler


class PermutedNeighbor(NeighborSampler):
    """`neighbor`, with the classes of `update` permuted once."""

    description = "neighbor with the features of other classes"

    def update(self, class_ids: Tensor, *feedback: Any, **features: Any) -> None:
        """Learn what is said about a class as if it were about another one."""
        generator = torch.Generator().manual_seed(0)
        permutation = torch.randperm(self.n_classes, generator=generator).to(class_ids.device)
        super().update(permutation[class_ids], *feedback, **features)


def main(which: str) -> int:
    """Make one of the comparisons and print its table."""
    from adaptask.experiments.compare_command import compare
    from adaptask.experiments.demo import SEEDS, demo_config

    config, rival = demo_config(), "demo_control:PermutedNeighbor"
    if which == "20-way":
        config, rival = replace(config, task=replace(config.task, n_way=20, n_tasks=1)), "neighbor"
    os.chdir(Path(__file__).parent)  # where worker processes find this module
    with tempfile.TemporaryDirectory() as folder:
        return compare(
            config,
            learners=("protonet",),
            samplers=("uniform", rival),
            seeds=SEEDS,
            output=Path(folder),
        )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
