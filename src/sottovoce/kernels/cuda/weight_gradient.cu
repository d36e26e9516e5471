// The gradient of a 3x3 "same" convolution's weights, straight into flat rows.
//
// One block computes one replica: each of three groups of 128 threads the three taps of one line, while
// a fourth copies. Windows are the products' inner index; both operands are planes as they lie.
//
// POOLED: whether dz is a gradient behind a max pool, given by the largest entries alone.

constexpr int PLANES_X = 4 * REACHED * IN * 2, PLANES_Z = 4 * TILE * OUT * 2;
constexpr int BUFFER = PLANES_X + PLANES_Z;
constexpr bool PAIRS = OUT == 32;  // one product takes two outputs and two inputs of a line
constexpr int PRODUCTS = PAIRS ? 2 : 3, COLUMNS = PAIRS ? 2 * IN : IN;
constexpr int AHEAD = STAGES - 2;  // tiles that are copied while one is multiplied and one may still be
static_assert(AHEAD > 0, "shared memory must hold three tiles");

// Begin the products of a tile.
__device__ __forceinline__ void add_tile(float (&acc)[PRODUCTS][COLUMNS / 2], u32 planes, int dy,
                                         bool first) {
#pragma unroll
  for (int k = 0; k < TILE / 16; k++)
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int line = p + dy;
      const u32 inputs = planes + (line % 2 * 2 * REACHED + line / 2 * ACROSS + 16 * k) * (2 * IN);
      const u32 outputs = planes + PLANES_X + (2 * p * TILE + 16 * k) * (2 * OUT);
#pragma unroll
      for (int n = 0; n < PRODUCTS; n++) {
        if (PAIRS) {
          const u64 a = operand(outputs, TILE * 2 * OUT, 16 * OUT, OUT);
          const u64 b = operand(inputs + n * 2 * IN, REACHED * 2 * IN, 16 * IN, IN);
          multiply_turned(acc[n], a, b, !first || k || p);
          continue;
        }
#pragma unroll
        for (int q = 0; q < 2; q++) {
          const int place = (n + q) % 2 * REACHED + (n + q) / 2;
          const u64 a = operand(outputs + q * TILE * 2 * OUT, 0, 16 * OUT, OUT);
          const u64 b = operand(inputs + place * 2 * IN, 0, 16 * IN, IN);
          multiply_turned(acc[n], a, b, !first || k || p || q);
        }
      }
    }
}

// x: (replicas, images, H, W, IN); dz: (replicas, images, H, W, OUT), or if POOLED its largest entries
// and which those are, dz_index; grad: (OUT, IN, 3, 3) float32, rows `stride` numbers apart.
extern "C" __global__ void __launch_bounds__(512, 1)
weight_gradient(const u16* x, const u16* dz, const u8* dz_index, float* grad, u64 stride, int images) {
  extern __shared__ __align__(1024) u8 memory[];
  const u64 replica = blockIdx.x;
  const int dy = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = threadIdx.x % 128;
  const u32 planes = shared_address(memory);
  x += replica * images * (H * W * IN);
  dz += replica * images * (H * W * OUT / (POOLED ? 4 : 1));
  if (POOLED) dz_index += replica * images * (H * W * OUT / 4);
  grad += replica * stride;
  const u32 tiles = (images * AN_IMAGE + TILE - 1) / TILE;
  // Outputs that do not exist are zero, and meet inputs beyond the copied ones, which must be finite.
  clear(memory, STAGES * BUFFER);
  __syncthreads();
  float acc[PRODUCTS][COLUMNS / 2];
  if (dy == 3) {
    Pooled<OUT, TILE, 0, 128> pooled;
    auto read = [&](u32 tile) {
      if (POOLED) pooled.read(dz, dz_index, tile * ROWS, images, thread);
    };
    auto fill = [&](u32 tile, u32 stage) {
      const u32 to = stage * BUFFER;
      if (tile < tiles) {
        copy_planes<IN, REACHED, 1, 128>(planes + to, x, tile * ROWS, images, thread);
        if (POOLED) pooled.write(memory + to + PLANES_X, thread);
        else copy_planes<OUT, TILE, 0, 128>(planes + to + PLANES_X, dz, tile * ROWS, images, thread);
      }
      copies_begun();
      read(tile + 1);
    };
    read(0);
    for (u32 tile = 0; tile < AHEAD; tile++) fill(tile, tile);
    for (u32 tile = 0, next = AHEAD; tile < tiles; tile++) {
      copies_done<AHEAD - 1>();
      show_to_tensor_cores();
      // The others are past the products of the tile before the last, whose stage is filled again.
      __syncthreads();
      fill(tile + AHEAD, next);
      next = next + 1 < STAGES ? next + 1 : 0;
    }
    copies_done<0>();
  } else {
    for (u32 tile = 0, stage = 0; tile < tiles; tile++) {
      __syncthreads();
      products_begin();
      add_tile(acc, planes + stage * BUFFER, dy, tile == 0);
      products_begun();
      products_done<1>();
      stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    products_done<0>();
  }
  const int row = thread / 32 * 16 + thread % 32 / 4, q = thread % 4;
  if (!PAIRS) {
    if (dy < 3)
#pragma unroll
    for (int dx = 0; dx < PRODUCTS; dx++)
#pragma unroll
      for (int e = 0; e < COLUMNS / 2; e++) {
        const int o = row + e / 2 % 2 * 8, i = e / 4 * 8 + 2 * q + e % 2;
        grad[(o * IN + i) * 9 + dy * 3 + dx] = acc[dx][e];
      }
    return;
  }
  // Rows 0 to 31 are of the left outputs, 32 to 63 of the right ones; columns of inputs 2 n, 2 n + 1.
  __syncthreads();
  float* sums = reinterpret_cast<float*>(memory) + dy * 3 * 32 * IN;
  for (int right = 1; right >= 0; right--) {
    if (dy < 3 && row / 32 == right)
#pragma unroll
      for (int n = 0; n < PRODUCTS; n++)
#pragma unroll
        for (int e = 0; e < COLUMNS / 2; e++) {
          const int column = e / 4 * 8 + 2 * q + e % 2, dx = 2 * n + column / IN - right;
          const int o = row % 32 + e / 2 % 2 * 8, i = column % IN;
          if (dx < 0 || dx > 2) continue;
          float* at = sums + (dx * 32 + o) * IN + i;
          if (right) *at = acc[n][e];
          else grad[(o * IN + i) * 9 + dy * 3 + dx] = acc[n][e] + *at;
        }
    __syncthreads();
  }
}
