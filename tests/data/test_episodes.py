from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from adaptask.data.augmentation import AUGMENTATIONS, ColorJitter, Compose
from adaptask.data.episodes import EpisodeSource
from adaptask.data.images import ImageSet
from adaptask.errors import ArgumentError, DataError, StateError

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and this machine has none"
)


def make_set(counts, shape=(1, 1, 2)):
    """A split whose images say what they are: first the class, then the image's number."""
    starts = torch.tensor([0, *counts]).cumsum(0)
    images = torch.zeros(int(starts[-1]), *shape, dtype=torch.uint8)
    flat = images.flatten(1)
    for label, count in enumerate(counts):
        flat[starts[label] : starts[label + 1], 0] = label
        flat[starts[label] : starts[label + 1], 1] = torch.arange(count)
    names = tuple(f"class-{label}" for label in range(len(counts)))
    return ImageSet("toy", "train", images, names, starts)


def read(images):
    """The (class, image) of every image of `make_set`, undoing the scaling."""
    values = (images.flatten(2)[..., :2] * 255).round().long()
    return values[..., 0], values[..., 1]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_episodes_hold_distinct_images_of_the_right_classes_in_order(data, seed):
    n_shot, n_query = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    counts = data.draw(st.lists(st.integers(n_shot + n_query, 12), min_size=2, max_size=6))
    n_way = data.draw(st.integers(1, len(counts)))
    n_tasks = data.draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(seed)
    class_ids = torch.rand(n_tasks, len(counts), generator=generator).topk(n_way, 1).indices
    episodes = EpisodeSource(make_set(counts), seed=seed).draw(
        class_ids, n_shot=n_shot, n_query=n_query
    )
    assert episodes.support_images.shape == (n_tasks, n_way * n_shot, 1, 1, 2)
    assert episodes.query_images.shape == (n_tasks, n_way * n_query, 1, 1, 2)
    assert torch.equal(episodes.class_ids, class_ids)
    support_classes, support_numbers = read(episodes.support_images)
    query_classes, query_numbers = read(episodes.query_images)
    assert torch.equal(class_ids.gather(1, episodes.support_labels), support_classes)
    assert torch.equal(class_ids.gather(1, episodes.query_labels), query_classes)
    assert torch.equal(support_classes, class_ids.repeat_interleave(n_shot, 1))
    assert torch.equal(query_classes, class_ids.repeat_interleave(n_query, 1))
    for task in range(n_tasks):
        drawn = [*zip(support_classes[task].tolist(), support_numbers[task].tolist(), strict=True)]
        drawn += zip(query_classes[task].tolist(), query_numbers[task].tolist(), strict=True)
        assert len(set(drawn)) == n_way * (n_shot + n_query)


def test_every_division_into_support_and_query_is_equally_likely_in_unequal_classes():
    counts, repeats, n_shot, n_query = [3, 5], 20_000, 1, 2
    source = EpisodeSource(make_set(counts), seed=3)
    episodes = source.draw(
        torch.tensor([[0, 1]]).repeat(repeats, 1), n_shot=n_shot, n_query=n_query
    )
    support = read(episodes.support_images)[1].view(repeats, 2, n_shot)
    query = read(episodes.query_images)[1].view(repeats, 2, n_query)
    for label, count in enumerate(counts):
        outcomes = dict.fromkeys(
            (
                (one, rest)
                for one in range(count)
                for rest in combinations([i for i in range(count) if i != one], n_query)
            ),
            0,
        )
        for one, rest in zip(support[:, label].tolist(), query[:, label].tolist(), strict=True):
            outcomes[one[0], tuple(sorted(rest))] += 1
        assert chisquare(list(outcomes.values())).pvalue > 1e-3


def test_two_classes_of_a_task_are_drawn_independently():
    source = EpisodeSource(make_set([3, 3]), seed=5)
    episodes = source.draw(torch.tensor([[0, 1]]).repeat(18_000, 1), n_shot=1, n_query=1)
    support = read(episodes.support_images)[1]
    query = read(episodes.query_images)[1]
    outcomes = dict.fromkeys(
        ((a, b) for a in permutations(range(3), 2) for b in permutations(range(3), 2)), 0
    )
    for (s0, s1), (q0, q1) in zip(support.tolist(), query.tolist(), strict=True):
        outcomes[(s0, q0), (s1, q1)] += 1
    assert chisquare(list(outcomes.values())).pvalue > 1e-3


