/* Reductions of tensors on the host that read each element once: statistics, hash and sketch.

   NumPy and PyTorch have no single pass for minimum, maximum, sum and squares, and call overheads of microseconds for
   each; here a tensor of a few kilobytes costs about one microsecond, and a long one what reading its memory costs.

   All results are the same on every machine: sums are made in an order that depends on nothing but the number of
   elements, whatever the processor's vectors and the number of threads are, and multiplications are not fused with
   additions (compiled with -ffp-contract=off). Loops run over arrays of LANES accumulators, which compilers turn into
   vector instructions without being allowed to reorder anything.

   Plain C11 without Python's headers: msprobe_core/native/reductions.py calls it through ctypes. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(ONE_TARGET)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif
#define INLINE static inline __attribute__((always_inline))

/* Raised with every change of a signature, or of a result beyond rounding; reductions.py knows the same number. */
int32_t msprobe_kernels_version(void) { return 1; }

#define LANES 64
#define PARTS 16           /* a long tensor is cut into as many, whatever the number of threads */
#define LONG (1 << 18)     /* from how many elements on a tensor is long */
#define GAMMA 0x9E3779B97F4A7C15ull

enum { FLOAT32, FLOAT64, FLOAT16, BFLOAT16 };
enum { INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64 };

/* --- threads: OpenMP's, where the caller's framework has them already and keeps them waiting ---------------------- */

typedef void (*task)(void *job, int part);
typedef void (*run_parallel)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel */
typedef int (*thread_number)(void);                                         /* omp_get_thread_num */

typedef struct {
    run_parallel run;
    thread_number number;
    int32_t count;
} threads;

typedef struct {
    task task;
    void *job;
    thread_number number;
    int num_parts, num_threads;
} team;

static void work_as_one_of(void *argument) {
    const team *t = argument;
    for (int part = t->number(); part < t->num_parts; part += t->num_threads) t->task(t->job, part);
}

static void run_parts(task task, void *job, int num_parts, const threads *threads) {
    if (threads && threads->count > 1 && num_parts > 1) {
        /* OpenMP may start fewer threads than asked for, inside of another parallel region for example. Parts that
           no thread took would be lost, so the thread that runs one marks it: see `done` of the jobs. */
        team t = {task, job, threads->number, num_parts, threads->count};
        threads->run(work_as_one_of, &t, (unsigned)threads->count, 0);
    }
    for (int part = 0; part < num_parts; part++) task(job, part); /* returns at once where it is done */
}

INLINE int64_t part_begin(int64_t count, int num_parts, int64_t unit, int part) {
    int64_t units = (count + unit - 1) / unit, begin = units * part / num_parts * unit;
    return begin < count ? begin : count;
}

/* --- elements ------------------------------------------------------------------------------------------------- */

INLINE float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE float from_bfloat16(uint16_t bits) { return from_bits((uint32_t)bits << 16); }

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float from_float16(uint16_t half) {
    uint32_t size = half & 0x7fffu, sign = (uint32_t)(half & 0x8000u) << 16;
    /* Subnormal numbers by way of integers: a processor that flushes subnormal float32 would lose them otherwise. */
    uint32_t small = bits_of((float)(int32_t)size * 0x1p-24f);
    uint32_t normal = (size << 13) + (size < 0x7c00u ? 0x38000000u : 0x70000000u);
    return from_bits((size < 0x400u ? small : normal) | sign);
}

#define AS_IS(x) (x)

/* --- statistics of floating-point numbers ----------------------------------------------------------------------- */

typedef struct {
    double high, low, total, squares;
    int64_t num_nan, num_inf;
} moments;

static const moments NOTHING = {-INFINITY, INFINITY, 0, 0, 0, 0};

/* Sums of a block are kept in the elements' own width (float32 at least), in LANES accumulators of BLOCK / LANES
   elements each, which are then added to as many in float64. These are added up once, at the end: adding 64 numbers one
   after the other takes as long as all the rest of a block. Where a block loses something, because an element is not
   finite or too far from 1 for its square, it is read again and all is done in float64. NaN is smaller and larger than
   nothing, so the extremes pass over it; the sum does not. */
#define BLOCK 2048

