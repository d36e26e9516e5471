// A 3x3 "same" convolution with weights of every replica's own, and what follows it.
//
// One block computes one replica. Each of its GROUPS groups of 128 threads has tiles of its own, so that
// the results of one group pass while another multiplies; one more group copies, into BUFFERS buffers.
//
// MODE: forward "STORE", "POOL" (largest of each window and its place), "FLAT" (the same, channels
// outermost); backward, to the sums of the lower layer, "SLOPE", or "SPREAD" over its pool's windows.
// ACT: the activation forward, or the lower layer's backward. POOLED: whether x is a gradient behind a
// max pool, given by the largest entries alone. FIRST: if not 0, the lower layer is the first, with so
// many input channels; what comes out is its weights' gradient. HELD: places whose inputs are
// in registers at once. FEW, MANY: registers of a thread that copies, and of one that multiplies.

enum { STORE, POOL, FLAT, SLOPE, SPREAD };
enum { IDENTITY, SIGMOID, RELU, TANH };

constexpr bool BACKWARD = MODE == SLOPE || MODE == SPREAD;
constexpr int BUFFER = 4 * REACHED * IN * 2;
constexpr int WEIGHTS = 9 * IN * OUT * 2;
constexpr bool WHOLE = MODE == FLAT && TILE == AN_IMAGE;  // results of an image leave together
constexpr int NUMBERS = OUT * (H / 2) * (W / 2);
constexpr int AHEAD = HELD > 3 ? 2 : HELD - 1;
constexpr u32 ALL = 0xFFFFFFFFu;
constexpr u16 ONE = 0x3F80;  // in bfloat16

// The first layer's taps, and one for its bias, by 16. A group holds its inputs as planes, and once more
// from the second place on, so that two neighbouring places can be read at once.
constexpr int TAPS = FIRST ? (9 * FIRST + 16) / 16 * 16 : 0;
constexpr int INPUTS = FIRST * 2 * 4 * REACHED, CONSTANTS = 2 * TILE;
constexpr int INPUT_BYTES = FIRST ? (INPUTS + CONSTANTS) * 2 : 0;
constexpr int OWN = WHOLE ? 3 * NUMBERS : INPUT_BYTES;  // bytes that a group has for itself
constexpr int LATE = 1;                                 // tiles whose copies are on their way

// Shared memory: weights, biases, gates, all buffers, what groups have for themselves.
constexpr int AT_BIASES = (WEIGHTS + 1023) / 1024 * 1024, AT_GATES = AT_BIASES + 512;
constexpr int AT_PLANES = AT_BIASES + 1024, AT_OWN = AT_PLANES + BUFFERS * BUFFER;

__device__ __forceinline__ float activate(float z) {
  if (ACT == SIGMOID) return 0.5f * tanh_of(0.5f * z) + 0.5f;
  if (ACT == RELU) return z > 0.0f ? z : 0.0f;
  if (ACT == TANH) return 2.0f / (1.0f + __expf(-2.0f * z)) - 1.0f;
  return z;
}

__device__ __forceinline__ float slope(float a) {
  if (ACT == SIGMOID) return a * (1.0f - a);
  if (ACT == RELU) return a > 0.0f ? 1.0f : 0.0f;
  if (ACT == TANH) return 1.0f - a * a;
  return 1.0f;
}

// Among four threads, entry s of thread q becomes entry q of thread s.
__device__ __forceinline__ void turn(u32 (&v)[4], int q) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(ALL, q & 1 ? v[i] : v[i + 1], 1);
    if (q & 1) v[i] = got; else v[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 got = __shfl_xor_sync(ALL, q & 2 ? v[i] : v[i + 2], 2);
    if (q & 2) v[i] = got; else v[i + 2] = got;
  }
}

__device__ __forceinline__ void store16(u16* to, const u32 (&v)[4]) {
  *reinterpret_cast<uint4*>(to) = make_uint4(v[0], v[1], v[2], v[3]);
}

