// Ops of vision and audio encoders, and of embeddings that replace tokens. grid: (rows, chunks of columns).
#include "primitives/activations.cuh"
#include "primitives/block_reduce.cuh"
#include "rows/each.cuh"

// Input rows of the batch.
KERNEL(input)(const Batch* b, float* y, int width) {
    each(b, 0, width, [=](long long at, int, int) { y[at] = b->hidden[at]; });
}

// y = x + `taps` table rows times their weights; the row's places from `first` on.
KERNEL(embedding_bag)(const Batch* b, const float* x, const float* table, float* y, int width, int first, int taps) {
    each(b, 0, width, [=](long long at, int row, int c) {
        float sum = x[at];
        for (int i = row * b->n_gather + first; i < row * b->n_gather + first + taps; i++) {
            const int place = b->gather_rows[i];
            if (place >= 0) sum = __fadd_rn(sum, __fmul_rn(b->gather_weights[i], table[(long long)place * width + c]));
        }
        y[at] = sum;
    });
}

// y = n rows of x from each output row on, concatenated.
KERNEL(merge_patches_concat)(const Batch* b, const float* x, float* y, int width, int n) {
    const int width_x = width / n;
    each(b, 1, width, [=](long long at, int row, int c) { y[at] = x[(long long)b->output_rows[row] * width_x + c]; });
}

// Same, interleaved: the first column of all n rows, then the second, ...
KERNEL(merge_patches_interleave)(const Batch* b, const float* x, float* y, int width, int n) {
    const int width_x = width / n;
    each(b, 1, width,
         [=](long long at, int row, int c) { y[at] = x[((long long)b->output_rows[row] + c % n) * width_x + c / n]; });
}

// Same, averaged; summed in f64 as in the reference.
KERNEL(merge_patches_mean)(const Batch* b, const float* x, float* y, int width, int n) {
    each(b, 1, width, [=](long long at, int row, int c) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += double(x[((long long)b->output_rows[row] + i) * width + c]);
        y[at] = float(sum / n);
    });
}

// Depthwise convolution over `kernel` rows of the sequence, starting `before` rows before the row; zero-padded.
// filters: [width][kernel].
KERNEL(conv1d)(const Batch* b, const float* x, const float* filters, const float* bias, float* y, int width, int kernel,
               int before, int has_silu) {
    each(b, 0, width, [=](long long at, int row, int c) {
        const int s = b->sequences[row];
        const int from = max(b->offsets[s] - row + before, 0), to = min(b->offsets[s + 1] - row + before, kernel);
        float sum = 0.f;
        for (int k = from; k < to; k++)
            sum = __fadd_rn(sum, __fmul_rn(x[at + (long long)(k - before) * width], filters[c * kernel + k]));
        if (bias != nullptr) sum = __fadd_rn(sum, bias[c]);
        y[at] = has_silu ? activation(SILU, sum) : sum;
    });
}

// Cumulative norm: (x - mean) / deviation over all rows of the sequence so far, times the weight of each n columns. The
// block of a sequence's first row computes it all, since rows need the running sums.
KERNEL(cumulative_norm)(const Batch* b, const float* x, const float* weight, float* y, int width, int n, float eps) {
    const int row = blockIdx.x;
    if (row >= b->n_rows || row != b->offsets[b->sequences[row]]) return;
    double sum = 0, squares = 0, count = 0;
    for (int r = row; r < b->offsets[b->sequences[row] + 1]; r++) {
        const long long at = (long long)r * width;
        float part = 0.0f, square = 0.0f;
        for (int i = threadIdx.x; i < width; i += blockDim.x) part += x[at + i];
        count += width;
        sum += block_sum(part);
        const float mean = float(sum / count);
        for (int i = threadIdx.x; i < width; i += blockDim.x) square = fmaf(x[at + i] - mean, x[at + i] - mean, square);
        squares += block_sum(square);
        const float factor = 1.0f / sqrtf(float(squares / count) + eps);
        for (int i = threadIdx.x; i < width; i += blockDim.x)
            y[at + i] = __fmul_rn(__fmul_rn(x[at + i] - mean, factor), weight[i % n]);
    }
}

// y = x, or part `part` of the embeddings that replace it, or their sum.
KERNEL(scatter_rows)(const Batch* b, const float* x, float* y, int width, int part, int adds) {
    each(b, 0, width, [=](long long at, int row, int c) {
        const int place = b->embeds_at == nullptr ? -1 : b->embeds_at[row];
        if (place < 0) {
            y[at] = x[at];
            return;
        }
        const float embed = b->inputs_embeds[(long long)place * b->embeds_width + (long long)part * width + c];
        y[at] = adds ? __fadd_rn(x[at], embed) : embed;
    });
}
