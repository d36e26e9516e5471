// Plays a CUDA kernel on a CPU, in place of `hardware.cuh`: one block after another, its threads as
// coroutines that change at barriers and exchanges. Copies and products to come take place as late as
// the kernel's own waits allow, and a group of 128 threads goes on until it must wait, the first group
// first or the last, so that a missing wait shows.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __align__(n)
#define __launch_bounds__(...)

struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

struct Index { u32 x; };
static Index threadIdx, blockIdx, blockDim;
alignas(1024) u8 memory[1 << 18];

namespace emulation {

struct Thread {
  ucontext_t context;  // where it starts
  jmp_buf place;       // and where it goes on, which takes no system call
  std::vector<std::vector<std::function<void()>>> copies, products;
  bool started, ended;
};
struct Barrier { int arrived = 0, generation = 0; };

constexpr size_t STACK = 1 << 17;

static std::vector<Thread> threads;
static std::unique_ptr<char[]> stacks;
static jmp_buf scheduler;
static Barrier barriers[64 + 16 + 1];
static u64 exchanged[1024];
static long moved;
static std::function<void()> body;

inline void yield() {
  if (!_setjmp(threads[threadIdx.x].place)) _longjmp(scheduler, 1);
}

inline void wait_at(int which, int count) {
  Barrier& barrier = barriers[which];
  const int before = barrier.generation;
  moved++;
  if (++barrier.arrived == count) barrier.arrived = 0, barrier.generation++;
  while (barrier.generation == before) yield();
}

inline u64 exchange(u64 mine, u32 partner) {
  const u32 warp = threadIdx.x / 32;
  exchanged[threadIdx.x] = mine;
  wait_at(16 + warp, 32);
  const u64 got = exchanged[warp * 32 + partner];
  wait_at(16 + warp, 32);
  return got;
}

inline void begun(std::vector<std::vector<std::function<void()>>>& groups) { groups.emplace_back(); }

inline void finish(std::vector<std::vector<std::function<void()>>>& groups, size_t left) {
  // The last group is open: nothing waits for it.
  while (groups.size() - 1 > left) {
    for (auto& work : groups.front()) work();
    groups.erase(groups.begin());
  }
}

static void start() {
  body();
  threads[threadIdx.x].ended = true;
  moved++;
  yield();
}

inline void resume(Thread& thread) {
  if (_setjmp(scheduler)) return;
  if (thread.started) _longjmp(thread.place, 1);
  thread.started = true;
  setcontext(&thread.context);
}

inline void run(u32 blocks, u32 count, bool last_first) {
  blockDim.x = count;
  stacks.reset(new char[count * STACK]);
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    std::memset(memory, 0x7F, sizeof memory);  // NaN, until it is written
    threads = std::vector<Thread>(count);
    for (Thread& thread : threads) {
      char* stack = stacks.get() + (&thread - threads.data()) * STACK;
      thread.started = thread.ended = false;
      thread.copies.resize(1);
      thread.products.resize(1);
      getcontext(&thread.context);
      thread.context.uc_stack = {stack, 0, STACK};
      thread.context.uc_link = nullptr;
      makecontext(&thread.context, start, 0);
    }
    for (bool going = true; going;) {
      const long before = moved;
      going = false;
      const u32 groups = (count + 127) / 128;
      for (u32 turn = 0; turn < groups; turn++) {
        const u32 first = 128 * (last_first ? groups - 1 - turn : turn);
        for (long here = moved - 1; here != moved;) {
          here = moved;
          for (u32 at = first; at < std::min(first + 128, count); at++) {
            if (threads[at].ended) continue;
            going = true;
            threadIdx.x = at;
            resume(threads[at]);
          }
        }
      }
      if (going && moved == before) std::fprintf(stderr, "the threads wait for ever\n"), std::abort();
    }
  }
}

template <class T>
T argument(u64 bits) {
  if constexpr (std::is_pointer_v<T>) return reinterpret_cast<T>(bits);
  else return static_cast<T>(bits);
}

template <class... T, size_t... I>
void call(void (*kernel)(T...), const u64* given, u32 blocks, u32 count, bool last_first,
          std::index_sequence<I...>) {
  body = [=] { kernel(argument<T>(given[I])...); };
  run(blocks, count, last_first);
}

template <class... T>
void call(void (*kernel)(T...), const u64* given, u32 blocks, u32 count, bool last_first) {
  call(kernel, given, blocks, count, last_first, std::index_sequence_for<T...>{});
}

inline float number(u16 bits) {
  const u32 wide = static_cast<u32>(bits) << 16;
  float found;
  std::memcpy(&found, &wide, 4);
  return found;
}