// Torch's (OUT, IN, 3, 3) float32 weights as the operand (taps, IN / 8, OUT, 8); backward the tensor is
// (IN, OUT, 3, 3), flipped.
__device__ __forceinline__ void keep_weights(u8* to, const float* weight) {
  for (int at = threadIdx.x; at < IN * OUT / 2; at += blockDim.x) {
    const int k = at % 4 * 2 + at / (4 * OUT) * 8, n = at / 4 % OUT;
    const float* first = weight + (BACKWARD ? k * OUT + n : n * IN + k) * 9;
    const float* second = first + (BACKWARD ? OUT * 9 : 9);
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
      const int from = BACKWARD ? 8 - tap : tap;
      *reinterpret_cast<u32*>(to + ((tap * (IN / 8) + k / 8) * OUT + n) * 16 + k % 8 * 2) =
          pack(first[from], second[from]);
    }
  }
}

// Four results a window, each 64 windows by OUT channels.
typedef float Results[4][OUT / 2];

// A tile's inputs at the 16 places around a window, in registers: HELD places at once, some of them read
// AHEAD while the products of others are computed.
struct Inputs {
  static constexpr int STEPS = IN / 16;
  u32 rows[2][STEPS];  // where this thread's row begins in a buffer: at its place and at the next one
  u32 held[HELD][STEPS][4];

  __device__ __forceinline__ Inputs(int thread) {
#pragma unroll
    for (int next = 0; next < 2; next++)
#pragma unroll
      for (int k = 0; k < STEPS; k++) {
        const int place = thread / 32 * 16 + thread % 16 + next;
        rows[next][k] = address_of<IN, REACHED>(0, place, 2 * k + thread % 32 / 16);
      }
  }

  __device__ __forceinline__ void read(u32 planes, int at) {
    const int line = at / 4, column = at % 4, plane = line % 2 * 2 + column % 2;
#pragma unroll
    for (int k = 0; k < STEPS; k++)
      read_matrices(held[at % HELD][k],
                    planes + rows[column / 2][k] + (plane * REACHED + line / 2 * ACROSS) * (2 * IN));
  }
};

// Begin all products of a tile: some of the last are not done when this ends.
__device__ __forceinline__ void convolve_tile(Results& acc, Inputs& inputs, u32 planes,
                                              u32 weights) {
#pragma unroll
  for (int at = 0; at < AHEAD; at++) inputs.read(planes, at);
  weights = afresh(weights);
#pragma unroll
  for (int at = 0; at < 16; at++) {
    products_begin();
#pragma unroll
    for (int part = 0; part < 4; part++) {
      const int dy = at / 4 - part / 2, dx = at % 4 - part % 2;
      if (dy < 0 || dy > 2 || dx < 0 || dx > 2) continue;
#pragma unroll
      for (int k = 0; k < IN / 16; k++) {
        const u32 tap = weights + ((dy * 3 + dx) * (IN / 8) + 2 * k) * (OUT * 16);
        multiply(acc[part], inputs.held[at % HELD][k], operand(tap, OUT * 16, 128, 0), dy || dx || k);
      }
    }
    products_begun();
    if (at + AHEAD > 15) continue;
    products_done<HELD - AHEAD>();
    inputs.read(planes, at + AHEAD);
  }
}

struct Place {
  int image, y, x;  // of the window's first pixel
  bool there;
};

__device__ __forceinline__ Place place_of(u32 at, int images) {
  const int image = at / AN_IMAGE, rest = at % AN_IMAGE, y = rest / ACROSS, x = rest % ACROSS;
  return {image, 2 * y, 2 * x, image < images && y < H / 2 && x < W / 2};
}

