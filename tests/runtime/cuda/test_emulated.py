"""The emulated GPU itself: what the tests of kernels rest on."""

import gc
import threading

import numpy as np
import pytest

from tests.runtime.cuda.emulated import EmulatedDevice

SOURCE = """
#include "primitives/common.cuh"

// The sum of a row by a tree of shuffles and a barrier.
KERNEL(sum_rows)(const float* x, float* y, int width, float factor) {
    __shared__ float parts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += x[blockIdx.x * width + i];
    for (int n = 16; n; n /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, n);
    if (lane == 0) parts[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < (int)blockDim.x / 32; i++) sum += parts[i];
        y[blockIdx.x] = factor * sum;
    }
}

KERNEL(shuffles)(int* y) {
    const int lane = threadIdx.x;
    y[lane] = __shfl_sync(ALL_LANES, lane, 5);
    y[32 + lane] = __shfl_up_sync(ALL_LANES, lane, 3);
    y[64 + lane] = __shfl_down_sync(ALL_LANES, lane, 4, 8);
    y[96 + lane] = __ballot_sync(ALL_LANES, lane % 3 == 0);
    y[128 + lane] = __any_sync(ALL_LANES, lane == 7) + 2 * __all_sync(ALL_LANES, lane < 31);
    // Halves of a warp go their own ways, one twice.
    int mine = lane;
    for (int i = 0; i <= lane / 16; i++) mine = __shfl_xor_sync(lane < 16 ? 0xFFFFu : 0xFFFF0000u, mine, 1) + 100;
    y[160 + lane] = __shfl_xor_sync(ALL_LANES, mine, 16);
}

// Each thread reads what its neighbour wrote to dynamic shared memory, over and over.
KERNEL(turn)(int* y, int n_turns) {
    DYNAMIC_SHARED(memory);
    int* ring = (int*)memory;
    ring[threadIdx.x] = threadIdx.x;
    __syncthreads();
    for (int i = 0; i < n_turns; i++) {
        const int next = ring[(threadIdx.x + 1) % blockDim.x];
        __syncthreads();
        ring[threadIdx.x] = next;
        __syncthreads();
    }
    y[threadIdx.x] = ring[threadIdx.x];
}

KERNEL(count)(int* y) {
    atomicAdd(y, 1);
    atomicMax(y + 1, (int)(blockIdx.x * blockDim.x + threadIdx.x));
}

// Warps 0 and 1 meet without the others.
KERNEL(pairs)(int* y) {
    __shared__ int seen[64];
    if (threadIdx.x < 64) {
        seen[threadIdx.x] = threadIdx.x;
        named_barrier(1, 64);
        y[threadIdx.x] = seen[63 - threadIdx.x];
    }
}

#define FILL(number) KERNEL(fill_##number)(int* y) { y[threadIdx.x] = number; }
FILL(3)
FILL(4)

KERNEL(leaves_early)(int* y) {
    if (threadIdx.x == 37) return;
    __syncthreads();
}
KERNEL(waits_apart)(int* y) {
    if (threadIdx.x == 3) __syncwarp();
    else __syncthreads();
}
KERNEL(writes_behind)(int* y) { y[40] = 1; }
KERNEL(reads_far)(int* y) { y[0] = *(const int*)((u64)y ^ 1ull << 46); }
KERNEL(index)(int* y, int i) {
    __shared__ int few[4];
    few[i] = i;
    y[0] = few[i];
}
KERNEL(crooked)(int* y) { y[0] = ((const int4*)(y + 1))->x; }
KERNEL(shared_behind)(int* y) {
    DYNAMIC_SHARED(memory);
    memory[64] = 1;
}
"""


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    source = tmp_path_factory.mktemp("emulated") / "kernels.cu"
    source.write_text(SOURCE)
    device = EmulatedDevice(source)
    yield device
    device.close()


def ran(device, kernel, grid, block, n, *args, shared=0):
    y = np.zeros(n, np.int32)
    at = device.allocate(y.nbytes)
    device.upload(at, y)
    try:
        device.launch(kernel, (grid,), block, shared, (at, *args))
        device.download(at, y)
    finally:
        device.free(at)
    return y