inline u16 rounded(float number) {
  u32 bits;
  std::memcpy(&bits, &number, 4);
  if (number != number) return 0x7FFF;
  return static_cast<u16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// An entry of an operand: row (or column) `r` of 64 or N, `k` of 16.
inline float entry(u64 operand, bool turned, u32 r, u32 k) {
  const u32 first = (operand & 0x3FFF) << 4, leading = (operand >> 16 & 0x3FFF) << 4;
  const u32 stride = (operand >> 32 & 0x3FFF) << 4, mode = operand >> 62;
  const u32 width = mode == 1 ? 128 : 64;
  u32 at;
  if (mode == 0) at = first + r / 8 * stride + r % 8 * 16 + k / 8 * leading + k % 8 * 2;
  else if (turned) at = first + 2 * r / width * leading + k / 8 * stride + k % 8 * width + 2 * r % width;
  else at = first + r / 8 * stride + r % 8 * width + 2 * k;
  if (mode) at ^= (at >> 7 & (mode == 1 ? 7 : 3)) << 4;
  u16 bits;
  if (at + 2 > sizeof memory) std::fprintf(stderr, "an operand leaves shared memory\n"), std::abort();
  std::memcpy(&bits, memory + at, 2);
  return number(bits);
}

}  // namespace emulation

inline u32 shared_address(const void* at) {
  return static_cast<u32>(static_cast<const u8*>(at) - memory);
}

inline u32 afresh(u32 number) { return number; }

inline void copy_or_zero(u32 to, const void* from, bool there) {
  emulation::threads[threadIdx.x].copies.back().push_back([=] {
    if (there) std::memcpy(memory + to, from, 16);
    else std::memset(memory + to, 0, 16);
  });
}

inline void copies_begun() { emulation::begun(emulation::threads[threadIdx.x].copies); }

template <int LEFT>
void copies_done() { emulation::finish(emulation::threads[threadIdx.x].copies, LEFT); }

inline void show_to_tensor_cores() {}
inline u32 __byte_perm(u32 first, u32 second, u32 chosen) {
  const u64 bytes = first | static_cast<u64>(second) << 32;
  u32 found = 0;
  for (u32 at = 0; at < 4; at++) found |= (bytes >> (chosen >> 4 * at & 7) * 8 & 0xFF) << 8 * at;
  return found;
}

template <int COUNT = 128>
void meet(int group) { emulation::wait_at(group + 1, COUNT); }
struct Gate { u16 wanted, arrived; u32 openings; };
inline void make_gate(u64* gate, u32 count) {
  const Gate made = {static_cast<u16>(count), 0, 0};
  std::memcpy(gate, &made, sizeof made);
}
inline void arrive(u64* gate) {
  Gate& one = *reinterpret_cast<Gate*>(gate);
  emulation::moved++;
  if (++one.arrived == one.wanted) one.arrived = 0, one.openings++;
}
inline void wait_for(u64* gate, u32 opening) {
  Gate& one = *reinterpret_cast<Gate*>(gate);
  // What a parity can tell: whether the number of openings so far is even.
  while (one.openings % 2 == opening % 2) emulation::yield();
}

template <int COUNT>
void keep_registers() {}
template <int COUNT>
void take_registers() {}
inline void __syncthreads() { emulation::wait_at(0, blockDim.x); }

inline float tanh_of(float z) { return std::tanh(z); }
inline float __expf(float z) { return std::exp(z); }
inline u32 pack(float low, float high) {
  return emulation::rounded(low) | static_cast<u32>(emulation::rounded(high)) << 16;
}
inline float low_of(u32 both) { return emulation::number(both & 0xFFFF); }
inline float high_of(u32 both) { return emulation::number(both >> 16); }

template <class T>
T read_as(const void* from) {
  T found;
  std::memcpy(&found, from, sizeof found);
  return found;
}
inline uint2 read8(const void* from) { return read_as<uint2>(from); }
inline uint4 read16(const void* from) { return read_as<uint4>(from); }

inline u32 __shfl_sync(u32, u32 mine, int lane) { return emulation::exchange(mine, lane); }
inline int __shfl_sync(u32, int mine, int lane) {
  return static_cast<int>(emulation::exchange(static_cast<u32>(mine), lane));
}
inline u32 __shfl_xor_sync(u32, u32 mine, int mask) {
  return emulation::exchange(mine, threadIdx.x % 32 ^ mask);
}
inline float __shfl_xor_sync(u32, float mine, int mask) {
  u32 bits;
  std::memcpy(&bits, &mine, 4);
  bits = emulation::exchange(bits, threadIdx.x % 32 ^ mask);
  std::memcpy(&mine, &bits, 4);
  return mine;
}
inline void atomicAdd(float* at, float more) { *at += more; }

