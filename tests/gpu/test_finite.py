"""What is not finite is found on the device."""

import pytest
import torch

from ressl.checkpoints import not_finite

KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_number_among_many_of_every_kind(kind, value):
    most = {f"{k}": torch.full((3, 100_003), torch.finfo(k).max, dtype=k, device="cuda") for k in KINDS}
    most |= {"number": torch.tensor(-1.0, device="cuda"), "count": torch.tensor(2**62, device="cuda")}
    assert not_finite(most) is None
    bad = torch.ones(3, 100_003, dtype=kind, device="cuda")
    bad[1, 70_001] = value
    assert not_finite(most | {"bad": bad}) == "bad"
