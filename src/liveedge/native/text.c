/* The text model for small pieces: all layers of a packed batch of tokens in one call, float32.
 *
 * A batch is rows: tokens of any number of sequences, prompt pieces and single new tokens alike.
 * Each row names its slot and its place there; its keys and values are written before any row
 * attends, so a row sees its slot up to and including its own place.
 *
 * Owns nothing but its threads: weights, key and value memory, batch and workspace are the
 * caller's and stay where they are until `le_text_close`. Allocates nothing after `le_text_open`.
 * Thread: any; one call at a time, others wait.
 *
 * Invariants
 * 1. Nothing outside the described memory is touched: every row is checked before any is computed.
 * 2. Rows do not influence each other but through their slot.
 * 3. In the last layer only keys and values are computed for rows nobody asked for.
 * 4. The result does not depend on the number of threads: a value is computed by one of them.
 */
#include "pool.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed between inlined functions only */
#endif

typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t v8i __attribute__((vector_size(32), aligned(4), may_alias));
#define LOAD(from) (*(const v8 *)(from))
#define STORE(to, value) (*(v8 *)(to) = (value))
#define INLINE static inline __attribute__((always_inline))

enum { GEMM_BLOCK = 32, ROW_BLOCK = 8, ATTENTION_ROWS = 12, CHUNKS_PER_THREAD = 4 };
enum { SILU = 0, GELU_TANH = 1, GELU = 2 };
enum { OK = 0, BAD_COUNT = 1, BAD_TOKEN = 2, BAD_SLOT = 3, BAD_PLACE = 4, BAD_POSITION = 5,
       BAD_FEATURE = 6, BAD_ASKED = 7 };

typedef struct {
    const float *a, *w, *bias;
    float *out;
    long m, k, a_step, w_step, out_step;
    int add;
} matrix;

#if defined(__x86_64__)
#include <immintrin.h>
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_avx2
#define FMA(a, b, c) ((v8)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define SUM4(to, a, b, c, d) do { \
        const __m256 s_ = _mm256_hadd_ps(_mm256_hadd_ps((__m256)(a), (__m256)(b)), \
                                         _mm256_hadd_ps((__m256)(c), (__m256)(d))); \
        _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(s_), _mm256_extractf128_ps(s_, 1))); \
    } while (0)
#include "text_kernels.h"
#undef TARGET
#undef NAME
#undef FMA
#undef SUM4
#endif

#define TARGET
#define NAME(x) x##_plain
#define FMA(a, b, c) ((a) * (b) + (c))
#define LANES(v) \
    (((v)[0] + (v)[1]) + ((v)[2] + (v)[3]) + (((v)[4] + (v)[5]) + ((v)[6] + (v)[7])))
#define SUM4(to, a, b, c, d) \
    ((to)[0] = LANES(a), (to)[1] = LANES(b), (to)[2] = LANES(c), (to)[3] = LANES(d))
#include "text_kernels.h"

typedef struct {
    void (*gemm)(const matrix *g, long n0, long n1);
    float (*soften)(float *row, long n, long end);
    void (*mix)(long m, long width, const float *p, long p_step, const float *v, long k,
                float *out);
    void (*norm)(const float *x, const float *weight, long n, float eps, float *out);
    void (*gate)(float *gate, const float *up, long n, int activation);
    int64_t (*best)(const float *row, long n);
} kernels;

static const kernels plain = {gemm_plain, soften_plain, mix_plain, norm_plain, gate_plain, best_plain};
#if defined(__x86_64__)
static const kernels avx2 = {gemm_avx2, soften_avx2, mix_avx2, norm_avx2, gate_avx2, best_avx2};
#endif

/* The two structures below are mirrored, field by field, in native_text.py. */
typedef struct {
    const float *attn_norm, *qkv, *qkv_bias, *q_norm, *k_norm, *o_proj, *o_bias;
    const float *mlp_norm, *gate_up, *down; /* biases may be NULL */
} le_text_layer;

