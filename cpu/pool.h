// A pool of threads that run one task together, and their scratch memory.
//
// The thread that calls gk_pool_run is worker 0; the others are C threads that the Go runtime
// never sees, so they block every signal. One gk_pool_run at a time: a pool belongs to one stream.
#ifndef GK_POOL_H
#define GK_POOL_H

#include <stddef.h>
#include <stdint.h>

typedef struct gk_pool gk_pool;

// A task runs once on each of `threads` threads, with its own number in [0, threads).
typedef void (*gk_task)(void *arg, int thread, int threads);

// gk_pool_new starts threads-1 threads and maps scratch_bytes (rounded up to 2 MiB) for each worker.
// It returns NULL when memory or threads are refused.
gk_pool *gk_pool_new(int threads, size_t scratch_bytes);

// gk_pool_free stops and joins the threads and unmaps the scratch. NULL is allowed.
void gk_pool_free(gk_pool *pool);

int gk_pool_threads(const gk_pool *pool);

// gk_pool_run runs the task on every thread and returns when all have finished. What a task wrote
// is visible to the caller. It must not be called from inside a task.
void gk_pool_run(gk_pool *pool, gk_task task, void *arg);

// gk_pool_share runs every part of a task once too, but not each on a thread of its own: when the
// caller has finished its part, it also runs those that no worker has begun. So a worker that comes
// late, asleep or kept out by other processes, costs no more than its help. The task must not use
// gk_pool_barrier; its `thread` is the number of the part, whose scratch it has to itself.
void gk_pool_share(gk_pool *pool, gk_task task, void *arg);

// gk_pool_barrier returns when every thread of the running task has called it. What was written
// before it on any thread is visible after it on all.
void gk_pool_barrier(gk_pool *pool);

// gk_pool_scratch is the private memory of one thread: 2 MiB aligned, on huge pages where the
// kernel grants them. Any thread may read another's, ordered by barriers. Its content survives
// between tasks, but every operation may overwrite it.
void *gk_pool_scratch(gk_pool *pool, int thread);

// gk_pool_scratch_bytes is the size of each thread's scratch.
size_t gk_pool_scratch_bytes(const gk_pool *pool);

// gk_split gives thread its contiguous range [*begin, *end) of n items. Borders fall on multiples
// of granule; the ranges differ by at most one granule, and late threads may get none.
static inline void gk_split(int64_t n, int64_t granule, int thread, int threads, int64_t *begin,
                            int64_t *end) {
  int64_t pieces = (n + granule - 1) / granule;
  int64_t each = pieces / threads, rest = pieces % threads;
  int64_t first = thread * each + (thread < rest ? thread : rest);
  int64_t last = first + each + (thread < rest ? 1 : 0);
  *begin = first * granule < n ? first * granule : n;
  *end = last * granule < n ? last * granule : n;
}

#endif