def test_normalization_is_applied_to_exact_values():
    image_set = make_set([4, 4], shape=(3, 2, 2))
    image_set.images.random_(generator=torch.Generator().manual_seed(0))
    mean, deviation = (0.5, 0.4, 0.3), (0.1, 0.2, 0.3)
    class_ids = torch.tensor([[1, 0]])
    plain = EpisodeSource(image_set, seed=1).draw(class_ids, n_shot=1, n_query=3)
    normal = EpisodeSource(image_set, seed=1, normalization=(mean, deviation)).draw(
        class_ids, n_shot=1, n_query=3
    )
    expected = (plain.query_images - torch.tensor(mean)[:, None, None]) / torch.tensor(deviation)[
        :, None, None
    ]
    torch.testing.assert_close(normal.query_images, expected)
    values = plain.support_images[0] * 255
    originals = image_set.images.view(2, 4, 3, 2, 2)[[1, 0]].float()
    nearest = (values[:, None] - originals).abs().flatten(2).amax(2).amin(1)
    assert nearest.max() < 1e-4


def test_augmentation_sees_values_from_0_to_1_and_its_result_is_normalized():
    seen = []

    def darken(images, generator):
        seen.append(images)
        return images * torch.rand(len(images), 1, 1, 1, generator=generator)

    image_set = make_set([4, 4], shape=(1, 2, 2))
    image_set.images.fill_(255)
    source = EpisodeSource(image_set, augmentation=darken, normalization=((0.5,), (0.5,)), seed=2)
    episodes = source.draw(torch.tensor([[0, 1]]), n_shot=1, n_query=2)
    assert torch.equal(seen[0], torch.ones(6, 1, 2, 2))
    images = torch.cat((episodes.support_images, episodes.query_images), dim=1)[0]
    assert len(torch.unique(images.flatten(1), dim=0)) == 6
    assert images.min() >= -1
    assert images.max() <= 1


@pytest.mark.parametrize("augmentation", [None, "crop-flip"])
def test_a_resumed_source_draws_the_same_episodes_bit_by_bit(augmentation):
    image_set = make_set([20] * 6, shape=(1, 6, 6))
    class_ids = torch.tensor([[0, 3, 5], [1, 2, 4]])

    def images(source):
        episodes = source.draw(class_ids, n_shot=2, n_query=3)
        return torch.cat((episodes.support_images, episodes.query_images), dim=1)

    source = EpisodeSource(image_set, seed=7, augmentation=augmentation)
    images(source)
    state = source.state_dict()
    expected = [images(source) for _ in range(3)]
    resumed = EpisodeSource(image_set, seed=99, augmentation=augmentation)
    resumed.load_state_dict(state)
    torch.manual_seed(0)
    assert all(torch.equal(images(resumed), later) for later in expected)
    assert not torch.equal(expected[0], expected[1])


def test_episodes_depend_on_the_seed_alone():
    image_set, class_ids = make_set([30] * 4), torch.tensor([[0, 1, 2, 3]])
    first = EpisodeSource(image_set, seed=1).draw(class_ids, n_shot=1, n_query=5)
    torch.rand(17)
    EpisodeSource(image_set, seed=2).draw(class_ids, n_shot=2, n_query=5)
    second = EpisodeSource(image_set, seed=1).draw(class_ids, n_shot=1, n_query=5)
    other = EpisodeSource(image_set, seed=2).draw(class_ids, n_shot=1, n_query=5)
    assert torch.equal(first.query_images, second.query_images)
    assert not torch.equal(first.query_images, other.query_images)


