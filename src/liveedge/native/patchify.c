/* One frame to the rows that a vision tower reads: antialiased resize, normalise, patch order.
 *
 * The resize is torch's own for uint8, to the bit: weights of 16 bits, products summed in 32 bits
 * from half a unit, shifted down and clamped; first along rows, then across them. Normalising is a
 * subtraction and a division in float32, as the reference does it; nothing may be fused here.
 * A strip of patch rows goes through all three while it is in the cache.
 *
 * Owns nothing and allocates nothing: the caller brings the scratch memory. Any thread.
 */
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2")))
#endif

/* How one axis is resampled: output i is the sum of weights[i][t] * input[first[i] + t]. */
typedef struct {
    const int32_t *first;   /* never falling; NULL: this axis keeps its length */
    const int16_t *weights; /* [outputs][taps], zeros behind the last */
    int64_t taps;           /* a multiple of 4 */
    int64_t precision;      /* bits behind the point of a weight */
} le_axis;

typedef struct {
    const uint8_t *pixels; /* [in_height][in_width][3] */
    int64_t row_bytes;     /* from one row of pixels to the next */
    int64_t in_height, in_width;
    int64_t height, width; /* multiples of patch * merge */
    le_axis across, down;  /* along a row; from row to row */
    int64_t patch, merge, depth, time; /* `time`: which of the `depth` frames of the group this is */
    const float *mean, *std;           /* of each channel */
    float *out; /* [height / patch * width / patch][3][depth][patch][patch], squares of merge x merge
                   patches side by side; begins at a multiple of 32 bytes */
    uint8_t *scratch; /* le_scratch_bytes of them */
} le_frame;

#define SLACK 32 /* bytes behind a row that may be read, or written as nonsense */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static uint8_t clamped(int32_t sum, int64_t precision)
{
    const int32_t value = sum >> precision;
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

static int64_t scratch_row(const le_frame *f) { return 3 * f->width + SLACK; }

/* Rows of input behind the output rows [top, top + n). */
static void input_rows(const le_frame *f, int64_t top, int64_t n, int64_t *begin, int64_t *end)
{
    if (!f->down.first) {
        *begin = top;
        *end = top + n;
        return;
    }
    *begin = f->down.first[top];
    *end = least(f->down.first[top + n - 1] + f->down.taps, f->in_height);
}

int64_t le_scratch_bytes(const le_frame *f)
{
    const int64_t side = f->patch * f->merge;
    int64_t most = 0;
    for (int64_t top = 0; top < f->height; top += side) {
        int64_t begin, end;
        input_rows(f, top, side, &begin, &end);
        most = end - begin > most ? end - begin : most;
    }
    /* one input row with slack, the rows resampled along, the rows resampled down */
    return 3 * f->in_width + SLACK + (most + side) * scratch_row(f);
}

/* Plain C: for every processor, and for shapes that the fast code leaves out. */

static void across_plain(const le_frame *f, const uint8_t *in, uint8_t *out)
{
    const le_axis *axis = &f->across;
    for (int64_t x = 0; x < f->width; x++) {
        const int16_t *weights = axis->weights + x * axis->taps;
        const uint8_t *from = in + 3 * (int64_t)axis->first[x];
        const int64_t taps = least(axis->taps, f->in_width - axis->first[x]);
        for (int64_t c = 0; c < 3; c++) {
            int32_t sum = 1 << (axis->precision - 1);
            for (int64_t t = 0; t < taps; t++)
                sum += weights[t] * from[3 * t + c];
            out[3 * x + c] = clamped(sum, axis->precision);
        }
    }
}

static void down_plain(const uint8_t *const *rows, const int16_t *weights, int64_t taps,
                       int64_t precision, int64_t begin, int64_t end, uint8_t *out)
{
    for (int64_t i = begin; i < end; i++) {
        int32_t sum = 1 << (precision - 1);
        for (int64_t t = 0; t < taps; t++)
            sum += weights[t] * rows[t][i];
        out[i] = clamped(sum, precision);
    }
}

/* One patch of pixels to three planes of `patch` x `patch` values. */
static void write_patch_plain(const le_frame *f, const uint8_t *in, int64_t step, float *out)
{
    const int64_t patch = f->patch, plane = f->depth * patch * patch;
    for (int64_t y = 0; y < patch; y++)
        for (int64_t c = 0; c < 3; c++)
            for (int64_t x = 0; x < patch; x++)
                out[c * plane + y * patch + x]
                    = ((float)in[y * step + 3 * x + c] - f->mean[c]) / f->std[c];
}

#if defined(__x86_64__)

#define INLINE static inline __attribute__((always_inline))

/* Four taps of a pixel of two rows, one row in each half: each channel in pairs of taps. */
#define PAIR(a, b) -1, -1, -1, -1, -1, (b) + 2, -1, (a) + 2, -1, (b) + 1, -1, (a) + 1, -1, b, -1, a

AVX2 INLINE __m256i two_rows(const uint8_t *a, const uint8_t *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                   _mm_loadu_si128((const __m128i *)b), 1);
}