#define DEFINE_MOMENTS(NAME, ELEMENT, WIDE, LOAD, LEAST, MOST)                                                         \
    INLINE void careful_##NAME(const ELEMENT *x, int64_t count, double scale, moments *m) {                            \
        double total[LANES] = {0}, squares[LANES] = {0};                                                               \
        int64_t num_nan[LANES] = {0}, num_inf[LANES] = {0};                                                            \
        for (int64_t i = 0; i < count; i += LANES) {                                                                   \
            int left = count - i < LANES ? (int)(count - i) : LANES;                                                   \
            for (int l = 0; l < left; l++) {                                                                           \
                double v = (double)LOAD(x[i + l]) * scale;                                                             \
                total[l] += v, squares[l] += v * v;                                                                    \
                num_nan[l] += v != v, num_inf[l] += fabs(v) == INFINITY;                                               \
            }                                                                                                          \
        }                                                                                                              \
        for (int l = 0; l < LANES; l++) {                                                                              \
            m->total += total[l], m->squares += squares[l];                                                            \
            m->num_nan += num_nan[l], m->num_inf += num_inf[l];                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    /* Returns 0, with the sums unchanged, where the block is to be read again. */                                     \
    INLINE int block_##NAME(const ELEMENT *x, int64_t count, double scale, moments *m, double *sums) {                 \
        WIDE high[LANES], low[LANES], total[LANES], squares[LANES];                                                    \
        for (int l = 0; l < LANES; l++) {                                                                              \
            high[l] = -(WIDE)INFINITY, low[l] = (WIDE)INFINITY, total[l] = 0, squares[l] = 0;                          \
        }                                                                                                              \
        int64_t i = 0;                                                                                                 \
        for (; i + LANES <= count; i += LANES)                                                                         \
            for (int l = 0; l < LANES; l++) {                                                                          \
                WIDE v = LOAD(x[i + l]);                                                                               \
                high[l] = v > high[l] ? v : high[l];                                                                   \
                low[l] = v < low[l] ? v : low[l];                                                                      \
                total[l] += v;                                                                                         \
                squares[l] += v * v;                                                                                   \
            }                                                                                                          \
        for (int l = 0; i < count; i++, l++) {                                                                         \
            WIDE v = LOAD(x[i]);                                                                                       \
            high[l] = v > high[l] ? v : high[l];                                                                       \
            low[l] = v < low[l] ? v : low[l];                                                                          \
            total[l] += v;                                                                                             \
            squares[l] += v * v;                                                                                       \
        }                                                                                                              \
        for (int half = LANES / 2; half; half /= 2)                                                                    \
            for (int l = 0; l < half; l++) {                                                                           \
                high[l] = high[l + half] > high[l] ? high[l + half] : high[l];                                         \
                low[l] = low[l + half] < low[l] ? low[l + half] : low[l];                                              \
            }                                                                                                          \
        int is_lost = 0;                                                                                               \
        for (int l = 0; l < LANES; l++) is_lost |= !(total[l] - total[l] == 0);                                        \
        double h = high[0], w = low[0], size = h > -w ? h : -w;                                                        \
        m->high = h > m->high ? h : m->high, m->low = w < m->low ? w : m->low;                                         \
        if (is_lost || scale != 1 || !(size < MOST) || (size < LEAST && size != 0)) return 0;                          \
        for (int l = 0; l < LANES; l++) sums[l] += total[l], sums[LANES + l] += squares[l];                            \
        return 1;                                                                                                      \
    }                                                                                                                  \
    FOR_EACH_PROCESSOR static void moments_##NAME(const ELEMENT *x, int64_t count, double scale, moments *m) {         \
        double sums[2 * LANES] = {0};                                                                                  \
        for (int64_t i = 0; i < count; i += BLOCK) {                                                                   \
            int64_t left = count - i < BLOCK ? count - i : BLOCK;                                                      \
            if (!block_##NAME(x + i, left, scale, m, sums)) careful_##NAME(x + i, left, scale, m);                     \
        }                                                                                                              \
        for (int l = 0; l < LANES; l++) m->total += sums[l], m->squares += sums[LANES + l];                            \
    }

