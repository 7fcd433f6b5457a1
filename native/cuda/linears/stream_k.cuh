// Which parts of the items of many rows a pair of blocks of linear_wgmma.cu computes, and in which order.
#pragma once

#include "linears/linears.cuh"

// Slices of an item that a pair of blocks computes.
struct WorkRange {
    int number, first, end;
};
// Parts of a pair of blocks, one after another: the beginning of its last item, whole ones, then the end of its first.
// Items that do not make a whole round are dealt by slices, together with those of the last whole round: a pair has the
// slices of one item at least and of two at most. Items whose slices are split are not dealt so, and have all of them;
// of others, slices without tiles, which are the last, are left out.
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
        while (step < n_rounds + 2) {  // two if all its slices are theirs
            const int number = (begin + n_slices - 1) / n_slices + step++ - n_rounds;
            part = {number, 0, n_slices};
            if ((number + 1) * n_slices <= end) return true;
        }
        part = {begin / n_slices, begin % n_slices, n_slices};
        return step++ == n_rounds + 2 && part.first;
    }
};
