// Stream-K scheduling of the work items of linear_wgmma.cu over cluster pairs of blocks.
#pragma once

#include "linears/linears.cuh"

// Slices [first, end) of work item `number`.
struct WorkRange {
    int number, first, end;
};
// Ranges of a pair, in order: the head of its last item, complete items, the tail of its first item. Items of the last
// full round and of the partial round after it are distributed by slices, so each pair gets at least the slices of one
// item and at most of two. With n_splits > 1 items are not distributed by slices and keep all 16; otherwise trailing
// slices without tiles are dropped.
struct StreamKScheduler {
    int pair, n_pairs, n_items, n_slices, n_each, n_splits, n_rounds, begin, end, step;

    __device__ __forceinline__ StreamKScheduler(int pair, int n_pairs, int n_items, int n_tiles, int n_splits)
        : pair(pair), n_pairs(n_pairs), n_items(n_items), n_splits(n_splits), begin(0), end(0), step(-1) {
        n_slices = n_splits == 1 ? min(n_tiles, N_SLICES) : N_SLICES;
        n_each = n_slices / n_splits;
        n_rounds = (n_items + n_pairs - 1) / n_pairs;
        if (n_splits == 1 && n_items > n_pairs && n_items % n_pairs) {
            n_rounds -= 2;
            const int n = (n_items - n_rounds * n_pairs) * n_slices;
            begin = n_rounds * n_pairs * n_slices + n * pair / n_pairs;
            end = n_rounds * n_pairs * n_slices + n * (pair + 1) / n_pairs;
        }
    }
    __device__ __forceinline__ bool next(WorkRange& part) {
        if (step < 0) {
            step = 0;
            part = {end / n_slices, 0, end % n_slices};
            if (part.end) return true;
        }
        if (step < n_rounds) {
            const int number = step++ * n_pairs + pair;
            if (number < n_items) {
                part = {number, number % n_splits * n_each, number % n_splits * n_each + n_each};
                return true;
            }
            step = n_rounds;
        }
        while (step < n_rounds + 2) {  // two if the pair has all their slices
            const int number = (begin + n_slices - 1) / n_slices + step++ - n_rounds;
            part = {number, 0, n_slices};
            if ((number + 1) * n_slices <= end) return true;
        }
        part = {begin / n_slices, begin % n_slices, n_slices};
        return step++ == n_rounds + 2 && part.first;
    }
};
