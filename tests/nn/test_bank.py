"""The memory bank against a plain loop, and after a bad step."""

import torch
import torch.nn.functional as F

from ressl.nn import MemoryBank


def test_rows_are_moving_averages_of_unit_length() -> None:
    torch.manual_seed(0)
    bank = MemoryBank(6, 4, momentum=0.3)
    rows = [row.clone() for row in bank.vectors]
    for index in ([0, 3], [3, 5], [1, 0]):
        z = F.normalize(torch.randn(2, 4), dim=1)
        bank.update(torch.tensor(index), z)
        for i, vector in zip(index, z, strict=True):
            mixed = 0.3 * rows[i] + 0.7 * vector
            rows[i] = mixed / mixed.norm()
    torch.testing.assert_close(bank.vectors, torch.stack(rows))


def test_a_bad_step_changes_no_row() -> None:
    bank = MemoryBank(5, 3)
    before = bank.vectors.clone()
    bank.kept = torch.zeros((), dtype=torch.bool)
    bank.update(torch.tensor([0, 0]), torch.zeros(2, 3))  # what the engine hands on in place of numbers that are none
    assert torch.equal(bank.vectors, before)
    bank.kept = torch.ones((), dtype=torch.bool)
    bank.update(torch.tensor([1]), torch.ones(1, 3))
    assert not torch.equal(bank.vectors, before)