DEFINE_MOMENTS(float32, float, float, AS_IS, 1e-15, 1e18)
DEFINE_MOMENTS(float64, double, double, AS_IS, 0, INFINITY)
DEFINE_MOMENTS(float16, uint16_t, float, from_float16, 0, INFINITY)
DEFINE_MOMENTS(bfloat16, uint16_t, float, from_bfloat16, 1e-15, 1e18)

typedef struct {
    const char *data;
    int64_t count;
    int32_t kind;
    int num_parts;
    double scale;
    int8_t done[PARTS];
    moments parts[PARTS];
} moments_job;

static void moments_of_part(void *argument, int part) {
    moments_job *job = argument;
    if (job->done[part]) return;
    int64_t begin = part_begin(job->count, job->num_parts, BLOCK, part);
    int64_t count = part_begin(job->count, job->num_parts, BLOCK, part + 1) - begin;
    moments m = NOTHING;
    switch (job->kind) {
    case FLOAT32: moments_float32((const float *)job->data + begin, count, job->scale, &m); break;
    case FLOAT64: moments_float64((const double *)job->data + begin, count, job->scale, &m); break;
    case FLOAT16: moments_float16((const uint16_t *)job->data + begin, count, job->scale, &m); break;
    case BFLOAT16: moments_bfloat16((const uint16_t *)job->data + begin, count, job->scale, &m); break;
    }
    job->parts[part] = m;
    job->done[part] = 1;
}

static moments all_moments(const void *data, int64_t count, int32_t kind, double scale, const threads *threads) {
    moments_job job = {.data = data, .count = count, .kind = kind, .scale = scale};
    job.num_parts = count < LONG ? 1 : PARTS;
    run_parts(moments_of_part, &job, job.num_parts, threads);
    moments all = NOTHING;
    for (int part = 0; part < job.num_parts; part++) {
        const moments *m = &job.parts[part];
        all.high = m->high > all.high ? m->high : all.high, all.low = m->low < all.low ? m->low : all.low;
        all.total += m->total, all.squares += m->squares;
        all.num_nan += m->num_nan, all.num_inf += m->num_inf;
    }
    return all;
}

/* result: maximum, minimum, mean, Euclidean norm, number of NaN, of infinities. Of NaN anywhere all but the last two
   are NaN. count > 0. */
void msprobe_float_statistics(const void *data, int64_t count, int32_t kind, const threads *threads, double *result) {
    moments all = all_moments(data, count, kind, 1, threads);
    double size = all.high > -all.low ? all.high : -all.low;
    double scale = 1;
    if (kind == FLOAT64 && all.num_nan == 0 && size > 0 && size < INFINITY && (size < 1e-140 || size > 1e140)) {
        /* Squares have left float64: scale by a power of two, which changes no digit, and read once more. */
        int exponent;
        frexp(size, &exponent);
        exponent = exponent < -1020 ? -1020 : exponent > 1020 ? 1020 : exponent; /* it and its inverse are finite */
        scale = ldexp(1, exponent);
        double high = all.high, low = all.low;
        all = all_moments(data, count, kind, 1 / scale, threads);
        all.high = high, all.low = low;
    }
    double mean = all.total / (double)count * scale, norm = sqrt(all.squares) * scale;
    int has_nan = all.num_nan > 0;
    result[0] = has_nan ? NAN : all.high, result[1] = has_nan ? NAN : all.low;
    result[2] = mean, result[3] = norm, result[4] = (double)all.num_nan, result[5] = (double)all.num_inf;
}

/* --- statistics of integers ------------------------------------------------------------------------------------- */

