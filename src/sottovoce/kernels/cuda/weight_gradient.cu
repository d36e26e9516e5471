// The gradient of a 3x3 "same" convolution's weights, straight into flat rows.
//
// One block computes one replica: each of three groups of 128 threads the three taps of one line, while
// a fourth copies. Windows are the products' inner index; both operands are planes as they lie.
//
// POOLED: whether dz is a gradient behind a max pool, given by the largest entries alone. HELD: operands
// in registers at once. FEW, MANY: registers of a thread that copies, and of one that multiplies.

constexpr int PLANES_X = 4 * REACHED * IN * 2, PLANES_Z = 4 * TILE * OUT * 2;
constexpr int BUFFER = PLANES_X + PLANES_Z;
constexpr bool PAIRS = OUT == 32;  // one product takes two outputs and two inputs of a line
constexpr int PRODUCTS = PAIRS ? 2 : 3, COLUMNS = PAIRS ? 2 * IN : IN;
constexpr int LATE = 1;  // tiles whose copies are on their way
static_assert(STAGES > LATE, "shared memory must hold the tiles that are copied and one more");

constexpr int LEFT = PAIRS ? 1 : 2;  // outputs of a line that are operands of their own
constexpr int STEPS = TILE / 16, PLACES = 2 * LEFT * STEPS;
constexpr int AHEAD = HELD > 3 ? 2 : HELD - 1;

// Outputs as operands in registers: of 16 windows, those of a row, and if not PAIRS those of a column.
__device__ __forceinline__ void read_outputs(u32 (&held)[4], u32 own, int at) {
  const int plane = PAIRS ? at / STEPS * 2 : at / STEPS;
  read_turned(held, own + (plane * TILE + at % STEPS * 16) * (2 * OUT));
}

// Begin all products of a tile: some of the last are not done when this ends. own: where this thread's
// part of the first operand lies. held: operands, which must outlive the products.
__device__ __forceinline__ void add_tile(float (&acc)[PRODUCTS][COLUMNS / 2], u32 (&held)[HELD][4],
                                         u32 planes, u32 own, int dy, bool first) {
#pragma unroll
  for (int at = 0; at < AHEAD; at++) read_outputs(held[at], own, at);
#pragma unroll
  for (int at = 0; at < PLACES; at++) {
    const int p = at / STEPS / LEFT, q = PAIRS ? 0 : at / STEPS % 2, line = p + dy;
    const u32 inputs = planes + (line % 2 * 2 * REACHED + line / 2 * ACROSS + at % STEPS * 16) * (2 * IN);
    products_begin();
#pragma unroll
    for (int n = 0; n < PRODUCTS; n++) {
      const int place = PAIRS ? n : (n + q) % 2 * REACHED + (n + q) / 2;
      const u64 b = operand(inputs + place * (2 * IN), PAIRS ? REACHED * 2 * IN : 0, 16 * IN, IN);
      multiply<1>(acc[n], held[at % HELD], b, !first || at);
    }
    products_begun();
    if (at + AHEAD >= PLACES) continue;
    products_done<HELD - AHEAD>();
    read_outputs(held[(at + AHEAD) % HELD], own, at + AHEAD);
  }
}

// The three taps of line dy of every weight: (OUT, IN, 3, 3).
__device__ __forceinline__ void store(const float (&acc)[PRODUCTS][COLUMNS / 2], float* grad, int dy,
                                      int thread, u8* memory) {
  const int row = thread / 32 * 16 + thread % 32 / 4, q = thread % 4;
  if (!PAIRS) {
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
  meet<384>(3);
  float* sums = reinterpret_cast<float*>(memory) + dy * 3 * 32 * IN;
  for (int right = 1; right >= 0; right--) {
    if (row / 32 == right)
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
    meet(dy);
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
  // Gates of every stage: its planes are filled; all warps are past their products.
  u64* filled = reinterpret_cast<u64*>(memory + STAGES * BUFFER);
  u64* used = filled + STAGES;
  if (threadIdx.x < STAGES) make_gate(filled + threadIdx.x, 128), make_gate(used + threadIdx.x, 12);
  __syncthreads();
  if (dy == 3) {
    keep_registers<FEW>();
    Pooled<OUT, TILE, 0, 128> pooled;
    auto read = [&](u32 tile) {
      if (POOLED) pooled.read(dz, dz_index, tile * ROWS, images, thread);
    };
    read(0);
    for (u32 tile = 0; tile < tiles + LATE; tile++) {
      const u32 stage = tile % STAGES, to = stage * BUFFER;
      if (tile < tiles) {
        if (tile >= STAGES) wait_for(used + stage, tile / STAGES - 1);
        copy_planes<IN, REACHED, 1, 128>(planes + to, x, tile * ROWS, images, thread);
        if (POOLED) pooled.write(memory + to + PLANES_X, thread);
        else copy_planes<OUT, TILE, 0, 128>(planes + to + PLANES_X, dz, tile * ROWS, images, thread);
        read(tile + 1);
      }
      copies_begun();
      if (tile < LATE) continue;
      copies_done<LATE>();
      show_to_tensor_cores();
      arrive(filled + (tile - LATE) % STAGES);
    }
  } else {
    take_registers<MANY>();
    float acc[PRODUCTS][COLUMNS / 2];
    u32 held[HELD][4];
    // A warp has 16 rows of outputs; threads name columns of four matrices, 8 windows by 8 channels.
    const int warp = thread / 32, lane = threadIdx.x % 32, window = lane / 16 * 8 + lane % 8;
    const int chunk = (PAIRS ? warp % 2 : warp) * 2 + lane / 8 % 2;
    const u32 own = planes + PLANES_X + address_of<OUT, TILE>(PAIRS ? warp / 2 : 0, window, chunk);
    for (u32 tile = 0; tile < tiles; tile++) {
      const u32 stage = tile % STAGES;
      wait_for(filled + stage, tile / STAGES);
      add_tile(acc, held, planes + stage * BUFFER, own + stage * BUFFER, dy, tile == 0);
      products_done<0>();
      if (lane == 0) arrive(used + stage);
    }
    store(acc, grad, dy, thread, memory);
  }
}
