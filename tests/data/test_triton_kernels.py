"""The kernel that cuts images against the same in plain torch."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")
ON_GPU = torch.cuda.is_available()
if not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

from adaptask.data import triton_kernels  # noqa: E402, only where it can be
from adaptask.data.augmentation import crop_windows  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"


@pytest.mark.parametrize("crops", [False, True])
@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize("shape", [(1, 9, 7), (3, 32, 32)])
def test_images_are_those_of_several_kernels(shape, crops, flips):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, *shape), dtype=torch.uint8, generator=generator)
    index = torch.tensor([5, 0, 0, 3])
    scale, shift = (torch.rand(shape[0], 1, 1, generator=generator) for _ in range(2))
    truth = images[index].float() / 255
    offsets = flipped = None
    if crops:
        offsets = torch.tensor([[-4, 0, 3, 20], [2, 0, -7, 1]])
        truth = crop_windows(truth, offsets[0], offsets[1])
    if flips:
        flipped = torch.tensor([True, False, True, True])
        truth = torch.where(flipped[:, None, None, None], truth.flip(-1), truth)
    found = triton_kernels.cut_images(
        images.to(DEVICE),
        index.to(DEVICE),
        offsets=None if offsets is None else offsets.to(DEVICE),
        flipped=None if flipped is None else flipped.to(DEVICE),
        scale=scale.to(DEVICE),
        shift=shift.to(DEVICE),
    )
    torch.testing.assert_close(found.cpu(), truth * scale + shift, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_features_are_scaled_and_shifted(dtype):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, 1030, 1, 1, generator=generator).to(dtype)
    scale, shift = (torch.rand(1030, 1, 1, generator=generator) for _ in range(2))
    index = torch.tensor([5, 0, 0, 3])
    found = triton_kernels.cut_images(
        features.to(DEVICE),
        index.to(DEVICE),
        offsets=None,
        flipped=None,
        scale=scale.to(DEVICE),
        shift=shift.to(DEVICE),
    )
    truth = features[index].float() * scale + shift
    torch.testing.assert_close(found.cpu(), truth, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("augmentation", ["none", "crop-flip"])
def test_episodes_are_the_same_with_and_without(tiny, augmentation, monkeypatch):
    from adaptask.data import episodes, open_episodes

    class_ids = torch.tensor([[0, 3, 5], [2, 1, 7]], device="cuda")
    drawn = []
    for kernels in (triton_kernels, None):
        monkeypatch.setattr(episodes, "find_kernels", lambda *_, k=kernels: k)
        source = open_episodes(tiny, "train", device="cuda", augmentation=augmentation, seed=3)
        drawn.append([source.draw(class_ids, n_shot=2, n_query=3) for _ in range(2)])
    for ours, theirs in zip(*drawn, strict=True):
        torch.testing.assert_close(ours.support_images, theirs.support_images)
        torch.testing.assert_close(ours.query_images, theirs.query_images)


@pytest.mark.parametrize(("n_shot", "n_query"), [(1, 15), (3, 4)])
@pytest.mark.parametrize("sizes", [[20, 20, 20], [40, 19, 33, 25, 600, 19]])
def test_images_are_chosen_by_the_smallest_keys(sizes, n_shot, n_query):
    keys = torch.randint(1 << 62, (len(sizes), max(sizes)), generator=torch.Generator())
    starts = torch.tensor([7 * i for i in range(len(sizes))])
    ranges = torch.stack((starts, torch.tensor(sizes)), dim=1)
    order = [keys[row, :size].argsort()[: n_shot + n_query] for row, size in enumerate(sizes)]
    chosen = starts[:, None] + torch.stack(order)
    truth = torch.cat((chosen[:, :n_shot].flatten(), chosen[:, n_shot:].flatten()))
    found = triton_kernels.choose_images(
        keys.to(DEVICE), ranges.to(DEVICE), n_shot=n_shot, n_query=n_query
    )
    assert found.tolist() == truth.tolist()
