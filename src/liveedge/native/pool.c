/* A few threads that share the chunks of one job after another.
 *
 * Made for jobs of 5 to 500 microseconds on a machine that may have less free cores than threads.
 *
 * Invariants
 * 1. `ticket` is (job number << 32 | chunks not yet taken). Whoever lowers it by one owns that
 *    chunk, so a chunk is done once.
 * 2. `work` and `context` change only while the ticket has no chunk left and `n_undone` is 0.
 *    They are read after a chunk was taken, so a late worker never sees the fields of another job.
 * 3. The caller works too and waits only for chunks that somebody took: a worker that got no core
 *    costs nothing.
 * 4. Nobody spins longer than SPINS turns; after that it sleeps on a condition. A sleeper counts
 *    itself and then looks again, a waker changes the state and then looks at the count (both
 *    sequentially consistent), so no wake-up is lost.
 */
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPINS = 2000, MAX_THREADS = 64, CACHE_LINE = 64 };

typedef struct {
    le_pool *pool;
    int number;
    pthread_t thread;
} worker;

struct le_pool {
    _Alignas(CACHE_LINE) atomic_uint_fast64_t ticket;
    _Alignas(CACHE_LINE) atomic_int n_undone;
    _Alignas(CACHE_LINE) atomic_int active; /* a call is under way */
    atomic_int stopping;
    atomic_int n_sleeping;     /* workers on `more` */
    atomic_int caller_sleeps;  /* on `done` */
    le_work work;
    void *context;
    int n_workers; /* without the caller */
    pthread_mutex_t lock, turn;
    pthread_cond_t more, done;
    worker workers[MAX_THREADS];
};

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int has_chunk(le_pool *pool)
{
    return (atomic_load(&pool->ticket) & UINT32_MAX) != 0;
}

/* The number of a chunk that is now ours, or -1. */
static int take(le_pool *pool)
{
    uint_fast64_t ticket = atomic_load(&pool->ticket);
    while ((ticket & UINT32_MAX) != 0)
        if (atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket - 1))
            return (int)((ticket & UINT32_MAX) - 1);
    return -1;
}

static void work_off(le_pool *pool, int number)
{
    for (int chunk = take(pool); chunk >= 0; chunk = take(pool)) {
        pool->work(pool->context, number, chunk);
        if (atomic_fetch_sub(&pool->n_undone, 1) == 1 && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static void wait_for_more(le_pool *pool)
{
    for (int i = 0; i < SPINS && atomic_load(&pool->active); i++) {
        if (has_chunk(pool) || atomic_load(&pool->stopping))
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->n_sleeping, 1);
    while (!has_chunk(pool) && !atomic_load(&pool->stopping))
        pthread_cond_wait(&pool->more, &pool->lock);
    atomic_fetch_sub(&pool->n_sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *live(void *argument)
{
    worker *self = argument;
    while (!atomic_load(&self->pool->stopping)) {
        work_off(self->pool, self->number);
        wait_for_more(self->pool);
    }
    return NULL;
}

static void wake_all(le_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->more);
    pthread_mutex_unlock(&pool->lock);
}

le_pool *le_pool_open(int n_threads)
{
    le_pool *pool = aligned_alloc(CACHE_LINE, sizeof(le_pool)); /* a multiple, for its fields are */
    if (pool == NULL)
        return NULL;
    atomic_init(&pool->ticket, 0);
    atomic_init(&pool->n_undone, 0);
    atomic_init(&pool->active, 0);
    atomic_init(&pool->stopping, 0);
    atomic_init(&pool->n_sleeping, 0);
    atomic_init(&pool->caller_sleeps, 0);
    pool->n_workers = 0;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_mutex_init(&pool->turn, NULL);
    pthread_cond_init(&pool->more, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int i = 0; i + 1 < n_threads && i < MAX_THREADS; i++) {
        worker *one = &pool->workers[i];
        one->pool = pool;
        one->number = i + 1;
        if (pthread_create(&one->thread, NULL, live, one) != 0) {
            le_pool_close(pool);
            return NULL;
        }
        pool->n_workers++;
    }
    return pool;
}

void le_pool_close(le_pool *pool)
{
    atomic_store(&pool->stopping, 1);
    wake_all(pool);
    for (int i = 0; i < pool->n_workers; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->more);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->turn);
    free(pool);
}

void le_pool_begin(le_pool *pool)
{
    pthread_mutex_lock(&pool->turn);
    atomic_store(&pool->active, 1);
}

void le_pool_end(le_pool *pool)
{
    atomic_store(&pool->active, 0);
    pthread_mutex_unlock(&pool->turn);
}

void le_pool_run(le_pool *pool, le_work work, void *context, int n_chunks)
{
    if (n_chunks <= 1 || pool->n_workers == 0) {
        for (int chunk = 0; chunk < n_chunks; chunk++)
            work(context, 0, chunk);
        return;
    }
    uint_fast64_t number = (atomic_load(&pool->ticket) >> 32) + 1;
    pool->work = work;
    pool->context = context;
    atomic_store(&pool->n_undone, n_chunks);
    atomic_store(&pool->ticket, number << 32 | (uint_fast64_t)n_chunks);
    if (atomic_load(&pool->n_sleeping))
        wake_all(pool);
    work_off(pool, 0);
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&pool->n_undone) == 0)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, 1);
    while (atomic_load(&pool->n_undone) != 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->caller_sleeps, 0);
    pthread_mutex_unlock(&pool->lock);
}