__device__ __forceinline__ void store_forward(Results& acc, const float* bias, Place at, int half,
                                              int q, u16* out, u8* index) {
#pragma unroll
  for (int g = 0; g < OUT / 32; g++) {
    if (MODE == STORE) {
#pragma unroll
      for (int part = 0; part < 4; part++) {
        u32 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const int r = (4 * g + j) * 4 + 2 * half, c = (4 * g + j) * 8 + 2 * q;
          v[j] = pack(activate(acc[part][r] + bias[c]),
                      activate(acc[part][r + 1] + bias[c + 1]));
        }
        turn(v, q);
        const int pixel = (at.image * H + at.y + part / 2) * W + at.x + part % 2;
        if (at.there) store16(out + pixel * OUT + (4 * g + q) * 8, v);
      }
      continue;
    }
    u32 v[4], w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int c = (4 * g + j) * 8 + 2 * q;
      float a[2];
      u32 largest[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int r = (4 * g + j) * 4 + 2 * half + e;
        float best = acc[0][r];
        largest[e] = 0;
#pragma unroll
        for (int part = 1; part < 4; part++)
          if (acc[part][r] > best) best = acc[part][r], largest[e] = part;
        a[e] = activate(best + bias[c + e]);
      }
      v[j] = pack(a[0], a[1]);
      w[j] = largest[0] | largest[1] << 8;
    }
    const int y = at.y / 2, x = at.x / 2;
    if (MODE == FLAT) {
      constexpr int AREA = H / 2 * (W / 2);
      const int image = WHOLE ? 0 : at.image * OUT;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int to = (image + (4 * g + j) * 8 + 2 * q) * AREA + y * (W / 2) + x;
        if (at.there) {
          out[to] = v[j], out[to + AREA] = v[j] >> 16;
          index[to] = w[j], index[to + AREA] = w[j] >> 8;
        }
      }
      continue;
    }
    turn(v, q);
    turn(w, q);
    const int to = ((at.image * (H / 2) + y) * (W / 2) + x) * OUT + (4 * g + q) * 8;
    if (at.there) {
      store16(out + to, v);
      const uint2 both = make_uint2(w[0] | w[1] << 16, w[2] | w[3] << 16);
      *reinterpret_cast<uint2*>(index + to) = both;
    }
  }
}

// What the lower layer holds at a thread's results: read while the products are computed, eight
// neighbouring channels at once, and exchanged with the other threads of a row when it is used.
struct Lower {
  uint4 a[4][OUT / 32];
  uint2 where[4][MODE == SPREAD ? OUT / 32 : 1];

  __device__ __forceinline__ void read(const u16* lower, const u8* index, Place at, int q) {
#pragma unroll
    for (int part = 0; part < 4; part++) {
      const int pixel = (at.image * H + at.y + part / 2) * W + at.x + part % 2;
      const int from = at.there ? pixel * OUT + 8 * q : 0;
#pragma unroll
      for (int g = 0; g < OUT / 32; g++) {
        a[part][g] = read16(lower + from + 32 * g);
        if (MODE == SPREAD) where[part][g] = read8(index + from + 32 * g);
      }
    }
  }

  // Of the channels 8 (4 g + j) + 2 q and the next one: entry j.
  __device__ __forceinline__ void give(u32 (&v)[4], int part, int g, int q) const {
    v[0] = a[part][g].x, v[1] = a[part][g].y, v[2] = a[part][g].z, v[3] = a[part][g].w;
    turn(v, q);
  }
};

__device__ __forceinline__ void store_backward(Results& acc, float (&total)[OUT / 4],
                                               const Lower& below, Place at, int half, int q,
                                               u16* out) {
#pragma unroll
  for (int part = 0; part < 4; part++) {
    const int y = at.y + part / 2, x = at.x + part % 2;
#pragma unroll
    for (int g = 0; g < OUT / 32; g++) {
      u32 v[4], a[4];
      below.give(a, part, g, q);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int r = (4 * g + j) * 4 + 2 * half;
        const float low = at.there ? acc[part][r] * slope(low_of(a[j])) : 0.0f;
        const float high = at.there ? acc[part][r + 1] * slope(high_of(a[j])) : 0.0f;
        total[(4 * g + j) * 2] += low;
        total[(4 * g + j) * 2 + 1] += high;
        v[j] = pack(low, high);
      }
      turn(v, q);
      const int channel = (4 * g + q) * 8;
      if (MODE == SLOPE) {
        const int pixel = (at.image * H + y) * W + x;
        if (at.there) store16(out + pixel * OUT + channel, v);
        continue;
      }
#pragma unroll
      for (int to = 0; to < 4; to++) {
        const u32 first = chosen(below.where[part][g].x, to), second = chosen(below.where[part][g].y, to);
        const u32 some[4] = {
            v[0] & __byte_perm(first, 0, 0x1100), v[1] & __byte_perm(first, 0, 0x3322),
            v[2] & __byte_perm(second, 0, 0x1100), v[3] & __byte_perm(second, 0, 0x3322)};
        const int wide = (at.image * 2 * H + 2 * y + to / 2) * 2 * W + 2 * x + to % 2;
        if (at.there) store16(out + wide * OUT + channel, some);
      }
    }
  }
}