inline u32 transposed(u32 two) {
  const u32 lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
  u32 found = 0;
  for (u32 e = 0; e < 2; e++) {
    const u32 got = emulation::exchange(two, (column + e) * 4 + row / 2);
    found |= (got >> 16 * (row % 2) & 0xFFFF) << 16 * e;
  }
  return found;
}

inline void multiply_small(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const u32 lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
  float left[2][16], right[2][16];
  for (u32 k = 0; k < 16; k++) {
    for (u32 half = 0; half < 2; half++) {
      const u64 both = a[half] | static_cast<u64>(a[2 + half]) << 32;
      const u64 got = emulation::exchange(both, row * 4 + k % 8 / 2);
      left[half][k] = emulation::number(got >> (32 * (k / 8) + 16 * (k % 2)) & 0xFFFF);
    }
    for (u32 e = 0; e < 2; e++) {
      const u64 got = emulation::exchange(b0 | static_cast<u64>(b1) << 32, (column + e) * 4 + k % 8 / 2);
      right[e][k] = emulation::number(got >> (32 * (k / 8) + 16 * (k % 2)) & 0xFFFF);
    }
  }
  for (u32 half = 0; half < 2; half++)
    for (u32 e = 0; e < 2; e++)
      for (u32 k = 0; k < 16; k++) d[2 * half + e] += left[half][k] * right[e][k];
}

inline u64 operand(u32 address, u32 leading, u32 stride, int channels) {
  const u64 swizzle = channels == 64 ? 1 : channels == 32 ? 2 : 0;
  return static_cast<u64>((address & 0x3FFFF) >> 4) | static_cast<u64>(leading >> 4) << 16 |
         static_cast<u64>(stride >> 4) << 32 | swizzle << 62;
}

inline void products_begin() {}
inline void products_begun() { emulation::begun(emulation::threads[threadIdx.x].products); }
// A warp's threads go on together: their registers are operands of one another's products.
template <int LEFT>
void products_done() {
  emulation::finish(emulation::threads[threadIdx.x].products, LEFT);
  emulation::wait_at(16 + threadIdx.x / 32, 32);
}

inline void read_matrices(u32 (&v)[4], u32 row) {
  const u32 lane = threadIdx.x % 32, first = threadIdx.x - lane;
  emulation::exchanged[threadIdx.x] = row;
  emulation::wait_at(16 + first / 32, 32);
  for (u32 i = 0; i < 4; i++)
    std::memcpy(&v[i], memory + emulation::exchanged[first + 8 * i + lane / 4] + lane % 4 * 4, 4);
  emulation::wait_at(16 + first / 32, 32);
}

inline void read_turned(u32 (&v)[4], u32 column) {
  u32 found[4];
  read_matrices(found, column);
  for (u32 i = 0; i < 4; i++) v[i] = transposed(found[i]);
}

template <int TURNED = 0, size_t COUNT>
void multiply(float (&d)[COUNT], const u32 (&a)[4], u64 b, bool add) {
  const u32 lane = threadIdx.x % 32;
  // Where the operand's registers are: they are read when the products are computed.
  std::array<const u32*, 4> registers;
  for (u32 from = 0; from < 4; from++)
    registers[from] = reinterpret_cast<const u32*>(
        emulation::exchange(reinterpret_cast<u64>(&a[0]), lane / 4 * 4 + from));
  float* to = d;
  const u32 column = lane % 4 * 2;
  emulation::threads[threadIdx.x].products.back().push_back([=] {
    float rows[2][16];
    for (u32 i = 0; i < 4; i++)
      for (u32 at = 0; at < 8; at++)
        rows[i % 2][i / 2 * 8 + at] = emulation::number(registers[at / 2][i] >> 16 * (at % 2) & 0xFFFF);
    for (u32 j = 0; j < COUNT / 4; j++)
      for (u32 e = 0; e < 2; e++) {
        float right[16];
        for (u32 k = 0; k < 16; k++)
          right[k] = emulation::entry(b, TURNED, 8 * j + column + e, k);
        for (u32 half = 0; half < 2; half++) {
          float sum = 0;
          for (u32 k = 0; k < 16; k++) sum += rows[half][k] * right[k];
          float& number = to[4 * j + 2 * half + e];
          number = add ? number + sum : sum;
        }
      }
  });
}
