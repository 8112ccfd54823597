/* The arithmetic of text.c, included once per kind of processor.
 *
 * The includer defines TARGET (attributes), NAME(x) (a suffix), FMA(a, b, c) = a * b + c and
 * SUM4(to, a, b, c, d): the sums over four vectors' lanes into to[0..3].
 * All matrices are row-major with a row length given in floats. Any size is right; rows of a
 * multiple of 8 floats are fast.
 */

/* sums[r * n + c] = a row r . w row c, over k values. m and n are constants of the call and m * n is
 * at most 12, so that the sums stay in registers. Weights are read as the checkpoint has them: a
 * packed copy would double their memory and gain a tenth at most. */
INLINE TARGET void NAME(tile)(const int m, const int n, const float *a, long a_step,
                              const float *w, long w_step, long k, float *restrict sums)
{
    v8 acc[12];
    for (int i = 0; i < m * n; i++)
        acc[i] = (v8){0};
    long j = 0;
    for (; j + 8 <= k; j += 8)
        for (int r = 0; r < m; r++) {
            const v8 x = LOAD(a + r * a_step + j);
            for (int c = 0; c < n; c++)
                acc[r * n + c] = FMA(x, LOAD(w + c * w_step + j), acc[r * n + c]);
        }
    for (int i = 0; i < m * n; i += 4)
        SUM4(sums + i, acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);
    for (; j < k; j++)
        for (int r = 0; r < m; r++)
            for (int c = 0; c < n; c++)
                sums[r * n + c] += a[r * a_step + j] * w[c * w_step + j];
}

/* The last columns of a matrix whose number of columns is no multiple of four. */
static TARGET float NAME(dot)(const float *a, const float *w, long k)
{
    v8 acc[4] = {{0}, {0}, {0}, {0}};
    long j = 0;
    for (; j + 8 <= k; j += 8)
        acc[0] = FMA(LOAD(a + j), LOAD(w + j), acc[0]);
    float sums[4];
    SUM4(sums, acc[0], acc[1], acc[2], acc[3]);
    for (; j < k; j++)
        sums[0] += a[j] * w[j];
    return sums[0];
}

INLINE TARGET void NAME(put)(const int m, const int n, const float *sums, const float *bias,
                             float *out, long out_step, int add)
{
    for (int r = 0; r < m; r++)
        for (int c = 0; c < n; c++) {
            float *to = out + r * out_step + c;
            *to = (add ? *to : 0.0f) + sums[r * n + c] + (bias ? bias[c] : 0.0f);
        }
}

/* out [m, n] (+)= a [m, k] . w [n, k]^T + bias */
static TARGET void NAME(gemm)(const matrix *g, long n0, long n1)
{
    const long m = g->m, k = g->k;
    float sums[12];
    for (long block = n0; block < n1; block += GEMM_BLOCK) { /* a block of w stays near */
        const long end = block + GEMM_BLOCK < n1 ? block + GEMM_BLOCK : n1;
        for (long r = 0; r < m;) {
            const float *a = g->a + r * g->a_step;
            const long left = m - r, high = left >= 3 ? 3 : left;
            float *out = g->out + r * g->out_step;
            long c = block;
            if (high == 1)
                for (; c + 8 <= end; c += 8) {
                    NAME(tile)(1, 8, a, g->a_step, g->w + c * g->w_step, g->w_step, k, sums);
                    NAME(put)(1, 8, sums, g->bias ? g->bias + c : NULL, out + c, g->out_step,
                              g->add);
                }
            for (; c + 4 <= end; c += 4) {
                const float *w = g->w + c * g->w_step, *bias = g->bias ? g->bias + c : NULL;
                if (high == 3) {
                    NAME(tile)(3, 4, a, g->a_step, w, g->w_step, k, sums);
                    NAME(put)(3, 4, sums, bias, out + c, g->out_step, g->add);
                } else if (high == 2) {
                    NAME(tile)(2, 4, a, g->a_step, w, g->w_step, k, sums);
                    NAME(put)(2, 4, sums, bias, out + c, g->out_step, g->add);
                } else {
                    NAME(tile)(1, 4, a, g->a_step, w, g->w_step, k, sums);
                    NAME(put)(1, 4, sums, bias, out + c, g->out_step, g->add);
                }
            }
            for (; c < end; c++)
                for (long i = 0; i < high; i++) {
                    const float sum = NAME(dot)(a + i * g->a_step, g->w + c * g->w_step, k);
                    float *to = out + i * g->out_step + c;
                    *to = (g->add ? *to : 0.0f) + sum + (g->bias ? g->bias[c] : 0.0f);
                }
            r += high;
        }
    }
}

