import contextlib
import functools
import io
import operator
import warnings

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Sampler as TorchSampler

from adaptask.errors import ArgumentError, DataError, StateError
from adaptask.integrations.torch import EpisodeBatchSampler
from adaptask.learners import build_learner
from adaptask.samplers import SAMPLERS, build_sampler

N_CLASSES, N_WAY, N_SHOT, N_QUERY = 8, 3, 1, 2


def potentials(episodes):
    return episodes.sampler.log_potentials


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 3, "prefetch_factor": 4}])
def test_the_seed_decides_the_tasks_whatever_the_number_of_workers(build, run, options):
    alone, helped = build(n_tasks=30), build(n_tasks=30)
    tasks = run(alone)
    assert torch.equal(run(helped, **options), tasks)
    assert torch.equal(potentials(helped), potentials(alone))
    assert potentials(alone).isfinite().sum() == N_CLASSES * (N_CLASSES - 1)
    assert len(potentials(alone).unique()) > 10
    n_ahead = options["num_workers"] * options.get("prefetch_factor", 2)
    assert helped.report.largest_delay == n_ahead
    assert alone.report.largest_delay == 0


def test_spawned_workers_that_persist_give_the_same_epochs(build, run):
    alone, helped = build(n_tasks=6, lag=4), build(n_tasks=6, lag=4)
    tasks = run(alone, n_epochs=3)
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}
    # It need not travel to the workers, but may, with a function of the user's.
    options["worker_init_fn"] = functools.partial(operator.is_not, helped)
    assert torch.equal(run(helped, n_epochs=3, **options), tasks)
    assert torch.equal(potentials(helped), potentials(alone))


def test_epochs_that_are_left_early_do_not_depend_on_workers_either(build, run):
    alone, helped = build(n_tasks=10), build(n_tasks=10)
    tasks = run(alone, n_epochs=4, stop_after=7)
    assert torch.equal(run(helped, n_epochs=4, stop_after=7, num_workers=2), tasks)
    for episodes in (alone, helped):
        episodes.flush()
    assert torch.equal(potentials(helped), potentials(alone))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_no_two_workers_load_the_same_tasks(build, dataset):
    # What users of samplers that draw inside the workers meet: every task comes once a worker.
    episodes = build("uniform", n_tasks=24)
    loader = DataLoader(episodes.wrap(dataset), batch_sampler=episodes, num_workers=4)
    batches = list(loader)
    images = [tuple(batch.query_images[..., 4].flatten().tolist()) for batch in batches]
    assert len(set(images)) == 24
    assert torch.cat([batch.task_ids for batch in batches]).tolist() == list(range(24))


def test_a_sampler_that_does_nothing_with_so_few_classes_says_so(dataset):
    sampler = build_sampler("neighbor", n_classes=N_CLASSES, n_way=N_WAY, n_features=4)
    with pytest.warns(UserWarning, match="neighbor draws uniform tasks here: with 8 training"):
        EpisodeBatchSampler(dataset.tensors[1], sampler, N_SHOT, N_QUERY, 4)
    chosen = build_sampler("neighbor", n_classes=N_CLASSES, n_way=N_WAY, n_features=4, beta=1.0)
    EpisodeBatchSampler(dataset.tensors[1], chosen, N_SHOT, N_QUERY, 4)  # warnings are errors here


def test_several_processes_are_warned_that_they_draw_the_same_tasks(build, monkeypatch):
    build()
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 1)
    build()
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    with pytest.warns(UserWarning, match="each of the 2 processes .* the same tasks"):
        build()


def test_torch_is_given_no_data_source(build):
    # torch took Sampler(data_source) for years, warned, and removed it.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        episodes = build()
    assert isinstance(episodes, TorchSampler)
    assert "data_source" not in vars(episodes)