typedef struct {
    int64_t n_layers, hidden, n_heads, n_kv_heads, head_dim, mlp, vocab, n_deepstack, activation;
    int64_t n_slots, max_len, n_positions, n_features;
    int64_t max_rows, max_asked, n_threads, plain_only;
    double eps;
    const le_text_layer *layers;
    const float *embed, *norm, *head; /* [vocab, hidden], [hidden], [vocab, hidden] */
    const float *cos, *sin;           /* [n_positions, head_dim / 2] */
    const int64_t *axis;              /* [head_dim / 2] which of a row's three positions turns it */
    float *keys, *values;             /* [layers, slots, kv heads, max_len, head_dim] */
    const float *features;            /* [n_features, (1 + n_deepstack) * hidden] */
    /* The batch, filled by the caller before each run; all [max_rows]. */
    const int64_t *tokens, *slots, *places, *positions[3];
    const int64_t *visual; /* row of `features` that takes the token's place, or -1 */
    const int64_t *asked;  /* rising numbers of the rows whose hidden state is wanted */
    /* The answer, one row for each asked. */
    float *last, *logits; /* [max_asked, hidden], [max_asked, vocab] */
    int64_t *best;        /* first place of the largest logit; -1: it is not finite, or one is NaN */
    float *work;          /* le_text_work_floats() */
} le_text_model;

typedef struct {
    long first, n; /* rows of one slot whose places follow each other */
} block;

typedef struct {
    le_text_model m;
    const kernels *k;
    le_pool *pool;
    block *blocks;
    long q_width, kv_width, qkv_width, tokens_per_block, pitch;
    /* Parts of the workspace. */
    float *x, *normed, *qkv, *mixed, *gate, *up, *scratch;
    int64_t *slot, *place; /* of the rows that are still computed */
    /* The state of one run. */
    long layer, n_rows, n_kept, n_blocks;
    const float *weight; /* of a norm, and where it goes to */
    float *to;
    matrix g; /* of a product, its columns, and how many are one chunk */
    long n_columns, cols;
} text;

static long max_of(long a, long b) { return a > b ? a : b; }
static long min_of(long a, long b) { return a < b ? a : b; }
static long round_up(long n, long step) { return (n + step - 1) / step * step; }

/* Scratch of one thread: queries and outputs of a block, and its scores. */
static long block_rows(const le_text_model *m)
{
    return max_of(ATTENTION_ROWS, m->n_heads / m->n_kv_heads);
}

static long scratch_floats(const le_text_model *m)
{
    return block_rows(m) * (round_up(m->max_len, 8) + 2 * m->head_dim + 1) + 16;
}

static long lay_out(text *t, const le_text_model *m, float *work)
{
    const long q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    const long widths[] = {m->hidden, m->hidden, q + 2 * kv, q, m->mlp, m->mlp};
    float **parts[] = {&t->x, &t->normed, &t->qkv, &t->mixed, &t->gate, &t->up};
    long at = 0;
    for (int i = 0; i < 6; i++) {
        *parts[i] = work + at;
        at += round_up(m->max_rows * widths[i], 16);
    }
    t->scratch = work + at;
    return at + m->n_threads * scratch_floats(m);
}

int64_t le_text_work_floats(const le_text_model *m)
{
    text unused;
    static float nowhere[1];
    return lay_out(&unused, m, nowhere);
}

/* Whether this processor has the fast kernels. */
int le_text_is_fast(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}

void *le_text_open(const le_text_model *m)
{
    text *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->m = *m;
    t->k = &plain;
#if defined(__x86_64__)
    if (le_text_is_fast() && !m->plain_only)
        t->k = &avx2;
#endif
    t->q_width = m->n_heads * m->head_dim;
    t->kv_width = m->n_kv_heads * m->head_dim;
    t->qkv_width = t->q_width + 2 * t->kv_width;
    t->tokens_per_block = max_of(1, ATTENTION_ROWS / (m->n_heads / m->n_kv_heads));
    t->pitch = round_up(m->max_len, 8);
    lay_out(t, &t->m, m->work);
    t->blocks = malloc(m->max_rows * sizeof *t->blocks);
    t->slot = malloc(m->max_rows * sizeof *t->slot);
    t->place = malloc(m->max_rows * sizeof *t->place);
    t->pool = le_pool_open((int)m->n_threads);
    if (t->blocks && t->slot && t->place && t->pool)
        return t;
    if (t->pool)
        le_pool_close(t->pool);
    free(t->blocks), free(t->slot), free(t->place), free(t);
    return NULL;
}

void le_text_close(void *handle)
{
    text *t = handle;
    le_pool_close(t->pool);
    free(t->blocks), free(t->slot), free(t->place), free(t);
}

/* -- stages: each works on some rows, some columns or some blocks ------------------------------ */