// The first layer's inputs around a tile, (images, FIRST, H, W), on their way to both copies of their
// planes.
struct Around {
  static constexpr int LINES_COPIED = 2 * REACHED / ACROSS, A_CHANNEL = LINES_COPIED * W;
  static constexpr int TURNS = (FIRST * A_CHANNEL + 127) / 128;
  u16 values[TURNS + !TURNS];

  __device__ __forceinline__ void read(const u16* images, u32 row, int count, int thread) {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int at = turn * 128 + thread, channel = at / A_CHANNEL, begin = at % A_CHANNEL / W;
      const int line = row + begin / 2, image = line / LINES, y = 2 * (line % LINES) + begin % 2 - 1;
      const bool there = channel < FIRST && image < count && y >= 0 && y < H;
      values[turn] = there ? images[((image * FIRST + channel) * H + y) * W + at % W] : 0;
    }
  }

  __device__ __forceinline__ void write(u16* to, int thread) const {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int at = turn * 128 + thread, channel = at / A_CHANNEL, begin = at % A_CHANNEL / W;
      if (channel >= FIRST) break;
      const int column = (at % W + 1) / 2, q = (at % W + 1) % 2;
      u16* place = to + (channel * 8 + begin % 2 * 2 + q) * REACHED + begin / 2 * ACROSS + column;
      place[0] = values[turn];
      if (column) place[4 * REACHED - 1] = values[turn];
    }
  }
};

// The weights' gradient of the first layer: of what reaches its sums, added up tile by tile.
struct FirstLayer {
  float sums[TAPS / 16 + !TAPS][OUT / 8][4];
  u32 from[TAPS / 16 + !TAPS][2][4];  // where a thread's two taps of 16 find their inputs

  __device__ __forceinline__ void begin(int lane) {
#pragma unroll
    for (int block = 0; block < TAPS / 16; block++) {
#pragma unroll
      for (int j = 0; j < OUT / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[block][j][e] = 0.0f;
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int part = 0; part < 4; part++) {
          const int tap = 16 * block + 8 * half + lane / 4, channel = tap / 9;
          const int line = tap % 9 / 3 + part / 2, column = tap % 3 + part % 2;
          const int plane = channel * 8 + column / 2 * 4 + line % 2 * 2 + column % 2;
          const int input = plane * REACHED + line / 2 * ACROSS;
          from[block][half][part] =
              tap < 9 * FIRST ? input : INPUTS + (tap == 9 * FIRST ? 0 : TILE);
        }
    }
  }

  // lower: what the layer holds, of the windows `lane / 4` and 8 behind of a warp's 16.
  __device__ __forceinline__ void add(Results& acc, const Lower (&lower)[2], const Place (&at)[2],
                                      const u16* inputs, int first, int q) {
#pragma unroll
    for (int part = 0; part < 4; part++) {
      u32 a[TAPS / 16 + !TAPS][4];
#pragma unroll
      for (int block = 0; block < TAPS / 16; block++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          a[block][e] = *reinterpret_cast<const u32*>(
              inputs + from[block][e % 2][part] + first + e / 2 * 8);
      u32 below[2][OUT / 32][4];
#pragma unroll
      for (int g = 0; g < OUT / 32; g++)
        lower[0].give(below[0][g], part, g, q), lower[1].give(below[1][g], part, g, q);
#pragma unroll
      for (int j = 0; j < OUT / 8; j++) {
        u32 b[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const u32 two = below[half][j / 4][j % 4];
          const int r = 4 * j + 2 * half;
          const float low = acc[part][r] * slope(low_of(two));
          const float high = acc[part][r + 1] * slope(high_of(two));
          b[half] = transposed(at[half].there ? pack(low, high) : 0);
        }
#pragma unroll
        for (int block = 0; block < TAPS / 16; block++)
          multiply_small(sums[block][j], a[block], b[0], b[1]);
      }
    }
  }

  // Add up all warps' sums in `memory` and write them: (OUT, FIRST, 3, 3) and (OUT).
  __device__ __forceinline__ void finish(float* memory, float* weight, float* bias) {
    const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int block = 0; block < TAPS / 16; block++)
#pragma unroll
      for (int j = 0; j < OUT / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int tap = 16 * block + row + e / 2 * 8, channel = 8 * j + 2 * q + e % 2;
          memory[(warp * TAPS + tap) * OUT + channel] = sums[block][j][e];
        }
    meet<128 * GROUPS>(GROUPS);
    for (int at = threadIdx.x; at < (9 * FIRST + 1) * OUT; at += 128 * GROUPS) {
      const int channel = at % OUT, tap = at / OUT;
      float sum = 0.0f;
      for (int one = 0; one < 4 * GROUPS; one++) sum += memory[(one * TAPS + tap) * OUT + channel];
      if (tap < 9 * FIRST) weight[channel * (9 * FIRST) + tap] = sum;
      else bias[channel] = sum;
    }
  }
};