@pytest.mark.parametrize("lag", [0, 1, 5])
@pytest.mark.parametrize("tasks_per_batch", [1, 3])
def test_the_potentials_are_those_of_a_plain_loop_with_that_lag(
    build, dataset, classify, lag, tasks_per_batch
):
    episodes = build(n_tasks=24, lag=lag, tasks_per_batch=tasks_per_batch)
    twin = build_sampler("gcp", n_classes=N_CLASSES, n_way=N_WAY, seed=3)
    labels = torch.arange(N_WAY).repeat_interleave(N_QUERY)
    waiting = []
    for batch in DataLoader(episodes.wrap(dataset), batch_sampler=episodes):
        if len(waiting) > lag:
            twin.update(*waiting.pop(0), labels)
        class_ids = twin.sample(tasks_per_batch)
        assert torch.equal(batch.class_ids, class_ids)
        waiting.append((class_ids, classify(batch).softmax(-1)))
        episodes.feedback(batch.task_ids, classify(batch))
    assert torch.equal(potentials(episodes), twin.log_potentials)
    episodes.flush()
    for given in waiting:
        twin.update(*given, labels)
    assert torch.equal(potentials(episodes), twin.log_potentials)


def test_a_batch_holds_the_images_of_its_classes_and_each_once(build, dataset):
    episodes = build(n_tasks=40, tasks_per_batch=4, n_shot=2, n_query=3)
    for batch in DataLoader(episodes.wrap(dataset), batch_sampler=episodes):
        assert batch.support_images.shape == (4, N_WAY * 2, 5)
        assert batch.query_images.shape == (4, N_WAY * 3, 5)
        for name in ("support", "query"):
            positions = getattr(batch, f"{name}_images")[..., 4].long()
            labels = getattr(batch, f"{name}_labels")
            assert torch.equal(dataset.tensors[1][positions], batch.class_ids.gather(1, labels))
        both = torch.cat((batch.support_images, batch.query_images), 1)[..., 4]
        assert (both.sort().values.diff() > 0).all()


def test_a_plain_dataset_is_given_its_positions_class_by_class(build, dataset):
    episodes = build("uniform", n_tasks=1)
    points, labels = next(iter(DataLoader(dataset, batch_sampler=episodes)))
    assert points.shape == (N_WAY * (N_SHOT + N_QUERY), 5)
    rows = labels.view(N_WAY, -1)
    assert (rows == rows[:, :1]).all()
    task_id = episodes.find(rows[:, 0])
    assert task_id == 0
    episodes.feedback(task_id, torch.zeros(N_WAY * N_QUERY, N_WAY))
    with pytest.raises(ArgumentError, match="waits for feedback"):
        episodes.find(rows[:, 0])
    with pytest.raises(ArgumentError, match="waits for feedback"):
        episodes.find(["owl", "cat", "dog"])


def test_feedback_in_any_order_and_task_by_task_gives_the_same_potentials(build, dataset, classify):
    ordered, shuffled = (build(n_tasks=24, tasks_per_batch=2, lag=5) for _ in range(2))
    kept = []
    loaders = (DataLoader(e.wrap(dataset), batch_sampler=e) for e in (ordered, shuffled))
    for first, second in zip(*loaders, strict=True):
        assert torch.equal(first.class_ids, second.class_ids)
        ordered.feedback(first.task_ids, classify(first))
        kept += zip(second.task_ids, classify(second), strict=True)
        if len(kept) == 8:
            for task_id, logits in reversed(kept):
                shuffled.feedback(task_id, logits)
            kept = []
    assert torch.equal(potentials(ordered), potentials(shuffled))


def test_batches_that_come_out_of_order_are_told_apart(build, dataset, classify):
    # No lag is too long for a worker that the machine forgets about: the other one goes on.
    plain, loose = build(n_tasks=20, lag=20), build(n_tasks=20, lag=20)
    for episodes, options in ((plain, {}), (loose, {"num_workers": 2, "in_order": False})):
        for batch in DataLoader(episodes.wrap(dataset), batch_sampler=episodes, **options):
            episodes.feedback(batch.task_ids, classify(batch))
        episodes.flush()
        assert episodes.report.n_applied == 20
    assert torch.equal(potentials(plain), potentials(loose))


