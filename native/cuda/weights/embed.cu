// Embedding lookups: tokens, learned positions, token types.
#include "weights/blocks_rare.cuh"

// grid: (rows, chunks of columns).
template <class Element>
__device__ inline float element_of(const u8* table, const u8* points, int row, int column, int width) {
    const u8* const start = table + (long long)row * (width / Element::columns) * Element::bytes;
    return Element::value(start + (column / Element::columns) * Element::bytes, column % Element::columns, points);
}

// y = table[token]
template <class Element>
__device__ inline void embed(const Batch* b, const u8* table, const u8* points, float* y, int width) {
    const int row = blockIdx.x;
    if (row >= b->n_rows) return;
    const int token = b->tokens[row];
    for (int c = blockIdx.y * blockDim.x + threadIdx.x; c < width; c += gridDim.y * blockDim.x)
        y[(long long)row * width + c] = element_of<Element>(table, points, token, c, width);
}

// y = x + table[position]
template <class Element>
__device__ inline void embed_position(const Batch* b, const u8* table, const u8* points, const float* x, float* y,
                                      int width, int kind) {
    const int row = blockIdx.x;
    if (row >= b->rows(kind)) return;
    const int position = b->positions[kind ? b->output_rows[row] : row];
    for (int c = blockIdx.y * blockDim.x + threadIdx.x; c < width; c += gridDim.y * blockDim.x) {
        const long long at = (long long)row * width + c;
        y[at] = x[at] + element_of<Element>(table, points, position, c, width);
    }
}

#define TABLES_OF(name, Element)                                                                               \
    KERNEL(embed_##name)(const Batch* b, const u8* table, const u8* points, float* y, int width) {             \
        embed<Element>(b, table, points, y, width);                                                            \
    }                                                                                                          \
    KERNEL(embed_position_##name)(const Batch* b, const u8* table, const u8* points, const float* x, float* y, \
                                  int width, int kind) {                                                       \
        embed_position<Element>(b, table, points, x, y, width, kind);                                          \
    }
#define TABLES(name, T) TABLES_OF(name, Block<T>::Element)
TABLES_OF(f32, elements::F32)
ALL_BLOCKS(TABLES)

// y = x + table[0], or + table[1] after a `separator` token (0: none).
KERNEL(embed_token_type)(const Batch* b, const float* table, const float* x, float* y, int width, int separator) {
    __shared__ int is_second_segment;
    const int row = blockIdx.x;
    if (row >= b->n_rows) return;
    if (threadIdx.x == 0) {
        is_second_segment = 0;
        for (int i = b->offsets[b->sequences[row]]; separator && i < row; i++)
            is_second_segment |= b->tokens[i] == separator;
    }
    __syncthreads();
    const float* const added = table + is_second_segment * width;
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        const long long at = (long long)row * width + c;
        y[at] = x[at] + added[c];
    }
}
