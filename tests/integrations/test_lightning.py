import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from adaptask.errors import ArgumentError

pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from adaptask.integrations.lightning import EpisodeDataModule, EpisodeFeedback  # noqa: E402
from adaptask.integrations.torch import EpisodeBatchSampler  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    # Lightning's own, with this year's torch.
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


class ProtoNet(pl.LightningModule):
    """What a user has: a module with a training_step."""

    def __init__(self, keys=("loss", "logits")):
        super().__init__()
        torch.manual_seed(0)
        self.features, self.keys, self.seen = nn.Linear(4, 4), keys, []

    def training_step(self, batch, batch_idx):
        self.seen += batch.task_ids.tolist()
        support = self.features(batch.support_images[..., :4]).unflatten(1, (3, -1)).mean(2)
        logits = -torch.cdist(self.features(batch.query_images[..., :4]), support)
        loss = cross_entropy(logits.flatten(0, 1), batch.query_labels.flatten())
        found = {"loss": loss, "logits": logits, "prototypes": support}
        if self.keys is None:
            return None if batch_idx % 2 else found
        return {key: found[key] for key in self.keys} if len(self.keys) > 1 else loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


class Validated(ProtoNet):
    def validation_step(self, batch, batch_idx):
        self.validated = True


def fit(tmp_path, episodes, dataset, module=None, *, ckpt_path=None, callbacks=(), **options):
    loading = {key: options.pop(key) for key in ("num_workers", "validation") if key in options}
    module = module or ProtoNet()
    trainer = pl.Trainer(
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(callbacks),
        callbacks=[*callbacks, EpisodeFeedback(episodes)],
        **options,
    )
    trainer.fit(
        module, datamodule=EpisodeDataModule(dataset, episodes, **loading), ckpt_path=ckpt_path
    )
    return module


@pytest.mark.parametrize("keys", [("loss", "logits", "prototypes"), ("loss", "logits")])
def test_class_features_are_passed_on(tmp_path, dataset, crowded_sampler, keys):
    sampler = crowded_sampler(n_classes=8, n_way=3, n_features=4)
    episodes = EpisodeBatchSampler(dataset.tensors[1], sampler, 1, 2, 12, tasks_per_batch=2)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[EpisodeFeedback(episodes, class_features="prototypes")],
    )
    data = EpisodeDataModule(dataset, episodes)
    if "prototypes" not in keys:
        with pytest.raises(ArgumentError, match="learns from class features"):
            trainer.fit(ProtoNet(keys), datamodule=data)
        return
    trainer.fit(ProtoNet(keys), datamodule=data)
    episodes.flush()
    assert int(sampler.counts.sum()) == 12 * 3
    assert sampler.sums.any()


def test_two_lines_make_the_sampler_learn(tmp_path, build, dataset):
    episodes = build(tasks_per_batch=2)
    module = fit(tmp_path, episodes, dataset, max_epochs=2, devices=1)
    assert module.seen == list(range(24))
    episodes.flush()
    assert episodes.report.n_applied == 24
    assert len(episodes.sampler.log_potentials.unique()) > 10


def test_the_potentials_are_those_of_a_plain_loop(tmp_path, build, dataset):
    module, twin = ProtoNet(), ProtoNet()
    episodes, plain = build(n_tasks=20, lag=4), build(n_tasks=20, lag=4)
    fit(tmp_path, episodes, dataset, module, max_epochs=1)
    optimizer = twin.configure_optimizers()
    for i, batch in enumerate(EpisodeDataModule(dataset, plain).train_dataloader()):
        outcome = twin.training_step(batch, i)
        optimizer.zero_grad()
        outcome["loss"].backward()
        optimizer.step()
        plain.feedback(batch.task_ids, outcome["logits"])
    assert torch.equal(episodes.sampler.log_potentials, plain.sampler.log_potentials)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("step", [7, 10, 13])
def test_a_run_resumed_by_lightning_goes_on_with_the_same_tasks(
    tmp_path, build, dataset, step, num_workers
):
    options = {"max_epochs": 3, "num_workers": num_workers}
    whole = build(n_tasks=10, lag=4)
    module = ProtoNet()
    saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    fit(tmp_path, whole, dataset, module, callbacks=[saving], **options)
    assert module.seen == list(range(30))

    resumed, again = build(n_tasks=10, lag=4), ProtoNet()
    fit(tmp_path, resumed, dataset, again, ckpt_path=tmp_path / f"step={step}.ckpt", **options)
    assert again.seen == module.seen[step:]
    assert torch.equal(resumed.sampler.log_potentials, whole.sampler.log_potentials)
    assert torch.equal(again.features.weight, module.features.weight)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_batches_that_training_step_skips_are_left_out(tmp_path, build, dataset):
    episodes = build(lag=0)
    fit(tmp_path, episodes, dataset, ProtoNet(keys=None), max_epochs=1)
    episodes.flush()
    assert (episodes.report.n_applied, episodes.report.n_missed) == (6, 6)


@pytest.mark.parametrize(
    ("keys", "message"), [(("loss",), "got a loss alone|got the keys"), (("loss", "loss"), "keys")]
)
def test_a_module_without_logits_is_told_what_to_return(tmp_path, build, dataset, keys, message):
    with pytest.raises(ArgumentError, match=f"'loss' and 'logits'.*({message})"):
        fit(tmp_path, build(), dataset, ProtoNet(keys=keys), max_epochs=1)


def test_batches_without_task_ids_are_refused(build):
    with pytest.raises(ArgumentError, match=r"EpisodeBatches.*got list"):
        EpisodeFeedback(build()).on_train_batch_end(
            None, None, {"loss": 0, "logits": torch.zeros(6, 3)}, [1, 2], 0
        )


def test_validation_goes_its_own_way(tmp_path, build, dataset):
    episodes = build()
    module = Validated()
    fit(tmp_path, episodes, dataset, module, max_epochs=1, validation=[torch.zeros(1)])
    assert module.validated
    assert episodes.report.n_drawn == 12


def test_several_processes_are_refused(build):
    class TwoDevices:
        world_size = 2

    with pytest.raises(ArgumentError, match="in one process; the Trainer has 2"):
        EpisodeFeedback(build()).setup(TwoDevices(), None, "fit")
    EpisodeFeedback(build()).setup(TwoDevices(), None, "validate")


def test_without_lightning_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['lightning'] = None\n"
        "import adaptask.integrations.torch\nimport adaptask.integrations.lightning"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'lightning>=2.4'" in done.stderr