def test_a_loader_that_reads_too_far_ahead_is_told_so_at_once(build, dataset, classify):
    episodes = build(lag=3)
    loader = DataLoader(episodes.wrap(dataset), batch_sampler=episodes, num_workers=2)
    batch = next(iter(loader))
    with pytest.raises(ArgumentError, match=r"lag of num_workers \* prefetch_factor"):
        episodes.feedback(batch.task_ids, classify(batch))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
@pytest.mark.parametrize("stop", [1, 9, 12])
def test_a_resumed_loop_goes_on_as_if_nothing_had_happened(build, run, options, stop):
    settings = {"tasks_per_batch": 2, "n_tasks": 24, "lag": 6}
    whole, part, again = (build(**settings) for _ in range(3))
    tasks = run(whole, n_epochs=3)
    before = run(part, stop_after=stop, **options)
    file = io.BytesIO()
    torch.save(part.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    after = run(again, n_epochs=2 if stop == 12 else 3, **options)
    assert len(before) == 2 * stop
    assert torch.equal(torch.cat((before, after)), tasks)
    assert torch.equal(potentials(again), potentials(whole))
    assert again.report.n_applied == whole.report.n_applied


def test_a_state_that_is_kept_in_memory_leads_back_to_its_moment(build, run):
    episodes, again = build(lag=2), build(lag=2)
    run(episodes, stop_after=5)
    kept, file = episodes.state_dict(), io.BytesIO()
    torch.save(kept, file)
    run(episodes)
    episodes.load_state_dict(kept)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(potentials(episodes), potentials(again))
    assert torch.equal(run(episodes), run(again))


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_loop_under_way_ends_when_a_state_is_loaded(build, dataset, run, options):
    episodes, twin = build(), build()
    loader = DataLoader(episodes.wrap(dataset), batch_sampler=episodes, **options)
    state, batches = episodes.state_dict(), iter(loader)
    next(batches)
    episodes.load_state_dict(state)
    with pytest.raises(StateError, match="Leave the loop, and start a new one"):
        list(batches)
    assert torch.equal(run(episodes), run(twin))


def test_a_state_can_be_loaded_and_saved_again_before_anything_is_drawn(build, run):
    first, second, third = (build() for _ in range(3))
    run(first, stop_after=5, num_workers=1)
    second.load_state_dict(first.state_dict())
    third.load_state_dict(second.state_dict())
    assert torch.equal(run(third), run(second))


def test_a_state_of_something_else_is_refused(build):
    episodes = build()
    state = build(seed=1).state_dict()
    with pytest.raises(StateError, match="saved with seed 1, this has 0"):
        episodes.load_state_dict(state)
    other = EpisodeBatchSampler(
        torch.arange(N_CLASSES).repeat_interleave(6), episodes.sampler, N_SHOT, N_QUERY, 12
    )
    with pytest.raises(StateError, match="with the same labels"):
        episodes.load_state_dict(other.state_dict())
    with pytest.raises(StateError, match="no state"):
        episodes.load_state_dict({"settings": episodes.state_dict()["settings"]})
    with pytest.raises(StateError, match="no state"):
        episodes.load_state_dict({**episodes.state_dict(), "epoch_start": "0"})
    with pytest.raises(StateError):
        episodes.load_state_dict({})


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(1, 5, N_WAY), None, r"\(1, 6, 3\) for 1 tasks .* got \(1, 5, 3\)"),
        (torch.zeros(2, 6, N_WAY), None, "got"),
        (torch.zeros(1, 6, N_WAY, dtype=torch.int64), None, "floating-point"),
        (None, None, "floating-point"),
        (torch.full((6, N_WAY), torch.nan), None, "must be finite"),
        (torch.randn(6, N_WAY).softmax(-1), None, "are probabilities.*into the softmax"),
        (torch.zeros(6, N_WAY), torch.zeros(6), "int64"),
        (torch.zeros(6, N_WAY), [0, 0, 1, 1, 2, 2], "int64 tensor.*got a list"),
        (torch.zeros(6, N_WAY), torch.zeros(5, dtype=torch.int64), r"of shape \(5,\)"),
        (torch.zeros(6, N_WAY), torch.tensor([0, 0, 1, 1, 2, 3]), "0 to 2"),
        (torch.zeros(6, N_WAY), torch.tensor([0, 0, 0, 0, 1, 1]), "at least one"),
    ],
)
def test_bad_feedback_is_refused_and_the_task_still_waits(build, logits, labels, message):
    episodes = build(lag=0)
    episodes.draw()
    with pytest.raises(ArgumentError, match=message):
        episodes.feedback(0, logits, labels)
    episodes.feedback(0, torch.zeros(6, N_WAY))
    assert episodes.report.n_waiting == 1