static void in_rows(text *t, le_work stage, long n_rows)
{
    le_pool_run(t->pool, stage, t, (int)((n_rows + ROW_BLOCK - 1) / ROW_BLOCK));
}

static void in_columns(text *t, le_work stage, long n_columns)
{
    const long share = n_columns / (CHUNKS_PER_THREAD * max_of(1, t->m.n_threads));
    const long most = t->n_rows < ROW_BLOCK ? n_columns : 2 * GEMM_BLOCK;
    t->n_columns = n_columns;
    t->cols = min_of(round_up(max_of(share, GEMM_BLOCK / 2), 8), round_up(most, 8));
    le_pool_run(t->pool, stage, t, (int)((n_columns + t->cols - 1) / t->cols));
}

static void embed_rows(void *context, int worker, int chunk)
{
    text *t = context;
    const le_text_model *m = &t->m;
    (void)worker;
    for (long r = chunk * ROW_BLOCK; r < min_of(t->n_rows, (chunk + 1L) * ROW_BLOCK); r++) {
        const int64_t row = m->visual[r];
        const float *from = row < 0 ? m->embed + m->tokens[r] * m->hidden
                                    : m->features + row * (1 + m->n_deepstack) * m->hidden;
        memcpy(t->x + r * m->hidden, from, m->hidden * sizeof(float));
    }
}

static void add_deepstack(text *t)
{
    const le_text_model *m = &t->m;
    for (long i = 0; i < t->n_kept; i++) {
        const long r = t->n_kept == t->n_rows ? i : m->asked[i];
        if (m->visual[r] < 0)
            continue;
        const long part = m->visual[r] * (1 + m->n_deepstack) + 1 + t->layer;
        const float *from = m->features + part * m->hidden;
        for (long j = 0; j < m->hidden; j++)
            t->x[i * m->hidden + j] += from[j];
    }
}

static void norm_rows(void *context, int worker, int chunk)
{
    text *t = context;
    const long n = t->m.hidden;
    (void)worker;
    for (long r = chunk * ROW_BLOCK; r < min_of(t->n_kept, (chunk + 1L) * ROW_BLOCK); r++)
        t->k->norm(t->x + r * n, t->weight, n, (float)t->m.eps, t->to + r * n);
}

static void norm(text *t, const float *weight, float *to)
{
    t->weight = weight;
    t->to = to;
    in_rows(t, norm_rows, t->n_kept);
}

static void multiply_columns(void *context, int worker, int chunk)
{
    text *t = context;
    (void)worker;
    t->k->gemm(&t->g, chunk * t->cols, min_of(t->n_columns, (chunk + 1L) * t->cols));
}

/* Rotates one head by the row's positions. */
static void rotate(const text *t, long row, float *head)
{
    const long half = t->m.head_dim / 2;
    for (long i = 0; i < half; i++) {
        const int64_t at = t->m.positions[t->m.axis[i]][row] * half + i;
        const float a = head[i], b = head[i + half], c = t->m.cos[at], s = t->m.sin[at];
        head[i] = a * c - b * s;
        head[i + half] = b * c + a * s;
    }
}

/* Keys and values of every row into its slot. */
static void keep_rows(void *context, int worker, int chunk)
{
    text *t = context;
    const le_text_model *m = &t->m;
    const le_text_layer *w = &m->layers[t->layer];
    const long d = m->head_dim;
    (void)worker;
    for (long r = chunk * ROW_BLOCK; r < min_of(t->n_rows, (chunk + 1L) * ROW_BLOCK); r++) {
        float *k = t->qkv + r * t->qkv_width + t->q_width;
        for (long h = 0; h < m->n_kv_heads; h++, k += d) {
            const long line = (t->layer * m->n_slots + m->slots[r]) * m->n_kv_heads + h;
            const long at = (line * m->max_len + m->places[r]) * d;
            t->k->norm(k, w->k_norm, d, (float)m->eps, k);
            rotate(t, r, k);
            memcpy(m->keys + at, k, d * sizeof(float));
            memcpy(m->values + at, k + t->kv_width, d * sizeof(float));
        }
    }
}

