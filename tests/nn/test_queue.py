import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ressl.nn import MemoryQueue


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 12), batches=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_the_queue_is_a_list_of_the_newest_k(size, batches):
    """Any batch sizes, wrapping and larger than K included, against a plain list."""
    queue, reference, n = MemoryQueue(size, 1), [], 0
    for b in batches:
        keys = torch.arange(n, n + b, dtype=torch.float32)[:, None]
        queue.enqueue(keys)
        reference = (reference + keys[:, 0].tolist())[-size:]
        n += b
    assert queue.newest(len(reference))[:, 0].tolist() == reference


def test_more_than_it_holds_is_refused():
    queue = MemoryQueue(4, 3)
    assert torch.equal(queue.newest(4), queue.keys)
    with pytest.raises(ValueError, match="holds 4 keys, not 5"):
        queue.newest(5)


def test_it_starts_as_unit_vectors():
    norms = MemoryQueue(64, 16).keys.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(64))


def test_it_survives_a_restart():
    queue, twin = MemoryQueue(5, 2), MemoryQueue(5, 2)
    queue.enqueue(torch.randn(3, 2))
    twin.load_state_dict(queue.state_dict())
    more = torch.randn(4, 2)
    for q in (queue, twin):
        q.enqueue(more)
    assert torch.equal(queue.keys, twin.keys)
    assert torch.equal(queue.position, twin.position)


def test_untouched_entries_keep_their_bits():
    queue = MemoryQueue(8, 3)
    before = queue.keys.clone()
    queue.enqueue(torch.randn(3, 3))
    assert torch.equal(queue.keys[3:], before[3:])
