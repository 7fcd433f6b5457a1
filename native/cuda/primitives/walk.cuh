// Which parts of the items of many rows a pair of blocks of linear_wide.cu computes, and in which order.
#pragma once

#include "linears/linears.cuh"

// Slices of an item that a pair of blocks computes.
struct Part {
    int number, first, end;
};
// Parts of a pair of blocks, one after another: the beginning of its last item, whole ones, then the end of its first.
// Items that do not make a whole round are dealt by slices, together with those of the last whole round: a pair has 16
// slices at least and 32 at most. Items whose slices are split are not dealt so.
struct Walk {
    int pair, n_pairs, n_items, n_each, n_splits, n_rounds, begin, end, step;

    __device__ __forceinline__ Walk(int pair, int n_pairs, int n_items, int n_splits)
        : pair(pair), n_pairs(n_pairs), n_items(n_items), n_splits(n_splits), begin(0), end(0), step(-1) {
        n_each = N_SLICES / n_splits;
        n_rounds = (n_items + n_pairs - 1) / n_pairs;
        if (n_splits == 1 && n_items > n_pairs && n_items % n_pairs) {
            n_rounds -= 2;
            const int n = (n_items - n_rounds * n_pairs) * N_SLICES;
            begin = n_rounds * n_pairs * N_SLICES + n * pair / n_pairs;
            end = n_rounds * n_pairs * N_SLICES + n * (pair + 1) / n_pairs;
        }
    }
    __device__ __forceinline__ bool next(Part& part) {
        if (step < 0) {
            step = 0;
            part = {end / N_SLICES, 0, end % N_SLICES};
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
        while (step < n_rounds + 2) {  // two if its 32 slices are theirs
            const int number = (begin + N_SLICES - 1) / N_SLICES + step++ - n_rounds;
            part = {number, 0, N_SLICES};
            if ((number + 1) * N_SLICES <= end) return true;
        }
        part = {begin / N_SLICES, begin % N_SLICES, N_SLICES};
        return step++ == n_rounds + 2 && part.first;
    }
};