// One image's results, which lie in shared memory as they shall lie in `to`.
__device__ __forceinline__ void copy_out(void* to, const void* from, int bytes, int thread) {
  for (int at = thread; at < bytes / 16; at += 128)
    static_cast<uint4*>(to)[at] = static_cast<const uint4*>(from)[at];
}

// What a kernel is given. x: (replicas, images, H, W, IN), or if POOLED its largest entries (.., H / 2,
// W / 2, IN) and which those are, x_index. Forward: bias, out and index of the outputs. Backward: lower
// and index (replicas, images, H, W, OUT), out, and total (replicas, OUT) if it is asked for. If FIRST:
// its inputs, and in place of out and total its gradients, whose rows are `first_stride` numbers apart.
struct Given {
  const u16* x;
  const u8* x_index;
  const u16* lower;
  u8* index;
  u16* out;
  const u16* inputs;

  // The same of one replica.
  __device__ __forceinline__ Given of(u64 replica, int images) const {
    const u64 first = replica * images * (H * W), pooled = MODE == POOL || MODE == FLAT;
    return {x + first * IN / (POOLED ? 4 : 1),
            x_index + (POOLED ? first * IN / 4 : 0),
            lower + (BACKWARD ? first * OUT : 0),
            index + (MODE == SPREAD ? first * OUT : pooled ? first * OUT / 4 : 0),
            out + (MODE == SPREAD ? 4 * first * OUT : pooled ? first * OUT / 4 : first * OUT),
            inputs + first * FIRST};
  }
};

// The group that copies: tile by tile, as buffers become free.
__device__ __forceinline__ void copy_tiles(const Given& given, u8* memory, u64* filled, u64* used, u32 tiles,
                                           int images, int thread) {
  Pooled<IN, REACHED, 1, 128> pooled;
  if (POOLED) pooled.read(given.x, given.x_index, 0, images, thread);
  for (u32 tile = 0; tile < tiles + LATE; tile++) {
    const u32 buffer = tile % BUFFERS;
    u8* planes = memory + AT_PLANES + buffer * BUFFER;
    if (tile < tiles) {
      if (tile >= BUFFERS) wait_for(used + buffer, tile / BUFFERS - 1);
      if (POOLED) {
        pooled.write(planes, thread);
        pooled.read(given.x, given.x_index, (tile + 1) * ROWS, images, thread);
      } else {
        copy_planes<IN, REACHED, 1, 128>(shared_address(planes), given.x, tile * ROWS, images, thread);
      }
    }
    copies_begun();
    if (tile < LATE) continue;
    copies_done<LATE>();
    arrive(filled + (tile - LATE) % BUFFERS);
  }
}