/* e^x to about one unit in the last place; NaN stays NaN. Below -87 it is e^-87, above 88 e^88. */
INLINE TARGET v8 NAME(exp8)(v8 x)
{
    const v8 low = (v8){0} - 87.0f, high = (v8){0} + 88.0f;
    const v8i below = x < low, above = x > high;
    x = (v8)(((v8i)x & ~(below | above)) | ((v8i)low & below) | ((v8i)high & above));
    const v8 turns = x * 1.44269504f;
    const v8i sign = ((v8i)turns & INT32_MIN) | (v8i)((v8){0} + 0.5f); /* half, away from zero */
    const v8i n = __builtin_convertvector(turns + (v8)sign, v8i);
    const v8 f = __builtin_convertvector(n, v8);
    v8 r = FMA(f, (v8){0} - 0.693359375f, x);
    r = FMA(f, (v8){0} + 2.12194440e-4f, r);
    v8 p = (v8){0} + 1.9875691500e-4f;
    p = FMA(p, r, (v8){0} + 1.3981999507e-3f);
    p = FMA(p, r, (v8){0} + 8.3334519073e-3f);
    p = FMA(p, r, (v8){0} + 4.1665795894e-2f);
    p = FMA(p, r, (v8){0} + 1.6666665459e-1f);
    p = FMA(p, r, (v8){0} + 5.0000001201e-1f);
    p = FMA(p, r * r, r + 1.0f);
    return p * (v8)((n + 127) << 23);
}

/* The largest of n values; NaN if one is NaN. */
static TARGET float NAME(largest)(const float *row, long n)
{
    float most = row[0];
    long i = 0;
    if (n >= 8) {
        v8 high = LOAD(row);
        v8i strange = {0};
        for (; i + 8 <= n; i += 8) {
            const v8 x = LOAD(row + i);
            const v8i above = x > high;
            high = (v8)(((v8i)x & above) | ((v8i)high & ~above));
            strange |= x != x;
        }
        for (int j = 0; j < 8; j++) {
            most = high[j] > most ? high[j] : most;
            if (strange[j])
                return NAN;
        }
    }
    for (; i < n; i++) {
        most = row[i] > most ? row[i] : most;
        if (row[i] != row[i])
            return NAN;
    }
    return most;
}

/* The first place of the largest value; -1 if that is not finite, or one is NaN. */
static TARGET int64_t NAME(best)(const float *row, long n)
{
    const float most = NAME(largest)(row, n);
    int64_t at = 0;
    if (!isfinite(most))
        return -1;
    while (row[at] != most)
        at++;
    return at;
}

/* Probabilities in place, not yet divided by their sum, which is returned. `row` has room for n
 * rounded up to eight; places from n to `end` become zero. */
static TARGET float NAME(soften)(float *row, long n, long end)
{
    const float most = NAME(largest)(row, n);
    for (long i = n; i < (n + 7) / 8 * 8; i++)
        row[i] = most - 1e4f;
    v8 acc[4] = {{0}, {0}, {0}, {0}};
    for (long i = 0; i < n; i += 8) {
        const v8 p = NAME(exp8)(LOAD(row + i) - most);
        STORE(row + i, p);
        acc[0] += p;
    }
    for (long i = n; i < end; i++)
        row[i] = 0.0f;
    float sums[4];
    SUM4(sums, acc[0], acc[1], acc[2], acc[3]);
    return sums[0];
}

