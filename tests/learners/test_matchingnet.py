import math

import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.errors import ArgumentError
from adaptask.learners import MatchingNet


def build(**settings):
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=6)
    return MatchingNet(backbone=backbone, **settings).double().eval()


def attention(query, support, scale):
    """Return how one query attends to each support image, by the paper's formula."""
    weights = [
        math.exp(scale * float(torch.dot(query, image) / query.norm() / image.norm()))
        for image in support
    ]
    return [weight / sum(weights) for weight in weights]


@torch.no_grad()
def check_probabilities(learner, batch, in_context):
    """Compare with attention summed by label, one query after the other."""
    probabilities = learner(batch).softmax(-1)
    torch.testing.assert_close(probabilities, learner(batch).exp())
    for t, labels in enumerate(batch.support_labels):
        support, queries = in_context(batch.support_images[t], batch.query_images[t])
        for q, query in enumerate(queries):
            weights = attention(query, support, learner.attention_scale)
            expected = torch.zeros(probabilities.shape[-1], dtype=torch.float64)
            for weight, label in zip(weights, labels, strict=True):
                expected[label] += weight
            torch.testing.assert_close(probabilities[t, q], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_probabilities_are_the_attention_on_each_class(episodes, scale):
    learner = build(attention_scale=scale)

    def features(support, query):
        return learner.backbone(support), learner.backbone(query)

    check_probabilities(learner, episodes(n_shot=3), features)


def lstm_step(x, h, c, w_x, w_h, b_x, b_h):
    """Return the next output and cell of an LSTM, written out."""
    enter, forget, value, leave = (w_x @ x + b_x + w_h @ h + b_h).chunk(4)
    c = forget.sigmoid() * c + enter.sigmoid() * value.tanh()
    return leave.sigmoid() * c.tanh(), c


def run(sequence, lstm):
    weights = (lstm.weight_ih, lstm.weight_hh, lstm.bias_ih, lstm.bias_hh)
    h = c = torch.zeros_like(sequence[0])
    outputs = []
    for x in sequence:
        h, c = lstm_step(x, h, c, *weights)
        outputs.append(h)
    return outputs


@pytest.mark.parametrize("n_reads", [1, 3])
def test_full_context_follows_the_equations_of_the_appendix(episodes, n_reads):
    learner = build(full_context=True, n_reads=n_reads, attention_scale=10.0)
    context = learner.context
    cell = context.query_lstm
    weights = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)

    def in_context(support_images, query_images):
        plain = list(learner.backbone(support_images))
        there = run(plain, context.forwards)
        back = run(plain[::-1], context.backwards)[::-1]
        support = [sum(three) for three in zip(plain, there, back, strict=True)]
        queries = []
        for feature in learner.backbone(query_images):
            h, c = feature, torch.zeros_like(feature)
            for _ in range(n_reads):
                contents = torch.stack([torch.dot(h, image) for image in support]).softmax(0)
                read = sum(a * image for a, image in zip(contents, support, strict=True))
                hidden, c = lstm_step(torch.cat((feature, read)), h, c, *weights)
                h = hidden + feature
            queries.append(h)
        return support, queries

    check_probabilities(learner, episodes(), in_context)


def test_probabilities_too_small_to_write_still_have_finite_logits(episodes):
    learner = build(attention_scale=10_000.0).float()
    batch = episodes()
    single = type(batch)(
        **{k: v.float() if v.is_floating_point() else v for k, v in vars(batch).items()}
    )
    logits = learner(single)
    assert logits.isfinite().all()
    assert (logits.exp() == 0).any()


def test_only_full_context_depends_on_the_order():
    assert build().order_free
    assert not build(full_context=True).order_free


def test_bad_settings_are_refused():
    for settings in ({"attention_scale": 0}, {"full_context": True, "n_reads": 0}):
        with pytest.raises(ArgumentError):
            build(**settings)
