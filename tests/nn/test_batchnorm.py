import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ressl.nn import MLP, GroupedBatchNorm2d, build_backbone, group_batch_norm, groups_of


def separate(x, bn, groups):  # type: ignore[no-untyped-def]
    """The reference: a batch norm of its own for every group (samples i, i + G, i + 2G ...), run one by one."""
    norms = []
    for _ in range(groups):
        norm = nn.BatchNorm2d(bn.num_features, eps=bn.eps, momentum=bn.momentum).to(x.dtype)
        norm.load_state_dict(bn.state_dict())
        norms.append(norm)
    y = torch.empty_like(x)
    parts = [norm(x[g::groups]) for g, norm in enumerate(norms)]
    for g, part in enumerate(parts):
        y[g::groups] = part
    mean = torch.stack([norm.running_mean for norm in norms]).mean(0)
    var = torch.stack([norm.running_var for norm in norms]).mean(0)
    return y, mean, var, norms


@settings(max_examples=20, deadline=None)
@given(
    groups=st.integers(1, 4),
    per=st.integers(2, 5),
    channels=st.integers(1, 5),
    side=st.integers(1, 4),
    last=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_it_equals_separate_norms_forward_backward_and_running(groups, per, channels, side, last, seed):
    torch.manual_seed(seed)
    layout = torch.channels_last if last else torch.contiguous_format
    bn = GroupedBatchNorm2d(channels, groups).double()
    nn.init.normal_(bn.weight)
    nn.init.normal_(bn.bias)
    bn.running_mean.normal_()
    x = torch.randn(groups * per, channels, side, side, dtype=torch.float64)
    ours = x.clone().to(memory_format=layout).requires_grad_()
    theirs = x.clone().requires_grad_()
    expected, mean, var, norms = separate(theirs, bn, groups)
    y = bn(ours)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(bn.running_mean, mean)
    torch.testing.assert_close(bn.running_var, var)
    weight = torch.randn_like(y)
    (y * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(bn.weight.grad, sum(n.weight.grad for n in norms))
    torch.testing.assert_close(bn.bias.grad, sum(n.bias.grad for n in norms))


def test_both_ways_of_computing_it_agree():
    torch.manual_seed(0)
    x = torch.randn(16, 4, 5, 5)
    native, explicit = GroupedBatchNorm2d(4, 4), GroupedBatchNorm2d(4, 4)
    torch.testing.assert_close(native._native(x), explicit._explicit(x))
    torch.testing.assert_close(native.running_var, explicit.running_var)


def test_eval_is_plain_batch_norm():
    torch.manual_seed(0)
    grouped, plain = GroupedBatchNorm2d(3, 2), nn.BatchNorm2d(3)
    grouped(torch.randn(8, 3, 4, 4) * 3 + 1)
    plain.load_state_dict(grouped.state_dict())
    x = torch.randn(5, 3, 4, 4)  # five do not split in two groups, and need not
    assert torch.equal(grouped.eval()(x), plain.eval()(x))


def test_groups_do_not_see_each_other():
    bn = GroupedBatchNorm2d(2, 2)
    x = torch.randn(8, 2, 3, 3)
    y = bn(x)
    x[1::2] *= 100
    assert torch.equal(bn(x)[0::2], y[0::2])


def test_a_batch_that_does_not_split_is_named():
    with pytest.raises(ValueError, match="7 does not split into 2"):
        GroupedBatchNorm2d(3, 2)(torch.randn(7, 3, 2, 2))


def test_conversion_keeps_weights_and_names():
    torch.manual_seed(0)
    plain = build_backbone("resnet10", "small", width=8)
    names = list(plain.state_dict())
    before = {k: v.clone() for k, v in plain.state_dict().items()}
    grouped = group_batch_norm(plain, 4)
    assert list(grouped.state_dict()) == names
    assert all(torch.equal(v, before[k]) for k, v in grouped.state_dict().items())
    assert sum(isinstance(m, GroupedBatchNorm2d) for m in grouped.modules()) == 12


def test_a_head_s_norm_takes_the_same_groups() -> None:
    """Vectors: against plain batch norm on each group's rows, gradients and running statistics too."""
    torch.manual_seed(0)
    head = MLP(5, 7, 4, groups=3, last_norm=True)
    plain = MLP(5, 7, 4, last_norm=True)
    plain.load_state_dict(head.state_dict())
    twins = [copy.deepcopy(plain) for _ in range(3)]
    x = torch.randn(12, 5)
    ours = head(x)
    theirs = [twin(x[g::3]) for g, twin in enumerate(twins)]
    for g in range(3):
        torch.testing.assert_close(ours[g::3], theirs[g])
    ours.pow(3).mean().backward()
    for y in theirs:
        y.pow(3).mean().backward()
    for name, p in head.named_parameters():
        torch.testing.assert_close(p.grad, sum(dict(t.named_parameters())[name].grad for t in twins) / 3)
    for name, b in head.named_buffers():
        if "running" in name:
            torch.testing.assert_close(b, sum(dict(t.named_buffers())[name] for t in twins) / 3)
    plain.load_state_dict(head.state_dict())
    torch.testing.assert_close(head.eval()(x), plain.eval()(x))
    with pytest.raises(ValueError, match="does not split into 3"):
        head.train()(x[:10])


def test_groups_are_read_off_a_backbone() -> None:
    assert groups_of(build_backbone("resnet10", "small", 4, 2)) == 2
    assert groups_of(build_backbone("resnet10", "small", 4)) == 1


def with_acts(last: bool = False) -> nn.Module:
    """As a network of timm, of whose norms each has its activation, or drops channels, or does nothing more."""
    layers = pytest.importorskip("timm.layers")
    torch.manual_seed(0)
    norms = [
        layers.BatchNormAct2d(6, act_layer=nn.SiLU, drop_layer=nn.Identity),
        layers.BatchNormAct2d(6, inplace=True),
        layers.BatchNormAct2d(6, apply_act=False),
    ]
    net = nn.Sequential(*(part for norm in norms for part in (nn.Conv2d(6, 6, 1), norm))).double().train()
    for p in net.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    return net.to(memory_format=torch.channels_last) if last else net


@pytest.mark.parametrize("last", [False, True])
def test_norms_of_timm_with_their_activation_are_grouped_like_others(last: bool) -> None:
    """Beside the network itself on each group's samples."""
    net, x = with_acts(last), torch.randn(8, 6, 3, 4, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    twins = [copy.deepcopy(net) for _ in range(2)]
    parts = [twin(x[g::2]) for g, twin in enumerate(twins)]
    names = list(net.state_dict())
    grouped = group_batch_norm(net, 2)
    assert list(grouped.state_dict()) == names
    y = grouped(x)
    torch.testing.assert_close(y, torch.stack(parts, 1).flatten(0, 1))
    y.pow(2).sum().backward()
    sum(part.pow(2).sum() for part in parts).backward()
    for p, *own in zip(grouped.parameters(), *(twin.parameters() for twin in twins), strict=True):
        torch.testing.assert_close(p.grad, own[0].grad + own[1].grad)
    means = [torch.stack([twin[i].running_var for twin in twins]).mean(0) for i in (1, 3, 5)]
    for i, mean in zip((1, 3, 5), means, strict=True):
        torch.testing.assert_close(grouped[i].running_var, mean)
    fresh = with_acts(last).eval()
    fresh.load_state_dict(grouped.state_dict())
    torch.testing.assert_close(grouped.eval()(x), fresh(x))