def test_rows_are_summed_by_shuffles_and_barriers(device):
    x = np.random.default_rng(0).integers(-9, 9, (5, 301)).astype(np.float32)
    there, sums = device.allocate(x.nbytes), device.allocate(20)
    device.upload(there, x)
    out = np.empty(5, np.float32)
    graph = device.capture(lambda: device.launch("sum_rows", (5,), 96, 0, (there, sums, 301, 0.5)))
    device.download(sums, out)
    assert np.isnan(out).all()  # recorded, not run
    device.replay(graph)
    device.download(sums, out)
    np.testing.assert_array_equal(out, 0.5 * x.sum(axis=1))
    for address in (there, sums):
        device.free(address)


def test_memory_freed_by_one_thread_is_available_to_another(device):
    """The system hands out the same place again before the thread that freed it goes on."""

    class Native:
        def __init__(self, native):
            self._native = native
            self.others = []

        def __getattr__(self, name):
            return getattr(self._native, name)

        def emulated_free(self, address):
            done = self._native.emulated_free(address)
            other = threading.Thread(target=lambda: self.others.append(device.allocate(4096)))
            other.start()
            other.join(0.2)
            self.thread = other
            return done

    plain = device._native
    device._native = native = Native(plain)
    try:
        device.free(device.allocate(4096))
        native.thread.join()
    finally:
        device._native = plain
    assert [device._sizes[int(address)] for address in native.others] == [4096]
    device.free(native.others[0])
    assert not device._sizes


def test_lane_shuffles_match_cuda(device):
    y, lane = ran(device, "shuffles", 1, 32, 192).reshape(6, 32), np.arange(32)
    assert (y[0] == 5).all()
    assert (y[1] == np.where(lane < 3, lane, lane - 3)).all()
    assert (y[2] == np.where(lane % 8 < 4, lane + 4, lane)).all()
    assert (y[3] == 0b01001001001001001001001001001001).all()
    assert (y[4] == 1).all()
    assert (y[5] == np.where(lane < 16, lane + 16 + 200, (lane - 16 ^ 1) + 100)).all()


def test_writes_before_a_barrier_are_visible_after_it(device):
    y = ran(device, "turn", 2, 100, 100, 250, shared=400)
    assert (y == (np.arange(100) + 250) % 100).all()


def test_blocks_and_threads_are_counted_by_atomics(device):
    assert ran(device, "count", 7, 33, 2).tolist() == [231, 230]


def test_some_warps_meet_at_a_named_barrier(device):
    assert (ran(device, "pairs", 1, 128, 64) == 63 - np.arange(64)).all()


def test_macros_make_kernels(device):
    assert ran(device, "fill_3", 1, 1, 1)[0] == 3
    assert ran(device, "fill_4", 1, 1, 1)[0] == 4


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        ("leaves_early", r"deadlock in .*leaves_early, block \(0, 0, 0\), thread \(0, 0, 0\).*\(37, 0, 0\) has left"),
        ("waits_apart", r"deadlock in kernel waits_apart.*waits at __syncthreads for ever; thread \(3, 0, 0\) waits"),
        ("writes_behind", "writes_behind wrote behind an allocation of 128 bytes"),
        ("reads_far", r"reads_far, block \(0, 0, 0\), thread \(0, 0, 0\) touched .* outside all memory"),
        ("crooked", "not aligned"),
        ("shared_behind", "wrote behind its shared memory"),
    ],
)
def test_kernel_errors_are_reported_with_their_place(device, kernel, sentence):
    with pytest.raises(AssertionError, match=sentence):
        ran(device, kernel, 1, 64, 32, shared=64 if kernel == "shared_behind" else 0)
    assert ran(device, "fill_3", 1, 1, 1)[0] == 3  # the next launch goes well


def test_out_of_bounds_index_is_caught(device):
    assert ran(device, "index", 1, 1, 1, 2)[0] == 2
    with pytest.raises(AssertionError, match="index outside an array"):
        ran(device, "index", 1, 1, 1, 4)


def test_arguments_are_checked_by_type(device):
    with pytest.raises(AssertionError, match="turn takes pi, but was given pf"):
        ran(device, "turn", 1, 1, 1, 2.0)
    with pytest.raises(AssertionError, match="there is no kernel none"):
        ran(device, "none", 1, 1, 1)


def test_memory_is_freed_with_the_last_unclosed_device(tmp_path):
    (tmp_path / "kernels.cu").write_text(SOURCE)
    device = EmulatedDevice(tmp_path / "kernels.cu")
    native, other, at = device._native, device.new_stream(), int(device.allocate(1000))
    del device
    gc.collect()
    assert native.emulated_owns(at, 1000)
    del other
    gc.collect()
    assert not native.emulated_owns(at, 1000)