AVX2 INLINE __m256i two_weights(const int16_t *weights)
{
    int32_t pair;
    memcpy(&pair, weights, sizeof pair);
    return _mm256_set1_epi32(pair);
}

/* sums[0]: of one pixel of rows 0 and 1; sums[1]: of rows 2 and 3. */
AVX2 INLINE void weigh(const uint8_t *const in[4], int64_t at, const int16_t *weights,
                       int64_t taps, __m256i sums[2])
{
    const __m256i low = _mm256_set_epi8(PAIR(0, 3), PAIR(0, 3));
    const __m256i high = _mm256_set_epi8(PAIR(6, 9), PAIR(6, 9));
    for (int64_t t = 0; t < taps; t += 4, at += 12) {
        const __m256i w0 = two_weights(weights + t), w1 = two_weights(weights + t + 2);
        for (int k = 0; k < 2; k++) {
            const __m256i p = two_rows(in[2 * k] + at, in[2 * k + 1] + at);
            const __m256i s = _mm256_add_epi32(
                _mm256_madd_epi16(_mm256_shuffle_epi8(p, low), w0),
                _mm256_madd_epi16(_mm256_shuffle_epi8(p, high), w1));
            sums[k] = _mm256_add_epi32(sums[k], s);
        }
    }
}

/* Four rows at once, two pixels of each; the width is even. */
AVX2 INLINE void across_rows(const le_axis *axis, int64_t width, int64_t taps,
                             const uint8_t *const in[4], uint8_t *const out[4])
{
    const int32_t *first = axis->first;
    const int16_t *weights = axis->weights;
    const __m256i half = _mm256_set1_epi32(1 << (axis->precision - 1));
    const __m128i shift = _mm_cvtsi64_si128(axis->precision);
    const __m256i close_up = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, 8, 9, 10, 12, 13, 14, -1, -1));
    uint8_t *const to0 = out[0], *const to1 = out[1], *const to2 = out[2], *const to3 = out[3];
    for (int64_t x = 0; x < width; x += 2, weights += 2 * taps) {
        __m256i left[2] = {half, half}, right[2] = {half, half};
        weigh(in, 3 * (int64_t)first[x], weights, taps, left);
        weigh(in, 3 * (int64_t)first[x + 1], weights + taps, taps, right);
        const __m256i rows01 = _mm256_packs_epi32(_mm256_sra_epi32(left[0], shift),
                                                  _mm256_sra_epi32(right[0], shift));
        const __m256i rows23 = _mm256_packs_epi32(_mm256_sra_epi32(left[1], shift),
                                                  _mm256_sra_epi32(right[1], shift));
        const __m256i bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(rows01, rows23), close_up);
        const __m128i even = _mm256_castsi256_si128(bytes);
        const __m128i odd = _mm256_extracti128_si256(bytes, 1);
        /* eight bytes for six: the next pixels, or the slack, take the others */
        _mm_storel_epi64((__m128i *)(to0 + 3 * x), even);
        _mm_storel_epi64((__m128i *)(to1 + 3 * x), odd);
        _mm_storeh_pd((double *)(to2 + 3 * x), _mm_castsi128_pd(even));
        _mm_storeh_pd((double *)(to3 + 3 * x), _mm_castsi128_pd(odd));
    }
}

