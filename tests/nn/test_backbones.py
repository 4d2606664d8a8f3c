import pytest
import torch
import torchvision

from ressl.errors import ResslError
from ressl.nn import ProjectionHead, build_backbone, group_batch_norm


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_the_imagenet_stem_is_torchvisions_network(name):
    torch.manual_seed(0)
    ours, theirs = build_backbone(name), getattr(torchvision.models, name)()
    theirs.fc = torch.nn.Identity()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
    assert ours(x).shape[1] == ours.features_dim


@pytest.mark.parametrize(("stem", "side"), [("small", 32), ("medium", 16), ("imagenet", 8)])
def test_stems_reduce_as_the_recipes_say(stem, side):
    net = build_backbone("resnet18", stem, width=8)
    seen = []
    net.layer1.register_forward_hook(lambda m, i, o: seen.append(i[0].shape[-1]))
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 64)
    assert seen == [side]


def test_width_scales_parameters():
    count = lambda width: sum(p.numel() for p in build_backbone("resnet18", "small", width).parameters())
    assert count(64) == 11_168_832  # torchvision's 11,176,512 less 7x7 - 3x3 kernels of the stem (7,680)
    assert count(32) < count(64) / 3.8


@pytest.mark.parametrize("width", [64, 32])
def test_convolutions_start_as_torchvisions_and_a_new_stem_also_as_pytorchs(width):
    """The authors replace the stem of a network that is initialised already."""
    torch.manual_seed(0)
    for stem in ("small", "medium"):
        weight = build_backbone("resnet18", stem, width).conv1.weight
        assert weight.std().item() == pytest.approx((2 / (width * 9)) ** 0.5, rel=0.1)
    nets = [build_backbone("resnet18", stem, width, stem_init="pytorch") for stem in ("small", "medium", "imagenet")]
    for net in nets:
        assert net.layer1[0].conv1.weight.std().item() == pytest.approx((2 / (width * 9)) ** 0.5, rel=0.05)
    for net in nets[:2]:
        largest = torch.nn.Conv2d(3, width, 3).weight.abs().max().item()
        assert net.conv1.weight.abs().max().item() == pytest.approx(largest, rel=0.02)
        assert largest == pytest.approx(27**-0.5, rel=0.02)
    assert nets[2].conv1.weight.std().item() == pytest.approx((2 / (width * 49)) ** 0.5, rel=0.05)


@pytest.mark.parametrize(("name", "groups"), [("resnet10t", 2), ("mobilenetv3_small_050", 1)])
def test_any_timm_model_by_name(name, groups):
    pytest.importorskip("timm")
    net = build_backbone(f"timm/{name}", bn_groups=groups)
    assert net.train()(torch.randn(4, 3, 64, 64)).shape == (4, net.features_dim)


def test_norms_that_cannot_be_grouped_are_refused_and_not_left_ungrouped():
    class OtherNorm(torch.nn.BatchNorm2d):
        pass

    with pytest.raises(ResslError, match=r"OtherNorm.*--bn-groups 1"):
        group_batch_norm(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), OtherNorm(4)), 2)


@pytest.mark.parametrize(("name", "hint"), [("resnet81", "resnet18"), ("timm/resnet10", "resnet10t")])
def test_a_wrong_name_offers_the_nearest(name, hint):
    with pytest.raises(ResslError, match=hint):
        build_backbone(name)


def test_the_papers_head():
    head = ProjectionHead(512, 2048, 128)
    assert [tuple(p.shape) for p in head.parameters()] == [(2048, 512), (2048,), (128, 2048), (128,)]