/* Queries of the rows that are still computed. */
static void turn_rows(void *context, int worker, int chunk)
{
    text *t = context;
    const le_text_model *m = &t->m;
    const float scale = 1.0f / sqrtf((float)m->head_dim);
    (void)worker;
    for (long i = chunk * ROW_BLOCK; i < min_of(t->n_kept, (chunk + 1L) * ROW_BLOCK); i++) {
        const long row = t->n_kept == t->n_rows ? i : m->asked[i];
        float *q = t->qkv + i * t->qkv_width;
        for (long h = 0; h < m->n_heads; h++, q += m->head_dim) {
            t->k->norm(q, m->layers[t->layer].q_norm, m->head_dim, (float)m->eps, q);
            rotate(t, row, q);
            for (long j = 0; j < m->head_dim; j++)
                q[j] *= scale;
        }
    }
}

/* One block of rows, the query heads of one key head: scores, softmax, weighted values. */
static void attend(void *context, int worker, int chunk)
{
    text *t = context;
    const le_text_model *m = &t->m;
    const block *b = &t->blocks[chunk / m->n_kv_heads];
    const long h = chunk % m->n_kv_heads, d = m->head_dim, group = m->n_heads / m->n_kv_heads;
    const long n = b->n * group, last = t->place[b->first + b->n - 1] + 1;
    const long line = (t->layer * m->n_slots + t->slot[b->first]) * m->n_kv_heads + h;
    float *q = t->scratch + worker * scratch_floats(m), *out = q + block_rows(m) * d;
    float *scores = out + block_rows(m) * d, *sums = scores + block_rows(m) * t->pitch;
    for (long i = 0; i < b->n; i++)
        memcpy(q + i * group * d, t->qkv + (b->first + i) * t->qkv_width + h * group * d,
               group * d * sizeof(float));
    const matrix g = {.a = q, .w = m->keys + line * m->max_len * d, .out = scores, .m = n, .k = d,
                      .a_step = d, .w_step = d, .out_step = t->pitch};
    t->k->gemm(&g, 0, last);
    for (long i = 0; i < n; i++)
        sums[i] = t->k->soften(scores + i * t->pitch, t->place[b->first + i / group] + 1, last);
    t->k->mix(n, d, scores, t->pitch, m->values + line * m->max_len * d, last, out);
    for (long i = 0; i < n; i++) {
        float *to = t->mixed + (b->first + i / group) * t->q_width + (h * group + i % group) * d;
        for (long j = 0; j < d; j++)
            to[j] = out[i * d + j] / sums[i];
    }
}

static void gate_columns(void *context, int worker, int chunk)
{
    text *t = context;
    const long n = t->m.mlp, from = chunk * t->cols, to = min_of(n, from + t->cols);
    (void)worker;
    matrix g = t->g;
    t->k->gemm(&g, from, to);
    g.w += n * g.w_step;
    g.out = t->up;
    t->k->gemm(&g, from, to);
    for (long r = 0; r < g.m; r++)
        t->k->gate(t->gate + r * n + from, t->up + r * n + from, to - from, (int)t->m.activation);
}

static void choose_rows(void *context, int worker, int chunk)
{
    text *t = context;
    (void)worker;
    t->m.best[chunk] = t->k->best(t->m.logits + chunk * t->m.vocab, t->m.vocab);
}

/* -- one run ----------------------------------------------------------------------------------- */

static int check(const text *t, long n_rows, long n_asked)
{
    const le_text_model *m = &t->m;
    if (n_rows < 1 || n_rows > m->max_rows || n_asked < 0 || n_asked > n_rows
        || n_asked > m->max_asked)
        return BAD_COUNT;
    for (long r = 0; r < n_rows; r++) {
        if (m->tokens[r] < 0 || m->tokens[r] >= m->vocab)
            return BAD_TOKEN;
        if (m->slots[r] < 0 || m->slots[r] >= m->n_slots)
            return BAD_SLOT;
        if (m->places[r] < 0 || m->places[r] >= m->max_len)
            return BAD_PLACE;
        for (int axis = 0; axis < 3; axis++)
            if (m->positions[axis][r] < 0 || m->positions[axis][r] >= m->n_positions)
                return BAD_POSITION;
        if (m->visual[r] < -1 || m->visual[r] >= m->n_features)
            return BAD_FEATURE;
    }
    for (long i = 0; i < n_asked; i++)
        if (m->asked[i] < 0 || m->asked[i] >= n_rows || (i && m->asked[i] <= m->asked[i - 1]))
            return BAD_ASKED;
    return OK;
}

/* Cuts the kept rows into blocks that share keys. */
static void find_blocks(text *t)
{
    t->n_blocks = 0;
    for (long r = 0; r < t->n_kept; r++) {
        block *b = t->n_blocks ? &t->blocks[t->n_blocks - 1] : NULL;
        if (b && b->n < t->tokens_per_block && t->slot[r] == t->slot[r - 1]
            && t->place[r] > t->place[r - 1])
            b->n++;
        else
            t->blocks[t->n_blocks++] = (block){r, 1};
    }
}

