"""Layers, parameters and feature sizes are the published ones."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import batch_norm, conv2d, leaky_relu, max_pool2d

from adaptask.backbones import BACKBONES, WIDTHS, build_backbone
from adaptask.errors import ArgumentError


def n_parameters(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("channels", "filters"), [(3, 64), (1, 64), (3, 32)])
def test_conv4_has_the_parameters_of_its_four_convolutions_and_norms(channels, filters):
    inputs = (channels, filters, filters, filters)
    expected = sum(9 * n * filters + 2 * filters for n in inputs)
    backbone = build_backbone("conv4", image_shape=(channels, 32, 32), filters=filters)
    assert n_parameters(backbone) == expected
    # Without normalization its bias takes the place of those of the norm.
    plain = build_backbone("conv4", image_shape=(channels, 32, 32), filters=filters, norm="none")
    assert n_parameters(plain) == expected - 4 * filters


@pytest.mark.parametrize("widths", [*WIDTHS, (4, 8, 8, 16)])
@pytest.mark.parametrize("channels", [1, 3])
def test_resnet12_has_the_parameters_of_its_convolutions_and_norms(channels, widths):
    sizes = WIDTHS.get(widths, widths) if isinstance(widths, str) else widths
    expected = sum(
        9 * n_in * n_out + 2 * 9 * n_out**2 + n_in * n_out + 4 * 2 * n_out
        for n_in, n_out in itertools.pairwise((channels, *sizes))
    )
    backbone = build_backbone("resnet12", image_shape=(channels, 32, 32), widths=widths)
    assert n_parameters(backbone) == expected


def test_the_published_numbers_of_parameters():
    # 113,088: Conv-4 with 64 filters, 4 x 64 of them biases without effect. 12.4 M: what users
    # of MetaOptNet's ResNet-12 report.
    images = {"image_shape": (3, 84, 84)}
    assert n_parameters(build_backbone("conv4", **images)) == 113_088 - 256
    wide = build_backbone("resnet12", widths="metaoptnet", **images)
    assert round(n_parameters(wide) / 1e6, 2) == 12.42
    assert round(n_parameters(build_backbone("resnet12", **images)) / 1e6, 2) == 8.0


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "settings", "sizes"),
    [
        # Side of the images: number of features, shape of the last maps.
        ("conv4", {}, {28: (64, 64, 1), 32: (256, 64, 2), 84: (1600, 64, 5)}),
        ("conv4", {"filters": 32}, {28: (32, 32, 1), 32: (128, 32, 2), 84: (800, 32, 5)}),
        ("conv4", {"n_pooled": 2}, {28: (3136, 64, 7), 32: (4096, 64, 8), 84: (28224, 64, 21)}),
        ("conv4", {"mean_pool": True}, {28: (64, 64, 1), 84: (64, 64, 5)}),
        ("resnet12", {}, {28: (512, 512, 1), 32: (512, 512, 2), 84: (512, 512, 5)}),
        ("resnet12", {"widths": "metaoptnet"}, {32: (640, 640, 2)}),
        ("resnet12", {"mean_pool": False}, {32: (2048, 512, 2), 84: (12800, 512, 5)}),
    ],
    ids=str,
)
def test_feature_sizes(name, settings, sizes, channels):
    for side, (n_features, n_channels, map_side) in sizes.items():
        backbone = build_backbone(name, image_shape=(channels, side, side), **settings).eval()
        assert backbone.n_features == n_features
        assert backbone.feature_shape == (n_channels, map_side, map_side)
        images = torch.zeros(1, 2, channels, side, side)
        with torch.no_grad():
            assert backbone(images).shape == (1, 2, n_features)
            assert backbone(images[0]).shape == (2, n_features)
            assert backbone.feature_maps(images).shape == (1, 2, *backbone.feature_shape)


def test_images_need_not_be_square():
    backbone = build_backbone("conv4", image_shape=(3, 32, 48), filters=4)
    assert backbone.feature_shape == (4, 2, 3)
    assert backbone(torch.zeros(2, 3, 32, 48)).shape == (2, 24)


def test_conv4_computes_what_it_says():
    """Against the same layers written out from the weights."""
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=(3, 20, 20), filters=5, n_pooled=3).double()
    images = torch.randn(7, 3, 20, 20, dtype=torch.float64)
    expected = images
    for number, block in enumerate(backbone.blocks):
        maps = conv2d(expected, block.convolution.weight, block.convolution.bias, padding=1)
        mean, variance = maps.mean((0, 2, 3)), maps.var((0, 2, 3), correction=0)
        centered = maps - mean[:, None, None]
        normalized = centered / (variance[:, None, None] + 1e-5).sqrt()
        expected = normalized.clamp(min=0)
        if number < 3:
            expected = max_pool2d(expected, 2)
    torch.testing.assert_close(backbone(images), expected.flatten(1), rtol=1e-9, atol=1e-9)


def test_resnet12_computes_what_it_says():
    torch.manual_seed(0)
    backbone = build_backbone("resnet12", image_shape=(1, 18, 18), widths=(3, 4, 5, 6))
    backbone = backbone.double().eval()
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.weight, module.bias, module.running_mean, module.running_var):
                nn.init.uniform_(values, 0.5, 1.5)

    def apply(convolution, norm, maps):
        maps = conv2d(maps, convolution.weight, padding=convolution.weight.shape[-1] // 2)
        return batch_norm(maps, norm.running_mean, norm.running_var, norm.weight, norm.bias)

    images = torch.randn(4, 1, 18, 18, dtype=torch.float64)
    maps = images
    for block in backbone.blocks:
        first, second, third = zip(block.convolutions, block.norms, strict=True)
        residual = apply(block.shortcut, block.shortcut_norm, maps)
        maps = leaky_relu(apply(*first, maps), 0.1)
        maps = leaky_relu(apply(*second, maps), 0.1)
        maps = max_pool2d(leaky_relu(apply(*third, maps) + residual, 0.1), 2)
    expected = maps.mean((2, 3))
    torch.testing.assert_close(backbone(images), expected, rtol=1e-9, atol=1e-9)


LAYERS = {
    "none": lambda n: (),
    "batch": lambda n: (nn.BatchNorm1d(n),),
    "layer": lambda n: (nn.LayerNorm(n),),
}


@pytest.mark.parametrize("norm", LAYERS)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_mlp_is_a_sequence_of_linear_layers(norm, depth):
    torch.manual_seed(0)
    sizes = {"hidden": 7, "depth": depth, "out_features": 5, "norm": norm, "dropout": 0.4}
    backbone = build_backbone("mlp", image_shape=(2, 4, 3), **sizes).double()
    widths = [24] + [7] * depth
    layers = [nn.Flatten()]
    for n_in in widths[:-1]:
        layers += [nn.Linear(n_in, 7, bias=norm != "batch"), *LAYERS[norm](7), nn.ReLU()]
        layers += [nn.Dropout(0.4)]
    expected = nn.Sequential(*layers, nn.Linear(widths[-1], 5, bias=False)).double()
    images = torch.randn(6, 2, 4, 3, dtype=torch.float64)
    with torch.no_grad():
        # In their order, both have the weights of a layer next to those of its norm.
        ours = [*zip(backbone.layers, backbone.norms, strict=True), (backbone.last,)]
        own = [p for pair in ours for layer in pair for p in layer.parameters()]
        for mine, theirs in zip(own, expected.parameters(), strict=True):
            theirs.copy_(mine)
    for training in (True, False):
        backbone.train(training)
        expected.train(training)
        torch.manual_seed(1)
        got = backbone(images)
        torch.manual_seed(1)
        torch.testing.assert_close(got, expected(images), rtol=1e-12, atol=1e-12)
    assert n_parameters(backbone) == n_parameters(expected)


@pytest.mark.parametrize("norm", ["none", "task", "layer"])
def test_mlp_takes_vectors_and_weights_for_each_task(norm):
    torch.manual_seed(0)
    backbone = build_backbone("mlp", image_shape=(9, 1, 1), hidden=6, norm=norm).double()
    images = torch.randn(3, 4, 9, 1, 1, dtype=torch.float64)
    weights = {n: p + torch.rand(3, *p.shape) for n, p in backbone.named_parameters()}
    together = functional_call(backbone, weights, (images,))
    for task in range(3):
        own = {name: weight[task] for name, weight in weights.items()}
        alone = functional_call(backbone, own, (images[task],))
        torch.testing.assert_close(together[task], alone, rtol=1e-9, atol=1e-9)


def test_identity_returns_its_input_and_has_nothing_to_learn():
    backbone = build_backbone("identity", image_shape=(9, 1, 1))
    vectors = torch.randn(3, 4, 9, 1, 1)
    assert torch.equal(backbone(vectors), vectors.flatten(2))
    assert n_parameters(backbone) == 0


def test_linear_starts_as_the_identity_or_keeps_squared_distances_on_average():
    torch.manual_seed(0)
    vectors = torch.randn(50, 300, 1, 1, dtype=torch.float64)
    same = build_backbone("linear", image_shape=(300, 1, 1)).double()
    assert torch.equal(same(vectors), vectors.flatten(1))
    fewer = build_backbone("linear", image_shape=(300, 1, 1), out_features=200).double()
    ratio = torch.pdist(fewer(vectors)).square() / torch.pdist(vectors.flatten(1)).square()
    # Each is chi-square of 200 degrees over 200; their mean deviates by sqrt(2 / 200) at most.
    assert abs(ratio.mean() - 1) < 0.1
    assert build_backbone("linear", image_shape=(3, 32, 32)).n_features == 1024


@pytest.mark.parametrize("settings", [{}, {"out_features": 4}])
def test_linear_takes_weights_for_each_task(settings):
    backbone = build_backbone("linear", image_shape=(9, 1, 1), **settings).double()
    vectors = torch.randn(3, 4, 9, 1, 1, dtype=torch.float64)
    weights = {n: p + torch.rand(3, *p.shape) for n, p in backbone.named_parameters()}
    together = functional_call(backbone, weights, (vectors,))
    expected = torch.einsum("tnd,tod->tno", vectors.flatten(2), weights["last.weight"])
    torch.testing.assert_close(together, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["conv4", "resnet12"])
def test_convolutions_refuse_vectors_and_name_what_takes_them(name):
    with pytest.raises(ArgumentError, match=r"vectors of features.*Choose the backbone mlp"):
        build_backbone(name, image_shape=(768, 1, 1))


def test_the_convolutions_of_resnet12_start_as_kaiming_has_it():
    torch.manual_seed(0)
    backbone = build_backbone("resnet12", image_shape=(3, 32, 32))
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.detach()
            expected = math.sqrt(2 / (weight.shape[0] * weight[0, 0].numel()))
            # The relative error of a standard deviation of so many normal numbers.
            assert abs(weight.std() / expected - 1) < 5 / math.sqrt(2 * weight.numel())


def test_only_the_last_two_blocks_of_resnet12_drop_squares():
    kinds = {
        side: [
            (type(block.drop).__name__, getattr(block.drop, "block_size", None))
            for block in build_backbone("resnet12", image_shape=(1, side, side)).blocks
        ]
        for side in (32, 84)
    }
    plain = [("Dropout", None)] * 2
    assert kinds == {32: plain + [("DropBlock", 2)] * 2, 84: plain + [("DropBlock", 5)] * 2}


SMALL = {
    "conv4": {"filters": 8},
    "linear": {"out_features": 8},
    "mlp": {"hidden": 8},
    "resnet12": {"widths": (8, 8, 8, 8)},
}


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_returns_the_shapes_that_it_announces(name):
    assert 10 < len(BACKBONES[name].description) < 100
    backbone = build_backbone(name, image_shape=(3, 32, 32), **SMALL.get(name, {})).eval()
    images = torch.randn(2, 3, 3, 32, 32)
    assert backbone(images).shape == (2, 3, backbone.n_features)
    assert backbone(images[0]).shape == (3, backbone.n_features)
    assert backbone.feature_maps(images).shape == (2, 3, *backbone.feature_shape)
    with pytest.raises(ArgumentError, match="built for"):
        backbone(images[..., :-1])


@pytest.mark.parametrize("name", BACKBONES)
def test_channels_last_computes_the_same(name):
    torch.manual_seed(0)
    settings = SMALL.get(name, {})
    backbone = build_backbone(name, image_shape=(3, 32, 32), **settings).double().eval()
    images = torch.randn(2, 3, 3, 32, 32, dtype=torch.float64)
    expected = backbone(images)
    backbone.to(memory_format=torch.channels_last)
    torch.testing.assert_close(backbone(images), expected, rtol=1e-9, atol=1e-9)
    flat = images.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(backbone(flat), expected.flatten(0, 1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["batch", "task", "none"])
@pytest.mark.parametrize("name", ["conv4", "mlp", "resnet12"])
def test_mixed_precision_agrees_to_a_percent_or_two(name, norm):
    torch.manual_seed(0)
    settings = {"widths": (16, 32, 64, 128)} if name == "resnet12" else {}
    backbone = build_backbone(name, image_shape=(3, 32, 32), norm=norm, **settings).eval()
    images = torch.randn(1, 6, 3, 32, 32)
    expected = backbone(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = backbone(images)
    assert features.dtype == torch.bfloat16
    assert (features - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize("name", ["conv4", "mlp", "resnet12"])
def test_vmap_over_tasks_equals_the_batch_of_tasks(name):
    torch.manual_seed(0)
    settings = SMALL[name]
    backbone = build_backbone(name, image_shape=(1, 16, 16), norm="task", **settings).double()
    backbone.eval()
    state = {**dict(backbone.named_parameters()), **dict(backbone.named_buffers())}
    images = torch.randn(3, 5, 1, 16, 16, dtype=torch.float64)
    alone = vmap(lambda task: functional_call(backbone, state, (task,)))(images)
    torch.testing.assert_close(alone, backbone(images), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["conv4", "resnet12"])
def test_too_small_images_are_refused(name):
    build_backbone(name, image_shape=(1, 16, 16))
    with pytest.raises(ArgumentError, match=r"at least 16 x 16 pixels.*got 16 x 15.*Resize"):
        build_backbone(name, image_shape=(1, 16, 15))


def test_other_images_than_announced_are_refused():
    backbone = build_backbone("conv4", image_shape=(3, 32, 32))
    for shape in ((2, 1, 32, 32), (2, 3, 28, 28), (3, 32, 32), (1, 1, 1, 3, 32, 32)):
        with pytest.raises(ArgumentError, match=r"built for .* x 3 x 32 x 32; got"):
            backbone(torch.zeros(shape))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("conv5", {}, "there is no backbone 'conv5'; did you mean 'conv4'"),
        ("conv4", {"depth": 3}, "The backbone 'conv4' takes no depth; it takes image_shape, filt"),
        ("conv4", {"filters": 0}, "filters must be at least 1; got 0"),
        ("conv4", {"n_pooled": 5}, "n_pooled must be between 0 and 4"),
        ("conv4", {"norm": "layer"}, "norm must be one of batch, task, none; got 'layer'"),
        ("conv4", {"image_shape": 32}, r"image_shape must be \(channels, height, width\)"),
        ("conv4", {"image_shape": (0, 32, 32)}, "channels of image_shape must be at least 1"),
        ("mlp", {"hidden": 0}, "hidden must be at least 1; got 0"),
        ("mlp", {"depth": -1}, "depth must be at least 0; got -1"),
        ("mlp", {"norm": "group"}, "norm must be one of none, batch, task, layer; got 'group'"),
        ("mlp", {"dropout": 1.0}, "dropout must be a number between 0 and 0.9"),
        ("resnet12", {"widths": "wide"}, "widths must be one of doubling, metaoptnet; got"),
        ("resnet12", {"widths": (64, 64)}, "doubling, metaoptnet or four integers; got"),
        ("resnet12", {"widths": (64, 64, 64, 0.5)}, "each of widths must be an integer"),
        ("resnet12", {"drop_rate": 1.0}, "drop_rate must be a number between 0 and 0.9"),
        ("resnet12", {"drop_block_size": 0}, "block_size must be at least 1"),
    ],
)
def test_bad_settings_are_refused(name, settings, message):
    with pytest.raises(ArgumentError, match=message):
        build_backbone(name, **{"image_shape": (3, 32, 32), **settings})