// A group that multiplies: every GROUPS-th tile.
__device__ __forceinline__ void convolve_tiles(const Given& given, u8* memory, u64* filled, u64* used,
                                               u32 tiles, int images, int group, int thread,
                                               float (&added)[OUT / 4], FirstLayer& layer) {
  const int q = thread % 4;
  const u32 weights = shared_address(memory), planes = weights + AT_PLANES;
  const float* biases = reinterpret_cast<const float*>(memory + AT_BIASES);
  u16* own = reinterpret_cast<u16*>(memory + AT_OWN + group * OWN);
  u8* own_index = reinterpret_cast<u8*>(own + NUMBERS);
  Inputs inputs(thread);
  for (u32 tile = group; tile < tiles; tile += GROUPS) {
    const u32 buffer = tile % BUFFERS, within = thread / 32 * 16;
    const u32 first = tile * TILE + within + thread % 32 / 4;
    const Place at[2] = {place_of(first, images), place_of(first + 8, images)};
    wait_for(filled + buffer, tile / BUFFERS);
    Results acc;
    convolve_tile(acc, inputs, planes + buffer * BUFFER, weights);
    Lower below[2];
    Around around;
    if (BACKWARD) below[0].read(given.lower, given.index, at[0], q);
    if (FIRST) around.read(given.inputs, tile * ROWS, images, thread);
    products_done<0>();
    if (thread % 32 == 0) arrive(used + buffer);
    if (BACKWARD) below[1].read(given.lower, given.index, at[1], q);
    // All warps are past the last tile's inputs or results.
    if (FIRST || WHOLE) meet(group);
    if (FIRST) {
      around.write(own, thread);
      meet(group);
      layer.add(acc, below, at, own, within + 2 * q, q);
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (BACKWARD) store_backward(acc, added, below[half], at[half], half, q, given.out);
      else if (WHOLE) store_forward(acc, biases, at[half], half, q, own, own_index);
      else store_forward(acc, biases, at[half], half, q, given.out, given.index);
    }
    if (WHOLE) {
      meet(group);
      copy_out(given.out + tile * NUMBERS, own, 2 * NUMBERS, thread);
      copy_out(given.index + tile * NUMBERS, own_index, NUMBERS, thread);
    }
  }
}

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
convolve(const u16* x, const u8* x_index, const float* weight, u64 weight_stride, const float* bias,
         u64 bias_stride, const u16* lower, u8* index, u16* out, float* total, const u16* inputs,
         float* first_weight, float* first_bias, u64 first_stride, int images) {
  extern __shared__ __align__(1024) u8 memory[];
  const u64 replica = blockIdx.x;
  const int group = __shfl_sync(ALL, static_cast<int>(threadIdx.x) / 128, 0), thread = threadIdx.x % 128;
  const u32 tiles = (images * AN_IMAGE + TILE - 1) / TILE;
  // Gates of every buffer: its planes are filled; all warps of a group are past their products.
  u64* filled = reinterpret_cast<u64*>(memory + AT_GATES);
  u64* used = filled + BUFFERS;
  if (threadIdx.x < BUFFERS) make_gate(filled + threadIdx.x, 128), make_gate(used + threadIdx.x, 4);
  clear(memory + AT_PLANES, BUFFERS * BUFFER + GROUPS * OWN);
  keep_weights(memory, weight + replica * weight_stride);
  if (!BACKWARD && threadIdx.x < OUT)
    reinterpret_cast<float*>(memory + AT_BIASES)[threadIdx.x] = bias[replica * bias_stride + threadIdx.x];
  __syncthreads();
  if (FIRST && group < GROUPS && thread < TILE)
    reinterpret_cast<u16*>(memory + AT_OWN + group * OWN)[INPUTS + thread] = ONE;
  show_to_tensor_cores();
  __syncthreads();
  const Given given = Given{x, x_index, lower, index, out, inputs}.of(replica, images);
  if (group == GROUPS) {
    keep_registers<FEW>();
    copy_tiles(given, memory, filled, used, tiles, images, thread);
    return;
  }
  take_registers<MANY>();
  float added[OUT / 4] = {};
  FirstLayer layer;
  layer.begin(threadIdx.x % 32);
  convolve_tiles(given, memory, filled, used, tiles, images, group, thread, added, layer);
  // All groups are past all tiles.
  float* sums = reinterpret_cast<float*>(memory + AT_PLANES);
  constexpr int MULTIPLYING = 128 * GROUPS;
  meet<MULTIPLYING>(GROUPS);
  if (FIRST) {
    layer.finish(sums, first_weight + replica * first_stride, first_bias + replica * first_stride);
  } else if (BACKWARD && total) {
#pragma unroll
    for (int e = 0; e < OUT / 4; e++) {
      float sum = added[e];
      for (int lane = 4; lane < 32; lane *= 2) sum += __shfl_xor_sync(ALL, sum, lane);
      if (threadIdx.x % 32 < 4) sums[threadIdx.x / 32 * OUT + e / 2 * 8 + threadIdx.x % 4 * 2 + e % 2] = sum;
    }
    meet<MULTIPLYING>(GROUPS);
    if (threadIdx.x < OUT) {
      float sum = 0.0f;
      for (int warp = 0; warp < 4 * GROUPS; warp++) sum += sums[warp * OUT + threadIdx.x];
      total[replica * OUT + threadIdx.x] = sum;
    }
  }
}
