"""Memory for patches: lent, held as long as anybody reads it, lent again."""

from __future__ import annotations

import concurrent.futures
import gc

import torch

from liveedge.models.buffers import LINE_BYTES, BufferPool

PAGE = 4096


def test_a_tensor_has_the_shape_and_type_that_were_asked_for():
    pool = BufferPool(max_bytes=1 << 20)
    assert pool.take(3, 5).shape == (3, 5)
    assert pool.take(3, 5).dtype == torch.float32
    assert pool.take(7, dtype=torch.uint8).dtype == torch.uint8


def test_memory_comes_back_when_the_tensor_is_gone():
    pool = BufferPool(max_bytes=1 << 20)
    first = pool.take(10, 10)
    address = first.data_ptr()
    del first
    assert pool.idle_bytes == PAGE
    assert pool.take(10, 10).data_ptr() == address
    assert (pool.n_made, pool.n_reused) == (1, 1)


def test_memory_begins_with_a_line_of_the_cache():
    pool = BufferPool(max_bytes=1 << 20)
    held = [pool.take(n) for n in (1, 33, 5000)]
    assert all(tensor.data_ptr() % LINE_BYTES == 0 for tensor in held)


def test_two_tensors_never_share_memory():
    pool = BufferPool(max_bytes=1 << 20)
    one, other = pool.take(100), pool.take(100)
    one.fill_(1)
    other.fill_(2)
    assert one.sum() == 100


def test_a_view_keeps_the_memory():
    pool = BufferPool(max_bytes=1 << 20)
    view = pool.take(10, 10)[:, 2:4].T
    view.fill_(7)
    assert pool.idle_bytes == 0
    pool.take(10, 10).fill_(0)
    assert (view == 7).all()
    del view
    assert pool.idle_bytes == 2 * PAGE


def test_an_array_of_the_tensor_keeps_the_memory():
    pool = BufferPool(max_bytes=1 << 20)
    array = pool.take(10).numpy()
    assert pool.idle_bytes == 0
    del array
    gc.collect()
    assert pool.idle_bytes == PAGE


def test_no_more_than_the_bound_waits():
    pool = BufferPool(max_bytes=2 * PAGE)
    held = [pool.take(1024) for _ in range(3)]
    assert pool.lent_bytes == 3 * PAGE
    held.clear()
    assert (pool.lent_bytes, pool.idle_bytes) == (0, 2 * PAGE)
    assert pool.n_released == 1


def test_what_is_lent_counts_against_what_waits():
    pool = BufferPool(max_bytes=3 * PAGE)
    held = [pool.take(1024) for _ in range(4)]
    held.pop()
    assert (pool.lent_bytes, pool.idle_bytes) == (3 * PAGE, 0)


def test_a_small_tensor_does_not_take_a_large_buffer():
    pool = BufferPool(max_bytes=1 << 20)
    pool.take(100_000)
    assert pool.idle_bytes > 100_000
    small = pool.take(10)
    assert pool.n_made == 2
    del small


def test_buffers_of_a_size_no_longer_asked_for_make_room():
    pool = BufferPool(max_bytes=4 * PAGE)
    held = [pool.take(1024) for _ in range(4)]
    held.clear()
    pool.take(4096)  # four pages: the whole bound
    assert pool.idle_bytes == 4 * PAGE
    pool.take(4096)
    assert pool.n_reused == 1


def test_memory_that_dies_on_another_thread_comes_back():
    pool = BufferPool(max_bytes=1 << 20)
    held = [pool.take(1024)]
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        threads.submit(held.clear).result()
    assert pool.idle_bytes == PAGE
