// Greedy sampling in two launches: the best of each block's share, then the best of those and the step's bookkeeping.
// Of equal values the lowest index wins, and NaN never does, so the choice does not depend on the grid.
#include "common.cuh"

#define THREADS 256
#define LOWEST -3.402823466e38f

DEVICE void keep_best(float* value, int* index, float other, int at) {
    if (other > *value || (other == *value && at < *index)) {
        *value = other;
        *index = at;
    }
}

// The best of the block's (value, index) pairs, in thread 0.
DEVICE void block_best(float* value, int* index) {
    __shared__ float values[THREADS];
    __shared__ int indices[THREADS];
    values[threadIdx.x] = *value;
    indices[threadIdx.x] = *index;
    for (int step = THREADS / 2; step > 0; step >>= 1) {
        __syncthreads();
        if (threadIdx.x < step) {
            keep_best(value, index, values[threadIdx.x + step], indices[threadIdx.x + step]);
            values[threadIdx.x] = *value;
            indices[threadIdx.x] = *index;
        }
    }
}

// logits f32 [n]; part_value f32 [gridDim.x]; part_index i32 [gridDim.x]
extern "C" __global__ void __launch_bounds__(THREADS)
    argmax_partial(const float* logits, float* part_value, int* part_index, int n) {
    float value = LOWEST;
    int index = 0;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS)
        keep_best(&value, &index, logits[i], i);
    block_best(&value, &index);
    if (threadIdx.x == 0) {
        part_value[blockIdx.x] = value;
        part_index[blockIdx.x] = index;
    }
}

// part_value f32 [parts]; part_index i32 [parts]; state i32 [3]: position, token, produced; ring i32 [ring_size].
// position += consumed, token = arg max, ring[produced % ring_size] = token, produced += 1. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
    advance(const float* part_value, const int* part_index, int* state, int* ring, int parts, int consumed,
            int ring_size) {
    float value = LOWEST;
    int index = 0;
    for (int i = threadIdx.x; i < parts; i += THREADS) keep_best(&value, &index, part_value[i], part_index[i]);
    block_best(&value, &index);
    if (threadIdx.x == 0) {
        const int produced = state[2];
        state[0] += consumed;
        state[1] = index;
        ring[produced % ring_size] = index;
        state[2] = produced + 1;
    }
}