@pytest.mark.parametrize("task_ids", [0.0, [[0]], [], torch.tensor([[0]])])
def test_task_ids_that_are_none_are_refused(build, task_ids):
    episodes = build()
    episodes.draw()
    with pytest.raises(ArgumentError, match="task_ids"):
        episodes.feedback(task_ids, torch.zeros(6, N_WAY))


def test_queries_in_another_order_come_with_their_labels(build):
    logits = torch.randn(6, N_WAY, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(N_WAY).repeat_interleave(N_QUERY)
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    plain, reordered = build(lag=0), build(lag=0)
    for episodes in (plain, reordered):
        episodes.draw()
    plain.feedback(0, logits)
    reordered.feedback(0, logits[order], labels[order])
    for episodes in (plain, reordered):
        episodes.flush()
    torch.testing.assert_close(potentials(plain), potentials(reordered))
    assert plain.sampler.log_potentials.max() > 0


def test_half_precision_is_taken(build):
    episodes = build(lag=0)
    episodes.draw()
    episodes.feedback(0, torch.zeros(6, N_WAY, dtype=torch.bfloat16))
    episodes.flush()
    assert episodes.report.n_applied == 1


# test_class_features.py has those that use features.
TASK_SAMPLERS = [
    name
    for name, kind in SAMPLERS.items()
    if kind.draws == "tasks" and not kind.uses_class_features
]


@pytest.mark.parametrize("name", [n for n in TASK_SAMPLERS if not hasattr(SAMPLERS[n], "choose")])
def test_every_sampler_fits(build, run, name):
    episodes = build(name)
    run(episodes)
    episodes.flush()
    assert episodes.report.n_applied == 12


def test_a_sampler_that_chooses_among_candidates_is_refused(build):
    with pytest.raises(ArgumentError, match="a DataLoader cannot score"):
        build("cvar")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_shot": 0}, "n_shot"),
        ({"n_query": 0}, "n_query"),
        ({"n_tasks": 0}, "n_tasks"),
        ({"n_tasks": 10, "tasks_per_batch": 4}, "multiple of tasks_per_batch, 4"),
        ({"lag": -1}, "lag"),
        ({"seed": -1}, "seed"),
    ],
)
def test_arguments_out_of_range_are_refused(build, settings, message):
    with pytest.raises(ArgumentError, match=message):
        build(**settings)


@pytest.mark.parametrize(
    ("sampler", "got"), [("gcp", "the name 'gcp'"), (SAMPLERS["gcp"], "the class GCPSampler")]
)
def test_a_sampler_is_an_object(dataset, sampler, got):
    with pytest.raises(ArgumentError, match=f"sampler must be an object; got {got}.*Build one"):
        EpisodeBatchSampler(dataset.tensors[1], sampler, N_SHOT, N_QUERY, 12)