/* extremes: maximum and minimum, of uint64 as its bits. result: mean, Euclidean norm; summed in float64. */
#define DEFINE_INTEGERS(NAME, ELEMENT)                                                                                 \
    FOR_EACH_PROCESSOR                                                                                                 \
    static void integers_##NAME(const ELEMENT *x, int64_t count, int64_t *extremes, double *sums) {                    \
        ELEMENT high = x[0], low = x[0];                                                                               \
        double total[LANES] = {0}, squares[LANES] = {0};                                                               \
        int64_t i = 0;                                                                                                 \
        for (; i + LANES <= count; i += LANES)                                                                         \
            for (int l = 0; l < LANES; l++) {                                                                          \
                ELEMENT v = x[i + l];                                                                                  \
                high = v > high ? v : high, low = v < low ? v : low;                                                   \
                total[l] += (double)v, squares[l] += (double)v * (double)v;                                            \
            }                                                                                                          \
        for (int l = 0; i < count; i++, l++) {                                                                         \
            ELEMENT v = x[i];                                                                                          \
            high = v > high ? v : high, low = v < low ? v : low;                                                       \
            total[l] += (double)v, squares[l] += (double)v * (double)v;                                                \
        }                                                                                                              \
        for (int l = 0; l < LANES; l++) sums[0] += total[l], sums[1] += squares[l];                                    \
        extremes[0] = (int64_t)high, extremes[1] = (int64_t)low;                                                       \
    }

DEFINE_INTEGERS(int8, int8_t)
DEFINE_INTEGERS(int16, int16_t)
DEFINE_INTEGERS(int32, int32_t)
DEFINE_INTEGERS(int64, int64_t)
DEFINE_INTEGERS(uint8, uint8_t)
DEFINE_INTEGERS(uint16, uint16_t)
DEFINE_INTEGERS(uint32, uint32_t)
DEFINE_INTEGERS(uint64, uint64_t)

/* count > 0. */
void msprobe_integer_statistics(const void *data, int64_t count, int32_t kind, int64_t *extremes, double *result) {
    double sums[2] = {0, 0};
    switch (kind) {
    case INT8: integers_int8(data, count, extremes, sums); break;
    case INT16: integers_int16(data, count, extremes, sums); break;
    case INT32: integers_int32(data, count, extremes, sums); break;
    case INT64: integers_int64(data, count, extremes, sums); break;
    case UINT8: integers_uint8(data, count, extremes, sums); break;
    case UINT16: integers_uint16(data, count, extremes, sums); break;
    case UINT32: integers_uint32(data, count, extremes, sums); break;
    case UINT64: integers_uint64(data, count, extremes, sums); break;
    }
    result[0] = sums[0] / (double)count, result[1] = sqrt(sums[1]);
}

/* --- the hash of msprobe_core/fingerprint/hashing.py -------------------------------------------------------------- */

INLINE uint64_t mix(uint64_t word) {
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ word >> 27) * 0x94D049BB133111EBull;
    return word ^ word >> 31;
}

#define DEFINE_HASH(BITS)                                                                                              \
    FOR_EACH_PROCESSOR static uint64_t hash_##BITS(const int##BITS##_t *x, int64_t count, uint64_t first) {            \
        uint64_t total = 0;                                                                                            \
        for (int64_t i = 0; i < count; i++)                                                                            \
            total += mix((uint64_t)(int64_t)x[i] + GAMMA * (first + (uint64_t)i + 1));                                 \
        return total;                                                                                                  \
    }

DEFINE_HASH(8)
DEFINE_HASH(16)
DEFINE_HASH(32)
DEFINE_HASH(64)

typedef struct {
    const char *data;
    int64_t count;
    int32_t width;
    int num_parts;
    int8_t done[PARTS];
    uint64_t parts[PARTS];
} hash_job;

static void hash_of_part(void *argument, int part) {
    hash_job *job = argument;
    if (job->done[part]) return;
    int64_t begin = part_begin(job->count, job->num_parts, 1, part);
    int64_t count = part_begin(job->count, job->num_parts, 1, part + 1) - begin;
    uint64_t total = 0, first = (uint64_t)begin;
    switch (job->width) {
    case 1: total = hash_8((const int8_t *)job->data + begin, count, first); break;
    case 2: total = hash_16((const int16_t *)job->data + begin, count, first); break;
    case 4: total = hash_32((const int32_t *)job->data + begin, count, first); break;
    case 8: total = hash_64((const int64_t *)job->data + begin, count, first); break;
    }
    job->parts[part] = total;
    job->done[part] = 1;
}

/* width: bytes of an element. */
uint64_t msprobe_hash(const void *data, int64_t count, int32_t width, const threads *threads) {
    hash_job job = {.data = data, .count = count, .width = width, .num_parts = count < LONG ? 1 : PARTS};
    run_parts(hash_of_part, &job, job.num_parts, threads);
    uint64_t total = 0;
    for (int part = 0; part < job.num_parts; part++) total += job.parts[part];
    return total;
}