/* out [m, n * 8] = p [m, k] . v [k, n * 8]; m and n are constants of the call, m * n <= 12. */
INLINE TARGET void NAME(mix_tile)(const int m, const int n, const float *p, long p_step,
                                  const float *v, long v_step, long k, float *out, long out_step)
{
    v8 acc[12];
    for (int i = 0; i < m * n; i++)
        acc[i] = (v8){0};
    for (long j = 0; j < k; j++)
        for (int r = 0; r < m; r++) {
            const v8 x = (v8){0} + p[r * p_step + j];
            for (int c = 0; c < n; c++)
                acc[r * n + c] = FMA(x, LOAD(v + j * v_step + 8 * c), acc[r * n + c]);
        }
    for (int r = 0; r < m; r++)
        for (int c = 0; c < n; c++)
            STORE(out + r * out_step + 8 * c, acc[r * n + c]);
}

/* out [m, width] = p [m, k] . v [k, width], all rows `width` apart but those of p. */
static TARGET void NAME(mix)(long m, long width, const float *p, long p_step, const float *v,
                             long k, float *out)
{
    for (long r = 0; r < m;) {
        const long high = m - r >= 3 ? 3 : 1;
        const float *row = p + r * p_step;
        float *to = out + r * width;
        long c = 0;
        for (; c + 32 <= width; c += 32)
            if (high == 3)
                NAME(mix_tile)(3, 4, row, p_step, v + c, width, k, to + c, width);
            else
                NAME(mix_tile)(1, 4, row, p_step, v + c, width, k, to + c, width);
        for (; c + 8 <= width; c += 8)
            for (long i = 0; i < high; i++)
                NAME(mix_tile)(1, 1, row + i * p_step, p_step, v + c, width, k,
                               to + i * width + c, width);
        for (; c < width; c++)
            for (long i = 0; i < high; i++) {
                float sum = 0.0f;
                for (long j = 0; j < k; j++)
                    sum += row[i * p_step + j] * v[j * width + c];
                to[i * width + c] = sum;
            }
        r += high;
    }
}

/* out = x / root mean square of x * weight; out may be x */
static TARGET void NAME(norm)(const float *x, const float *weight, long n, float eps, float *out)
{
    v8 acc[4] = {{0}, {0}, {0}, {0}};
    long i = 0;
    for (; i + 8 <= n; i += 8)
        acc[0] = FMA(LOAD(x + i), LOAD(x + i), acc[0]);
    float sums[4];
    SUM4(sums, acc[0], acc[1], acc[2], acc[3]);
    for (; i < n; i++)
        sums[0] += x[i] * x[i];
    const float scale = 1.0f / sqrtf(sums[0] / (float)n + eps);
    for (i = 0; i < n; i++)
        out[i] = x[i] * scale * weight[i];
}

/* gate = activation(gate) * up. gelu(x) by tanh is x * sigmoid(2y), y the tanh's argument. */
static TARGET void NAME(gate)(float *gate, const float *up, long n, int activation)
{
    const float slope = activation == GELU_TANH ? 1.59576912f : 1.0f;
    const float bend = activation == GELU_TANH ? 0.044715f : 0.0f;
    long i = 0;
    if (activation != GELU)
        for (; i + 8 <= n; i += 8) {
            const v8 x = LOAD(gate + i);
            const v8 y = x * slope * (bend * x * x + 1.0f);
            STORE(gate + i, x / (NAME(exp8)(-y) + 1.0f) * LOAD(up + i));
        }
    for (; i < n; i++) {
        const float x = gate[i], y = x * slope * (bend * x * x + 1.0f);
        const float on = activation == GELU ? 0.5f * (1.0f + erff(x * 0.70710678f))
                                            : 1.0f / (1.0f + expf(-y));
        gate[i] = x * on * up[i];
    }
}
