// What both kernels of 3x3 "same" convolutions share.
//
// Images lie channels-last. Shared memory holds them as four planes, the pixels of one row parity and
// one column parity each; a pixel is one row of the tensor core's operand, its channels swizzled as the
// instruction expects it. A shift by a tap is another first address: nothing is copied for a patch. A
// 2x2 window of outputs has one place in every plane, so that its four results meet in one thread.
//
// H, W: sides of the outputs; IN, OUT: channels, 32 or 64.

constexpr int ACROSS = (W / 2 + 8) / 8 * 8;  // places of a plane's row; one or more are border
constexpr int LINES = H / 2 + 1;             // rows of an image in a plane, one of them border
constexpr int AN_IMAGE = LINES * ACROSS;
constexpr int TILE = 64;                     // windows that are computed at once
constexpr int ROWS = TILE / ACROSS;
static_assert(TILE % ACROSS == 0, "rows of places must fill a tile");

// Places that the taps of a tile reach. Those beyond meet windows that do not exist.
constexpr int REACHED = TILE + (TILE == AN_IMAGE ? 0 : ACROSS);

// Where 8 channels of a place lie among COUNT places of every plane, in bytes.
template <int CHANNELS, int COUNT>
__device__ __forceinline__ u32 address_of(u32 plane, u32 place, u32 chunk) {
  const u32 swizzled = chunk ^ (CHANNELS == 64 ? place % 8 : place / 2 % 4);
  return ((plane * COUNT + place) * (CHANNELS / 8) + swizzled) * 16;
}

// Copy COUNT places of every plane, whole rows from `row` on, counted over all images. Place (r, c) of
// parity (p, q) is the pixel (2 r + p - BEFORE, 2 c + q - BEFORE). Rows beyond an image become zero;
// columns beyond it are left as they are. Each of THREADS threads copies some.
template <int CHANNELS, int COUNT, int BEFORE, int THREADS>
__device__ __forceinline__ void copy_planes(u32 to, const u16* images, u32 row, int count,
                                            u32 thread) {
  constexpr u32 CHUNKS = CHANNELS / 8, SPAN = 2 * ACROSS, AT_ONCE = THREADS / CHUNKS / SPAN;
  constexpr u32 COPIED = 2 * COUNT / ACROSS;
  static_assert(AT_ONCE > 0, "threads must copy a row of pixels at once");
  const u32 chunk = thread % CHUNKS, x = thread / CHUNKS % SPAN, begin = thread / CHUNKS / SPAN;
  const u32 column = (x + BEFORE) / 2, q = (x + BEFORE) % 2;
  if (x >= W) return;
  images += x * CHANNELS + chunk * 8;
#pragma unroll
  for (u32 j = 0; j < COPIED; j += AT_ONCE) {
    const u32 line = row + (begin + j) / 2, p = (begin + j) % 2;
    if (COPIED % AT_ONCE && begin + j >= COPIED) break;
    const int image = line / LINES, y = 2 * (line % LINES) + p - BEFORE;
    const bool there = image < count && y >= 0 && y < H;
    const u32 place = (begin + j) / 2 * ACROSS + column;
    copy_or_zero(to + address_of<CHANNELS, COUNT>(2 * p + q, place, chunk),
                 there ? images + (image * H + y) * (W * CHANNELS) : images, there);
  }
}

// 0xFF in the bytes that are `part`, of four bytes from 0 to 3.
__device__ __forceinline__ u32 chosen(u32 four, u32 part) {
  const u32 other = four ^ part * 0x01010101u;
  return (((other | other >> 1) & 0x01010101u) ^ 0x01010101u) * 0xFF;
}

// Gradients behind a max pool on their way to the planes: of every window the entry that was its
// largest, (images, H / 2, W / 2, CHANNELS), and which of the four that was.
template <int CHANNELS, int COUNT, int BEFORE, int THREADS>
struct Pooled {
  static constexpr int CHUNKS = CHANNELS / 8, AT_ONCE = THREADS / CHUNKS / ACROSS;
  // Where tiles are whole images, rows of border stay zero.
  static constexpr bool IMAGES = COUNT == AN_IMAGE;
  static constexpr int BEGIN = IMAGES ? 0 : -BEFORE;
  static constexpr int TO_READ = IMAGES ? H / 2 : COUNT / ACROSS + BEFORE;
  static constexpr int TURNS = (TO_READ + AT_ONCE - 1) / AT_ONCE;
  static_assert(AT_ONCE > 0, "threads must read a row of windows at once");
  uint4 values[TURNS];
  uint2 largest[TURNS];

  __device__ __forceinline__ void read(const u16* images, const u8* index, u32 row, int count,
                                       u32 thread) {
    const int chunk = thread % CHUNKS, column = thread / CHUNKS % ACROSS;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int line = static_cast<int>(row) + BEGIN + thread / CHUNKS / ACROSS + turn * AT_ONCE;
      const int image = line / LINES, y = line % LINES;
      const bool there = line >= 0 && image < count && y < H / 2 && column < W / 2;
      const int at = ((image * (H / 2) + y) * (W / 2) + column) * CHANNELS + 8 * chunk;
      values[turn] = make_uint4(0, 0, 0, 0);
      largest[turn] = make_uint2(0, 0);
      if (there) values[turn] = read16(images + at), largest[turn] = read8(index + at);
    }
  }

  __device__ __forceinline__ void write(u8* planes, u32 thread) const {
    const int chunk = thread % CHUNKS, column = thread / CHUNKS % ACROSS;
    if (column >= W / 2) return;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int line = static_cast<int>(thread / CHUNKS / ACROSS) + turn * AT_ONCE + BEGIN;
#pragma unroll
      for (int part = 0; part < 4; part++) {
        const int p = part / 2 + BEFORE, q = part % 2 + BEFORE;
        const int row = line + p / 2, place = row * ACROSS + column + q / 2;
        if (row < 0 || row >= COUNT / ACROSS) continue;
        const u32 first = chosen(largest[turn].x, part), second = chosen(largest[turn].y, part);
        const uint4 v = make_uint4(values[turn].x & __byte_perm(first, 0, 0x1100),
                                   values[turn].y & __byte_perm(first, 0, 0x3322),
                                   values[turn].z & __byte_perm(second, 0, 0x1100),
                                   values[turn].w & __byte_perm(second, 0, 0x3322));
        *reinterpret_cast<uint4*>(
            planes + address_of<CHANNELS, COUNT>(p % 2 * 2 + q % 2, place, chunk)) = v;
      }
    }
  }
};

// Zero for what no copy writes: columns beyond the images.
__device__ __forceinline__ void clear(u8* memory, u32 bytes) {
  for (u32 at = threadIdx.x; at < bytes / 16; at += blockDim.x)
    reinterpret_cast<uint4*>(memory)[at] = make_uint4(0, 0, 0, 0);
}