/* --- the sketch of msprobe_core/fingerprint/sketch.py ------------------------------------------------------------ */

#define SKETCH 64
#define ROWS 1024
#define SKETCH_BLOCK (ROWS * SKETCH)

typedef struct {
    const int8_t *place_signs; /* [SKETCH_BLOCK] */
    const int8_t *sum_signs;   /* [number of blocks + SKETCH_BLOCK] */
    const int8_t *block_signs; /* [number of blocks] */
    const int64_t *turns;      /* [number of blocks], by how many rows a block is turned */
    const int64_t *ranks;      /* [ROWS], by how many numbers a row is turned; not all are below SKETCH */
} sketch_tables;

/* sums has 2 * SKETCH numbers, so that a row that is turned goes over the end instead of around it. */
#define DEFINE_SKETCH(NAME, ELEMENT, LOAD)                                                                             \
    FOR_EACH_PROCESSOR static void sketch_##NAME(const ELEMENT *x, int64_t begin, int64_t end,                         \
                                                 const sketch_tables *tables, double *sums) {                          \
        for (int64_t row = begin / SKETCH; row * SKETCH < end; row++) {                                                \
            int64_t block = row / ROWS, place = (row + tables->turns[block]) % ROWS, count = end - row * SKETCH;       \
            const ELEMENT *from = x + row * SKETCH;                                                                    \
            const int8_t *p = tables->place_signs + place * SKETCH, *s = tables->sum_signs + block + place * SKETCH;   \
            double *to = sums + tables->ranks[place] % SKETCH, sign = tables->block_signs[block];                      \
            if (count >= SKETCH)                                                                                       \
                for (int c = 0; c < SKETCH; c++) to[c] += sign * (double)(p[c] * s[c]) * (double)LOAD(from[c]);        \
            else                                                                                                       \
                for (int c = 0; c < count; c++) to[c] += sign * (double)(p[c] * s[c]) * (double)LOAD(from[c]);         \
        }                                                                                                              \
    }

DEFINE_SKETCH(float32, float, AS_IS)
DEFINE_SKETCH(float64, double, AS_IS)
DEFINE_SKETCH(float16, uint16_t, from_float16)
DEFINE_SKETCH(bfloat16, uint16_t, from_bfloat16)

typedef struct {
    const void *data;
    int64_t count;
    int32_t kind;
    int num_parts;
    const sketch_tables *tables;
    int8_t done[PARTS];
    double parts[PARTS][2 * SKETCH];
} sketch_job;

static void sketch_of_part(void *argument, int part) {
    sketch_job *job = argument;
    if (job->done[part]) return;
    int64_t begin = part_begin(job->count, job->num_parts, SKETCH_BLOCK, part);
    int64_t end = part_begin(job->count, job->num_parts, SKETCH_BLOCK, part + 1);
    double *sums = job->parts[part];
    memset(sums, 0, sizeof job->parts[part]);
    switch (job->kind) {
    case FLOAT32: sketch_float32(job->data, begin, end, job->tables, sums); break;
    case FLOAT64: sketch_float64(job->data, begin, end, job->tables, sums); break;
    case FLOAT16: sketch_float16(job->data, begin, end, job->tables, sums); break;
    case BFLOAT16: sketch_bfloat16(job->data, begin, end, job->tables, sums); break;
    }
    job->done[part] = 1;
}

/* result: [SKETCH] float32. */
void msprobe_sketch(const void *data, int64_t count, int32_t kind, const sketch_tables *tables, const threads *threads,
                    float *result) {
    sketch_job job;
    job.data = data, job.count = count, job.kind = kind, job.tables = tables;
    job.num_parts = count < LONG ? 1 : PARTS;
    memset(job.done, 0, sizeof job.done);
    run_parts(sketch_of_part, &job, job.num_parts, threads);
    for (int c = 0; c < SKETCH; c++) {
        double total = 0;
        for (int part = 0; part < job.num_parts; part++) total += job.parts[part][c] + job.parts[part][c + SKETCH];
        result[c] = (float)total;
    }
}
