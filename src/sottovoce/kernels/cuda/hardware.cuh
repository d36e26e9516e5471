// What a Hopper GPU does beyond C++, a function for each instruction.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

__device__ __forceinline__ u32 shared_address(const void* at) {
  return static_cast<u32>(__cvta_generic_to_shared(at));
}

// The same number, of which nothing is computed beforehand: operands are cheaper made than kept.
__device__ __forceinline__ u32 afresh(u32 number) {
  asm volatile("" : "+r"(number));
  return number;
}

// 16 bytes to shared memory, or zeros; they are there once `copies_done` says so.
__device__ __forceinline__ void copy_or_zero(u32 to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0));
}

__device__ __forceinline__ void copies_begun() { asm volatile("cp.async.commit_group;"); }

template <int LEFT>
__device__ __forceinline__ void copies_done() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// What this thread wrote to shared memory can be read by the tensor cores, behind a barrier.
__device__ __forceinline__ void show_to_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The threads of a group wait for one another.
template <int COUNT = 128>
__device__ __forceinline__ void meet(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(COUNT) : "memory");
}

// A gate in shared memory opens each time that `count` threads have arrived; its first opening is
// number 0. Who waits for an opening may be late by one, not more.
__device__ __forceinline__ void make_gate(u64* gate, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(gate)), "r"(count) : "memory");
}

__device__ __forceinline__ void arrive(u64* gate) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(gate)) : "memory");
}

__device__ __forceinline__ void wait_for(u64* gate, u32 opening) {
  asm volatile(
      "{\n.reg .pred open;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1;\n"
      "@!open bra again;\n}\n" ::"r"(shared_address(gate)),
      "r"(opening % 2)
      : "memory");
}

// Registers move from the groups that need few to those that need many; whole groups say so.
template <int COUNT>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

__device__ __forceinline__ float tanh_of(float z) {
  float a;
  asm("tanh.approx.f32 %0, %1;" : "=f"(a) : "f"(z));
  return a;
}

// Two numbers in bfloat16, the first in the lower half.
__device__ __forceinline__ u32 pack(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

__device__ __forceinline__ float low_of(u32 both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high_of(u32 both) { return __uint_as_float(both & 0xFFFF0000u); }

// Reads that no thread of this kernel writes to; they keep their place among other instructions.
__device__ __forceinline__ uint2 read8(const void* from) {
  uint2 v;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}

__device__ __forceinline__ uint4 read16(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// An 8x8 matrix of 16-bit numbers, two neighbours of a row in each thread of a warp, transposed.
__device__ __forceinline__ u32 transposed(u32 two) {
  u32 v;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(v) : "r"(two));
  return v;
}

// d += a b by one warp: 16 rows, 8 columns, 16 products each.
__device__ __forceinline__ void multiply_small(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// An operand that begins at `address`: `leading` and `stride` as the instruction wants them; how
// pixels of `channels` are swizzled, 0 for an operand that is not.
__device__ __forceinline__ u64 operand(u32 address, u32 leading, u32 stride, int channels) {
  const u64 swizzle = channels == 64 ? 1 : channels == 32 ? 2 : 0;
  return static_cast<u64>((address & 0x3FFFF) >> 4) | static_cast<u64>(leading >> 4) << 16 |
         static_cast<u64>(stride >> 4) << 32 | swizzle << 62;
}

__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void products_begun() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// All products but those begun `LEFT` times last are done.
template <int LEFT>
__device__ __forceinline__ void products_done() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define R8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define R32(d, i) R8(d, i), R8(d, i + 8), R8(d, i + 16), R8(d, i + 24)

// Four 8x8 matrices of 16-bit numbers from shared memory, two neighbours of a row to each thread of a
// warp. Threads 8 i to 8 i + 7 name the rows of matrix i.
__device__ __forceinline__ void read_matrices(u32 (&v)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(row)
               : "memory");
}

// The same, every matrix turned: threads name its columns.
__device__ __forceinline__ void read_turned(u32 (&v)[4], u32 column) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(column)
               : "memory");
}

#define D16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define D32 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

// d (+)= a b for 64 rows and 2 columns a number of `d`, 16 products each. `a` lies in registers, each
// warp's 16 rows as `read_matrices` reads them: upper and lower left, upper and lower right. TURNED: b
// lies by columns.
template <int TURNED = 0>
__device__ __forceinline__ void multiply(float (&d)[16], const u32 (&a)[4], u64 b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " D16
      ", {%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}\n"
      : R8(d, 0), R8(d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(TURNED));
}

template <int TURNED = 0>
__device__ __forceinline__ void multiply(float (&d)[32], const u32 (&a)[4], u64 b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " D32
      ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
      : R32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(TURNED));
}
