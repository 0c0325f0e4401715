"""Train on a folder of your own images, one folder per class, and test on new classes.

Run: python examples/own_images.py --folder ~/birds
Without a folder it draws a small one.
"""

import argparse
import os
import random
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

from adaptask import Conv4, Evaluator, GCPSampler, ProtoNet, Trainer, open_episodes
from adaptask.data.prepare import prepare_folder


def draw_images(folder: Path, n_classes: int = 20, n_images: int = 12) -> None:
    """Draw polygons: a class has a number of corners and a color."""
    shuffled = random.Random(0)
    for number in range(n_classes):
        color = tuple(shuffled.randrange(60, 256) for _ in range(3))
        (folder / f"shape-{number:02}").mkdir(parents=True)
        for i in range(n_images):
            image = Image.new("RGB", (40, 40), tuple(shuffled.randrange(60) for _ in range(3)))
            center = (shuffled.uniform(16, 24), shuffled.uniform(16, 24), shuffled.uniform(8, 14))
            corners, angle = 3 + number % 5, shuffled.uniform(0, 360)
            ImageDraw.Draw(image).regular_polygon(center, corners, angle, fill=color)
            image.save(folder / f"shape-{number:02}" / f"{i}.png")


def train_and_test(folder: Path, steps: int) -> None:
    """Convert the images, train, and print the accuracy on test classes."""
    done = prepare_folder(folder, name="my-images", image_size=32, workers=1)
    print(f"{done.source}: {done.n_classes} classes, {done.n_images} images")
    train, test = (open_episodes("my-images", split) for split in ("train", "test"))
    backbone = Conv4(image_shape=train.image_set.image_shape, filters=16)
    learner = ProtoNet(backbone=backbone)
    sampler = GCPSampler(n_classes=train.n_classes, n_way=4, seed=0)
    Trainer(learner, sampler, train, n_query=5).fit(steps)
    result = Evaluator(test, n_way=4, n_shot=1, n_query=5, n_episodes=100)(learner)
    print(f"accuracy on new classes: {result}, chance 25 %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="twenty folders with ten images each, or more")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.folder is None:
            arguments.folder = Path(scratch) / "images"
            os.environ["ADAPTASK_CACHE"] = f"{scratch}/cache"  # so that yours stays as it is
            draw_images(arguments.folder)
        train_and_test(arguments.folder, arguments.steps)