def test_a_sampler_for_other_classes_is_refused(dataset):
    sampler = build_sampler("gcp", n_classes=9, n_way=N_WAY)
    with pytest.raises(ArgumentError, match=r"for 9 classes, but there are 8 .* n_classes=8"):
        EpisodeBatchSampler(dataset.tensors[1], sampler, 1, 1, 1)
    with pytest.raises(ArgumentError, match="has no n_classes, n_way"):
        EpisodeBatchSampler(dataset.tensors[1], build_sampler("instance", n_instances=9), 1, 1, 1)


def test_classes_with_too_few_images_are_an_error_that_names_them(build):
    with pytest.raises(DataError, match=r"n_shot \+ n_query = 7 .*0 \(6\), 1 \(6\)"):
        build(n_shot=5, n_query=2)


def test_a_dataset_of_another_length_is_refused(build):
    with pytest.raises(DataError, match="5 items, but 48 labels"):
        build().wrap(TensorDataset(torch.zeros(5)))


def test_images_are_found_by_name_by_position_or_alone(build, dataset):
    named = [{"pixels": point.numpy(), "name": "x"} for point, _ in dataset]
    bare = [point for point, _ in dataset]
    first = {}
    for kind, items, key in (
        ("tuple", dataset, 0),
        ("named", named, "pixels"),
        ("bare", bare, None),
    ):
        episodes = build()
        loader = DataLoader(episodes.wrap(items, key), batch_sampler=episodes)
        first[kind] = next(iter(loader)).query_images
    assert torch.equal(first["named"], first["tuple"])
    assert torch.equal(first["bare"], first["tuple"])
    with pytest.raises(ArgumentError, match="got str"):
        episodes.wrap(named, "name").__getitems__(episodes.draw())
    with pytest.raises(ArgumentError, match=r"keys \['pixels', 'name'\].*\(dataset, key='image'\)"):
        episodes.wrap(named).__getitems__(episodes.draw())
    with pytest.raises(ArgumentError, match="image at 'image'; got a tuple"):
        episodes.wrap(dataset, "image").__getitems__(episodes.draw())


def test_a_dataset_that_fetches_many_items_at_once_is_asked_so(build, dataset):
    class Fetcher(TensorDataset):
        def __getitems__(self, indices):
            assert type(indices) is list
            return [self[i] for i in indices]

        def __getitem__(self, index):
            self.calls = getattr(self, "calls", 0) + 1
            return super().__getitem__(index)

    fetcher, episodes = Fetcher(*dataset.tensors), build()
    wrapped = episodes.wrap(fetcher)
    wrapped.__getitems__(episodes.draw())
    assert fetcher.calls == N_WAY * (N_SHOT + N_QUERY)
    assert len(wrapped) == 48
    assert torch.equal(wrapped[5][0], dataset[5][0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_shot": 2, "n_query": 1}, "by one with n_shot 1, not 2, n_query 2, not 1"),
        ({"n_query": 3}, "by one with n_query 2, not 3"),
    ],
)
def test_a_dataset_wrapped_for_tasks_of_another_form_is_refused(build, dataset, settings, message):
    # Such as those for training and for validation: images would be cut into wrong tasks.
    loader = DataLoader(build().wrap(dataset), batch_sampler=build(**settings))
    with pytest.raises(ArgumentError, match=message):
        next(iter(loader))


def test_a_dataset_wrapped_for_other_labels_is_refused(build, dataset):
    reverse = EpisodeBatchSampler(
        dataset.tensors[1].flip(0), build().sampler, N_SHOT, N_QUERY, n_tasks=12
    )
    with pytest.raises(ArgumentError, match="by one with other labels"):
        next(iter(DataLoader(build().wrap(dataset), batch_sampler=reverse)))


def test_a_dataset_wrapped_by_an_equal_batch_sampler_will_do(build, dataset):
    loader = DataLoader(build().wrap(dataset), batch_sampler=build(n_tasks=3, seed=5))
    assert len(list(loader)) == 3


def test_a_wrapped_dataset_wants_its_batch_sampler(build, dataset):
    with pytest.raises(ArgumentError, match="batch_sampler=episodes"):
        next(iter(DataLoader(build().wrap(dataset), batch_size=2)))


