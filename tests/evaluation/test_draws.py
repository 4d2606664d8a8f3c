"""Which pictures are drawn."""

import torch

from ressl.evaluation.draws import balanced_fraction, first_of_each, one_hot


def test_a_share_is_drawn_without_a_table_of_all_classes() -> None:
    labels = torch.randint(0, 7, (200,), generator=torch.Generator().manual_seed(0))
    for fraction in (0.01, 0.1, 0.37, 1.0):
        member = one_hot(labels, 7)
        count = (fraction * member.sum(0) + 0.5).floor().clamp(min=1)
        expected = torch.nonzero(first_of_each(member, count, 3, 1).any(1))[:, 0]
        assert torch.equal(balanced_fraction(labels, fraction, 3, 1), expected)