def test_host_storage_on_a_cpu_gives_the_same_episodes():
    image_set, class_ids = make_set([9, 7, 8]), torch.tensor([[2, 0], [1, 2]])
    draws = [
        EpisodeSource(image_set, seed=4, storage=storage).draw(class_ids, n_shot=2, n_query=4)
        for storage in ("device", "host", "auto")
    ]
    for draw in draws[1:]:
        assert torch.equal(draw.support_images, draws[0].support_images)
        assert torch.equal(draw.query_images, draws[0].query_images)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_shot": 0}, "n_shot must be at least 1; got 0"),
        ({"n_shot": -2}, "n_shot must be at least 1; got -2"),
        ({"n_query": 0}, "n_query must be at least 1; got 0"),
        ({"n_query": 1.5}, "n_query must be an integer at least 1; got 1.5"),
        ({"n_shot": True}, "n_shot must be an integer at least 1; got True"),
        ({"class_ids": [[0, 1]]}, "int64 tensor, `tasks x way`; got list"),
        ({"class_ids": torch.tensor([[0.0, 1.0]])}, "int64 tensor.*got torch.float32"),
        ({"class_ids": torch.tensor([[0, 1]], dtype=torch.int32)}, "got torch.int32"),
        ({"class_ids": torch.tensor([0, 1])}, r"`tasks x way`.*got shape \(2,\)"),
        ({"class_ids": torch.zeros(0, 2, dtype=torch.int64)}, r"got shape \(0, 2\)"),
        ({"class_ids": torch.tensor([[0, 1, 2, 0]])}, r"between 1 and 3.*got shape \(1, 4\)"),
        ({"class_ids": torch.tensor([[0, 3]])}, "between 0 and 2; got 3. Was the sampler"),
        ({"class_ids": torch.tensor([[-1, 2]])}, "between 0 and 2; got -1"),
        ({"class_ids": torch.tensor([[0, 1], [2, 2]])}, r"distinct within a task; got \[2, 2\]"),
        ({"class_ids": torch.zeros(1, 2, dtype=torch.int64, device="meta")}, "must be on cpu"),
    ],
)
def test_unusable_arguments_are_refused_and_cost_no_random_number(changes, message):
    source = EpisodeSource(make_set([9, 9, 9]), seed=0)
    before = source.state_dict()["choice"]
    arguments = {"class_ids": torch.tensor([[0, 1]]), "n_shot": 1, "n_query": 2} | changes
    with pytest.raises(ArgumentError, match=message):
        source.draw(arguments.pop("class_ids"), **arguments)
    assert torch.equal(source.state_dict()["choice"], before)


def test_a_class_with_too_few_images_is_named_whichever_classes_are_asked_for():
    source = EpisodeSource(make_set([9, 5, 9]))
    source.draw(torch.tensor([[1, 0]]), n_shot=2, n_query=3)
    message = r"class 'class-1' of toy \(train\) has 5 images, but n_shot 2 \+ n_query 4 = 6"
    with pytest.raises(DataError, match=message):
        source.draw(torch.tensor([[0, 2]]), n_shot=2, n_query=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": torch.zeros(9, 1, 1, 2)}, "must be uint8.*torch.float32"),
        ({"images": torch.zeros(9, 2, dtype=torch.uint8)}, r"shape \(9, 2\)"),
        ({"class_starts": torch.tensor([0, 4])}, "in 3 entries"),
        ({"class_starts": torch.tensor([0, 4, 8])}, "rise from 0 to 9"),
        ({"class_starts": torch.tensor([0, 9, 9])}, "one class or more"),
        ({"class_starts": torch.tensor([0]), "class_names": ()}, "one class or more"),
    ],
)
def test_a_split_that_is_not_laid_out_as_promised_is_refused(changes, message):
    with pytest.raises(DataError, match=message):
        EpisodeSource(replace(make_set([4, 5]), **changes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"augmentation": "mixup"}, "one of none, crop-flip, crop-jitter-flip, resized.*'mixup'"),
        ({"seed": 1.5}, "seed must be an integer at least 0; got 1.5"),
        ({"storage": "disk"}, "one of auto, device, host; got 'disk'"),
        ({"normalization": ((0.5, 0.5), (1.0, 1.0))}, "1 values each"),
    ],
)
def test_unusable_constructor_arguments_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        EpisodeSource(make_set([4, 5]), **arguments)