def test_labels_may_be_strings_and_classes_tell_which(dataset):
    names = np.array([f"class {int(label)}" for label in dataset.tensors[1]])
    sampler = build_sampler("gcp", n_classes=N_CLASSES, n_way=N_WAY, seed=3)
    episodes = EpisodeBatchSampler(names, sampler, N_SHOT, N_QUERY, 4)
    batch = next(iter(DataLoader(episodes.wrap(dataset), batch_sampler=episodes)))
    position = int(batch.support_images[0, 0, 4])
    assert episodes.classes[batch.class_ids[0, 0]] == names[position]
    assert episodes.find([episodes.classes[i] for i in batch.class_ids[0]]) == 0


def test_our_learners_take_a_batch_as_it_comes():
    labels = torch.arange(6).repeat(6)
    images = torch.randn(36, 1, 4, 4)
    sampler = build_sampler("gcp", n_classes=6, n_way=N_WAY)
    episodes = EpisodeBatchSampler(labels, sampler, 2, 3, 4, tasks_per_batch=2)
    learner = build_learner("protonet", backbone=nn.Flatten(2))
    for batch in DataLoader(episodes.wrap(TensorDataset(images)), batch_sampler=episodes):
        outcome = learner.training_step(batch)
        episodes.feedback(batch.task_ids, outcome.query_logits)
    assert episodes.report.n_waiting == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning memory needs a GPU")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cuda_batches_are_pinned_and_feedback_comes_from_the_device(
    build, dataset, classify, device
):
    episodes, plain = build(n_tasks=30), build(n_tasks=30)
    episodes.sampler.to(device)
    options = {"num_workers": 2, "pin_memory": True}
    for batch in DataLoader(episodes.wrap(dataset), batch_sampler=episodes, **options):
        assert batch.query_images.is_pinned()
        moved = type(batch)(*(part.to("cuda", non_blocking=True) for part in batch))
        episodes.feedback(moved.task_ids, classify(moved))
    episodes.flush()
    assert episodes.report.n_applied == 30
    assert episodes.sampler.log_potentials.device.type == device
    assert len(plain.sampler.log_potentials.unique()) == 2
    assert len(episodes.sampler.log_potentials.unique()) > 10


def test_the_settings_are_shown(build):
    assert "n_tasks=12, tasks_per_batch=1, lag=16, seed=0" in repr(build())


def test_feedback_that_was_forgotten_is_asked_for_once(build):
    forgetful = build(lag=0)
    for _ in range(50):
        forgetful.draw()
    with pytest.warns(UserWarning, match="no feedback came on the first 50 tasks"):
        forgetful.draw()
    for _ in range(60):
        forgetful.draw()  # warnings are errors here
    answered = build(lag=0)
    for i in range(60):  # one answer is enough: more may be left out on purpose
        answered.draw()
        if i == 0:
            answered.feedback(0, torch.zeros(6, N_WAY))


@pytest.mark.parametrize("gives_feedback", [False, True])
def test_a_sampler_that_is_never_asked_to_weigh_losses_says_so_once(build, gives_feedback):
    def draw(episodes, number):
        episodes.draw()
        if gives_feedback:
            episodes.feedback(number, torch.zeros(6, N_WAY))

    ignored, weighed = build("difficulty", lag=0), build("difficulty", lag=0)
    for number in range(120):
        with (
            pytest.warns(UserWarning, match=r"not asked to weigh the losses of the first 50 tasks")
            if number == 50
            else contextlib.nullcontext()  # warnings are errors here
        ):
            draw(ignored, number)
        draw(weighed, number)
        weighed.sampler.weigh(torch.rand(1))


def test_uniform_sampling_needs_no_feedback(build):
    episodes = build("uniform", lag=0)
    for _ in range(60):
        episodes.draw()
    assert episodes.report.n_missed == 59