AVX2 static void across_avx2(const le_frame *f, const uint8_t *const in[4], uint8_t *const out[4])
{
    if (f->across.taps == 4) /* enlarging: known to the compiler, the loop over taps is gone */
        across_rows(&f->across, f->width, 4, in, out);
    else
        across_rows(&f->across, f->width, f->across.taps, in, out);
}

/* Returns how many bytes of the row it made: a multiple of 32. */
AVX2 static int64_t down_avx2(const uint8_t *const *rows, const int16_t *weights, int64_t taps,
                              int64_t precision, int64_t n, uint8_t *out)
{
    const __m256i zero = _mm256_setzero_si256();
    const __m256i half = _mm256_set1_epi32(1 << (precision - 1));
    const __m128i shift = _mm_cvtsi64_si128(precision);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i sum[4] = {half, half, half, half};
        for (int64_t t = 0; t < taps; t += 2) {
            int32_t pair;
            memcpy(&pair, weights + t, sizeof pair);
            const __m256i w = _mm256_set1_epi32(pair);
            const __m256i a = _mm256_loadu_si256((const __m256i *)(rows[t] + i));
            const __m256i b = _mm256_loadu_si256((const __m256i *)(rows[t + 1] + i));
            const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
            const __m256i wide[4] = {
                _mm256_unpacklo_epi8(low, zero), _mm256_unpackhi_epi8(low, zero),
                _mm256_unpacklo_epi8(high, zero), _mm256_unpackhi_epi8(high, zero)};
            for (int k = 0; k < 4; k++)
                sum[k] = _mm256_add_epi32(sum[k], _mm256_madd_epi16(wide[k], w));
        }
        for (int k = 0; k < 4; k++)
            sum[k] = _mm256_sra_epi32(sum[k], shift);
        _mm256_storeu_si256((__m256i *)(out + i),
                            _mm256_packus_epi16(_mm256_packs_epi32(sum[0], sum[1]),
                                                _mm256_packs_epi32(sum[2], sum[3])));
    }
    return i;
}

/* Past the cache: patches are larger than it, and what they would push out is needed sooner. */
AVX2 INLINE void store_normalised(__m128i bytes, __m256 mean, __m256 std, float *out)
{
    const __m256 a = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    const __m256 b = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
    _mm256_stream_ps(out, _mm256_div_ps(_mm256_sub_ps(a, mean), std));
    _mm256_stream_ps(out + 8, _mm256_div_ps(_mm256_sub_ps(b, mean), std));
}