@pytest.mark.parametrize(
    "changes",
    [
        {"choice": torch.zeros(3, dtype=torch.uint8)},
        {"choice": torch.zeros(5056)},
        {"augmentation": None},
        {"choice": torch.zeros(5056, dtype=torch.uint8)},
        {"augmentation": torch.zeros(5056, dtype=torch.uint8)},
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(changes):
    source = EpisodeSource(make_set([9, 9]), seed=1)
    before = source.state_dict()
    state = EpisodeSource(make_set([9, 9]), seed=2).state_dict() | changes
    with pytest.raises(StateError, match="damaged"):
        source.load_state_dict(state)
    assert torch.equal(source.state_dict()["choice"], before["choice"])


@pytest.mark.parametrize("change", [{"device": "cuda"}, {"storage": "host"}])
def test_a_state_of_another_kind_of_device_is_followed_with_a_warning(change):
    saved = EpisodeSource(make_set([9, 9]), seed=2).state_dict() | change
    ids = torch.tensor([[0, 1]])
    drawn = []
    for seed in (1, 5):
        source = EpisodeSource(make_set([9, 9]), seed=seed)
        with pytest.warns(UserWarning, match="streams that follow from the saved ones"):
            source.load_state_dict(saved)
        drawn.append(source.draw(ids, n_shot=3, n_query=3).support_images)
    assert torch.equal(*drawn)


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("storage", ["device", "host"])
@pytest.mark.parametrize("augmentation", [None, "crop-flip", "resized-crop-jitter-flip"])
def test_a_draw_for_a_gpu_never_synchronizes(augmentation, storage):
    image_set = make_set([30] * 6, shape=(3, 8, 8))
    source = EpisodeSource(image_set, device="cuda", augmentation=augmentation, storage=storage)
    class_ids = torch.tensor([[0, 3, 5], [1, 2, 4]])
    if storage == "device":
        class_ids = class_ids.to("cuda")
    source.draw(class_ids, n_shot=2, n_query=3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        episodes = source.draw(class_ids, n_shot=2, n_query=3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert episodes.query_images.device == source.device


@needs_gpu
def test_a_captured_draw_gives_fresh_right_episodes_at_every_replay():
    source = EpisodeSource(make_set([30, 12, 20, 9]), device="cuda")
    class_ids = torch.tensor([[0, 3], [1, 2]], device="cuda")
    source.draw(class_ids, n_shot=2, n_query=3)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(source.choice_generator)
    with torch.cuda.graph(graph):
        episodes = source.draw(class_ids, n_shot=2, n_query=3)
    seen = set()
    for _ in range(20):
        graph.replay()
        classes, numbers = read(episodes.query_images)
        assert torch.equal(classes, class_ids.repeat_interleave(3, 1))
        seen.add(tuple(numbers.flatten().tolist()))
    assert len(seen) == 20


@needs_gpu
def test_host_storage_brings_right_episodes_to_the_device():
    source = EpisodeSource(make_set([30, 12, 20, 9]), device="cuda", storage="host", seed=3)
    twin = EpisodeSource(make_set([30, 12, 20, 9]), seed=3)
    for ids in ([[0, 3], [1, 2]], [[2, 1], [3, 0]]):
        episodes = source.draw(torch.tensor(ids), n_shot=2, n_query=3)
        expected = twin.draw(torch.tensor(ids), n_shot=2, n_query=3)
        assert episodes.query_images.device == source.device
        torch.testing.assert_close(episodes.support_images.cpu(), expected.support_images)
        torch.testing.assert_close(episodes.query_images.cpu(), expected.query_images)


def _darker(images, generator):
    return images * torch.rand(len(images), 1, 1, 1, generator=generator)


@pytest.mark.parametrize(
    "augmentation", [*AUGMENTATIONS, Compose((AUGMENTATIONS["crop-flip"], ColorJitter())), _darker]
)
def test_shares_of_a_draw_make_up_the_whole_and_leave_the_same_state(augmentation):
    image_set = make_set([7, 9, 8, 7], shape=(3, 8, 8))
    image_set.images.random_(256, generator=torch.Generator().manual_seed(0))
    class_ids = torch.tensor([[0, 1], [2, 3], [1, 3], [2, 0]])
    whole, *others = (EpisodeSource(image_set, seed=3, augmentation=augmentation) for _ in range(4))
    for bounds in ((0, 1, 3, 4), (0, 2, 3, 4)):
        expected = whole.draw(class_ids, n_shot=2, n_query=3)
        shares = [
            source.draw_share(class_ids, start, stop, n_shot=2, n_query=3)
            for source, (start, stop) in zip(others, pairwise(bounds), strict=True)
        ]
        for name, value in vars(expected).items():
            assert torch.equal(torch.cat([getattr(share, name) for share in shares]), value), name
    for source in others:
        assert torch.equal(source.choice_generator.get_state(), whole.choice_generator.get_state())


def test_a_share_refuses_what_a_draw_refuses():
    source = EpisodeSource(make_set([7, 9]), seed=3)
    with pytest.raises(ArgumentError, match="distinct"):
        source.draw_share(torch.tensor([[0, 1], [1, 1]]), 0, 1, n_shot=1, n_query=1)
    with pytest.raises(DataError, match="has 7 images"):
        source.draw_share(torch.tensor([[0, 1]]), 0, 1, n_shot=4, n_query=4)