/* From here on only the asked rows are computed: they move to the front. */
static void keep_asked(text *t, long n_asked)
{
    const long n = t->m.hidden;
    for (long i = 0; i < n_asked; i++) {
        const long r = t->m.asked[i];
        memmove(t->x + i * n, t->x + r * n, n * sizeof(float));
        memmove(t->normed + i * n, t->normed + r * n, n * sizeof(float));
        t->slot[i] = t->slot[r];
        t->place[i] = t->place[r];
    }
    t->n_kept = n_asked;
    find_blocks(t);
}

static void multiply(text *t, matrix g, long n_columns)
{
    t->g = g;
    t->g.m = t->n_kept;
    in_columns(t, multiply_columns, n_columns);
}

/* x (+)= a . w^T */
static matrix into_x(const text *t, const float *a, long k, const float *w, const float *bias)
{
    return (matrix){.a = a, .w = w, .bias = bias, .out = t->x, .k = k, .a_step = k, .w_step = k,
                    .out_step = t->m.hidden, .add = 1};
}

/* Columns `first` up to `first + n` of the joint query, key and value matrix. */
static void project(text *t, long first, long n)
{
    const le_text_layer *w = &t->m.layers[t->layer];
    const long k = t->m.hidden;
    multiply(t, (matrix){.a = t->normed, .w = w->qkv + first * k,
                         .bias = w->qkv_bias ? w->qkv_bias + first : NULL, .out = t->qkv + first,
                         .k = k, .a_step = k, .w_step = k, .out_step = t->qkv_width}, n);
}

static void run_layer(text *t, long n_asked)
{
    const le_text_model *m = &t->m;
    const le_text_layer *w = &m->layers[t->layer];
    const int is_last = t->layer == m->n_layers - 1;
    norm(t, w->attn_norm, t->normed);
    project(t, is_last ? t->q_width : 0, is_last ? 2 * t->kv_width : t->qkv_width);
    in_rows(t, keep_rows, t->n_rows);
    if (is_last) {
        keep_asked(t, n_asked);
        if (n_asked == 0)
            return;
        project(t, 0, t->q_width);
    }
    in_rows(t, turn_rows, t->n_kept);
    le_pool_run(t->pool, attend, t, (int)(t->n_blocks * m->n_kv_heads));
    multiply(t, into_x(t, t->mixed, t->q_width, w->o_proj, w->o_bias), m->hidden);
    norm(t, w->mlp_norm, t->normed);
    t->g = (matrix){.a = t->normed, .w = w->gate_up, .out = t->gate, .m = t->n_kept,
                    .k = m->hidden, .a_step = m->hidden, .w_step = m->hidden, .out_step = m->mlp};
    in_columns(t, gate_columns, m->mlp);
    multiply(t, into_x(t, t->gate, m->mlp, w->down, NULL), m->hidden);
    if (t->layer < m->n_deepstack)
        add_deepstack(t);
}

static void run(text *t, long n_rows, long n_asked)
{
    const le_text_model *m = &t->m;
    t->n_rows = t->n_kept = n_rows;
    memcpy(t->slot, m->slots, n_rows * sizeof *t->slot);
    memcpy(t->place, m->places, n_rows * sizeof *t->place);
    find_blocks(t);
    in_rows(t, embed_rows, n_rows);
    for (t->layer = 0; t->layer < m->n_layers; t->layer++)
        run_layer(t, n_asked);
    if (n_asked == 0)
        return;
    norm(t, m->norm, m->last);
    multiply(t, (matrix){.a = m->last, .w = m->head, .out = m->logits, .k = m->hidden,
                         .a_step = m->hidden, .w_step = m->hidden, .out_step = m->vocab}, m->vocab);
    le_pool_run(t->pool, choose_rows, t, (int)n_asked);
}

/* Compute the first `n_rows` rows of the batch; the status says what is wrong with it. */
int le_text_run(void *handle, int64_t n_rows, int64_t n_asked)
{
    text *t = handle;
    le_pool_begin(t->pool);
    const int status = check(t, n_rows, n_asked);
    if (status == OK)
        run(t, n_rows, n_asked);
    le_pool_end(t->pool);
    return status;
}