/* The same for patches of 16 pixels: 48 bytes of a row, in which a channel has every third. */
#define PICK(v, ...) _mm_shuffle_epi8(v, _mm_setr_epi8(__VA_ARGS__))
AVX2 static void write_patch_avx2(const le_frame *f, const uint8_t *in, int64_t step, float *out)
{
    const int64_t plane = f->depth * 256;
    __m256 mean[3], std[3];
    for (int c = 0; c < 3; c++) {
        mean[c] = _mm256_set1_ps(f->mean[c]);
        std[c] = _mm256_set1_ps(f->std[c]);
    }
    for (int y = 0; y < 16; y++, in += step, out += 16) {
        const __m128i a = _mm_loadu_si128((const __m128i *)in);
        const __m128i b = _mm_loadu_si128((const __m128i *)(in + 16));
        const __m128i c = _mm_loadu_si128((const __m128i *)(in + 32));
        const __m128i red = _mm_or_si128(
            _mm_or_si128(PICK(a, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                         PICK(b, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1)),
            PICK(c, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13));
        const __m128i green = _mm_or_si128(
            _mm_or_si128(PICK(a, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                         PICK(b, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1)),
            PICK(c, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14));
        const __m128i blue = _mm_or_si128(
            _mm_or_si128(PICK(a, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                         PICK(b, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1)),
            PICK(c, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15));
        store_normalised(red, mean[0], std[0], out);
        store_normalised(green, mean[1], std[1], out + plane);
        store_normalised(blue, mean[2], std[2], out + 2 * plane);
    }
}

static int has_avx2(void) { return __builtin_cpu_supports("avx2"); }

#else

static int has_avx2(void) { return 0; }

#endif

/* Rows [begin, end) of the input, resampled along, into `out`. The fast code reads up to SLACK
 * bytes behind a row, so the last one of the picture is read from a copy. */
static void resample_across(const le_frame *f, int fast, int64_t begin, int64_t end,
                            uint8_t *last_row, uint8_t *out)
{
    const int64_t step = scratch_row(f);
#if defined(__x86_64__)
    if (fast && f->in_width >= f->across.taps) {
        if (end == f->in_height)
            memcpy(last_row, f->pixels + (end - 1) * f->row_bytes, 3 * f->in_width);
        for (int64_t y = begin; y < end; y += 4) {
            const uint8_t *from[4];
            uint8_t *to[4];
            for (int r = 0; r < 4; r++) {
                const int64_t row = least(y + r, end - 1);
                from[r] = row == f->in_height - 1 ? last_row : f->pixels + row * f->row_bytes;
                to[r] = out + (row - begin) * step;
            }
            across_avx2(f, from, to);
        }
        return;
    }
#endif
    (void)fast, (void)last_row;
    for (int64_t y = begin; y < end; y++)
        across_plain(f, f->pixels + y * f->row_bytes, out + (y - begin) * step);
}

/* Output row y from rows of `in`, of which the first is input row `begin`. */
static void resample_down(const le_frame *f, int fast, int64_t y, const uint8_t *in,
                          int64_t in_step, int64_t begin, uint8_t *out)
{
    const le_axis *axis = &f->down;
    const int16_t *weights = axis->weights + y * axis->taps;
    const uint8_t *rows[axis->taps];
    for (int64_t t = 0; t < axis->taps; t++) /* a row that does not exist has no weight */
        rows[t] = in + (least(axis->first[y] + t, f->in_height - 1) - begin) * in_step;
    int64_t made = 0;
#if defined(__x86_64__)
    if (fast)
        made = down_avx2(rows, weights, axis->taps, axis->precision, 3 * f->width, out);
#endif
    (void)fast;
    down_plain(rows, weights, axis->taps, axis->precision, made, 3 * f->width, out);
}

/* The strip of the resized picture that begins at row `top`, into its patches: in their order, so
 * that memory is written from front to back. */
static void write_strip(const le_frame *f, int fast, int64_t top, const uint8_t *rows, int64_t step)
{
    const int64_t patch = f->patch, merge = f->merge, side = patch * merge;
    const int64_t patch_step = 3 * f->depth * patch * patch;
    float *out = f->out + top / patch * (f->width / patch) * patch_step + f->time * patch * patch;
    for (int64_t x = 0; x < f->width; x += side)
        for (int64_t my = 0; my < merge; my++)
            for (int64_t mx = 0; mx < merge; mx++, out += patch_step) {
                const uint8_t *from = rows + my * patch * step + 3 * (x + mx * patch);
#if defined(__x86_64__)
                if (fast && patch == 16) {
                    write_patch_avx2(f, from, step, out);
                    continue;
                }
#endif
                (void)fast;
                write_patch_plain(f, from, step, out);
            }
}

/* `plain`: use no instruction that not every processor has; for tests. */
void le_preprocess(const le_frame *f, int plain)
{
    const int fast = !plain && has_avx2();
    const int64_t side = f->patch * f->merge, scratch_step = scratch_row(f);
    uint8_t *last_row = f->scratch;
    uint8_t *resized = last_row + 3 * f->in_width + SLACK;
    uint8_t *resampled = resized + side * scratch_step;
    for (int64_t top = 0; top < f->height; top += side) {
        int64_t begin, end;
        input_rows(f, top, side, &begin, &end);
        const uint8_t *rows = f->pixels + begin * f->row_bytes;
        int64_t step = f->row_bytes;
        if (f->across.first) {
            resample_across(f, fast, begin, end, last_row, resampled);
            rows = resampled;
            step = scratch_step;
        }
        if (f->down.first) {
            for (int64_t y = 0; y < side; y++)
                resample_down(f, fast, top + y, rows, step, begin, resized + y * scratch_step);
            rows = resized;
            step = scratch_step;
        }
        write_strip(f, fast, top, rows, step);
    }
#if defined(__x86_64__)
    _mm_sfence(); /* what went past the cache is there for every thread from now on */
#endif
}
