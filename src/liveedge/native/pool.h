/* A few threads that share the chunks of one job after another. See pool.c. */
#ifndef LE_POOL_H
#define LE_POOL_H

#include <stdint.h>

typedef struct le_pool le_pool;

/* Does chunk `chunk` of a job. `worker` is below the pool's number of threads, the caller is 0. */
typedef void (*le_work)(void *context, int worker, int chunk);

le_pool *le_pool_open(int n_threads); /* NULL: no memory, or the system gave no thread */
void le_pool_close(le_pool *pool);    /* no call may be under way */

/* Between `begin` and `end` workers look for jobs without sleeping at once. One caller at a time:
 * others wait in `begin`. `le_pool_run` returns when all chunks are done. */
void le_pool_begin(le_pool *pool);
void le_pool_run(le_pool *pool, le_work work, void *context, int n_chunks);
void le_pool_end(le_pool *pool);

#endif
