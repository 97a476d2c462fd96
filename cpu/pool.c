//go:build cgo && amd64

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

// Rounds of the pause instruction before a waiting thread sleeps: 20 to 60 µs by CPU. Operations
// of a training step follow each other more closely than that, so a thread sleeps only when the
// step is over or the machine is crowded.
enum { SPINS = 2000 };

// A worker, and its part of each task: begun is the number of the last task of which the worker or,
// in its stead, the caller has begun this part.
struct worker {
  _Alignas(64) atomic_uint begun;
  gk_pool *pool;
  int thread;
  pthread_t id;
};

// Each word that threads poll has a cache line of its own.
struct gk_pool {
  int threads;
  int spins; // 0 where threads outnumber cores: spinning would only keep the awaited one out
  size_t scratch_bytes;
  char *map, *scratch; // the mapping, and its first aligned address
  size_t map_bytes;
  struct worker *workers; // workers[1..threads)
  gk_task task;           // NULL: leave
  void *arg;
  _Alignas(64) atomic_uint started;  // counts tasks; a change starts the workers
  _Alignas(64) atomic_uint finished; // counts tasks that a worker was the last to finish
  _Alignas(64) atomic_int running;   // parts, but for the caller's own, that are not finished
  _Alignas(64) atomic_int arrived;   // threads waiting in the barrier
  _Alignas(64) atomic_uint passed;   // counts barriers that have opened
  _Alignas(64) atomic_int sleepers;  // threads in pthread_cond_wait, or about to be
  pthread_mutex_t mutex;
  pthread_cond_t changed; // one of the three counts changed
};

// wait_change returns once *count differs from old.
static void wait_change(gk_pool *pool, atomic_uint *count, unsigned old) {
  for (int i = 0; i < pool->spins; i++) {
    if (atomic_load_explicit(count, memory_order_acquire) != old) return;
    __builtin_ia32_pause();
  }
  pthread_mutex_lock(&pool->mutex);
  // Sequential consistency on both sides: either we see the new count, or announce_change sees us.
  atomic_fetch_add(&pool->sleepers, 1);
  while (atomic_load(count) == old) pthread_cond_wait(&pool->changed, &pool->mutex);
  atomic_fetch_sub(&pool->sleepers, 1);
  pthread_mutex_unlock(&pool->mutex);
}

static void announce_change(gk_pool *pool, atomic_uint *count) {
  atomic_fetch_add(count, 1);
  if (atomic_load(&pool->sleepers) == 0) return;
  pthread_mutex_lock(&pool->mutex);
  pthread_cond_broadcast(&pool->changed);
  pthread_mutex_unlock(&pool->mutex);
}

// begin says whether the part is the asking thread's to run. A task is over when every part has been
// run, so a worker that comes too late gets none, and one that gets its part finds the task unchanged.
static int begin(struct worker *part, unsigned task) {
  unsigned before = task - 1;
  return atomic_compare_exchange_strong(&part->begun, &before, task);
}

static void *work(void *arg) {
  struct worker *self = arg;
  gk_pool *pool = self->pool;
  for (unsigned seen = 0;;) {
    wait_change(pool, &pool->started, seen);
    seen = atomic_load(&pool->started);
    if (!begin(self, seen)) continue;
    gk_task task = pool->task;
    if (task == NULL) return NULL;
    task(pool->arg, self->thread, pool->threads);
    if (atomic_fetch_sub(&pool->running, 1) == 1) announce_change(pool, &pool->finished);
  }
}

static void start_all(gk_pool *pool, gk_task task, void *arg, int others) {
  pool->task = task;
  pool->arg = arg;
  atomic_store(&pool->running, others);
  announce_change(pool, &pool->started);
}

// release ends the first `started` workers (worker 0 included) and frees everything.
static void release(gk_pool *pool, int started) {
  if (started > 1) {
    start_all(pool, NULL, NULL, started - 1);
    for (int t = 1; t < started; t++) pthread_join(pool->workers[t].id, NULL);
  }
  pthread_cond_destroy(&pool->changed);
  pthread_mutex_destroy(&pool->mutex);
  if (pool->map != NULL) munmap(pool->map, pool->map_bytes);
  free(pool->workers);
  free(pool);
}

gk_pool *gk_pool_new(int threads, size_t scratch_bytes) {
  if (threads < 1) return NULL;
  gk_pool *pool = NULL;
  if (posix_memalign((void **)&pool, 64, sizeof *pool) != 0) return NULL;
  *pool = (gk_pool){.threads = threads};
  pool->spins = threads <= sysconf(_SC_NPROCESSORS_ONLN) ? SPINS : 0;
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->changed, NULL);
  if (posix_memalign((void **)&pool->workers, 64, (size_t)threads * sizeof *pool->workers) != 0) pool->workers = NULL;
  pool->scratch_bytes = (scratch_bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  pool->map_bytes = pool->scratch_bytes * (size_t)threads + HUGE_PAGE;
  void *map = mmap(NULL, pool->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pool->map = map == MAP_FAILED ? NULL : map;
  if (pool->workers == NULL || pool->map == NULL) {
    release(pool, 1);
    return NULL;
  }
  pool->scratch = (char *)(((uintptr_t)map + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
#ifdef MADV_HUGEPAGE
  madvise(pool->scratch, pool->scratch_bytes * (size_t)threads, MADV_HUGEPAGE);
#endif
  // A new thread inherits the mask. Go's handlers must run on Go's own threads only.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int started = 1;
  for (; started < threads; started++) {
    struct worker *w = &pool->workers[started];
    *w = (struct worker){.pool = pool, .thread = started};
    if (pthread_create(&w->id, NULL, work, w) != 0) break;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (started < threads) {
    release(pool, started);
    return NULL;
  }
  return pool;
}

void gk_pool_free(gk_pool *pool) {
  if (pool != NULL) release(pool, pool->threads);
}

int gk_pool_threads(const gk_pool *pool) { return pool->threads; }

// run is both ways to run a task: `take` lets the caller run what no worker has begun.
static void run(gk_pool *pool, gk_task task, void *arg, int take) {
  if (pool->threads == 1) {
    task(arg, 0, 1);
    return;
  }
  unsigned before = atomic_load_explicit(&pool->finished, memory_order_relaxed);
  start_all(pool, task, arg, pool->threads - 1);
  unsigned number = atomic_load_explicit(&pool->started, memory_order_relaxed);
  task(arg, 0, pool->threads);
  for (int t = 1; t < pool->threads && take; t++) {
    if (!begin(&pool->workers[t], number)) continue;
    task(arg, t, pool->threads);
    if (atomic_fetch_sub(&pool->running, 1) == 1) return;
  }
  wait_change(pool, &pool->finished, before);
}

void gk_pool_run(gk_pool *pool, gk_task task, void *arg) { run(pool, task, arg, 0); }

void gk_pool_share(gk_pool *pool, gk_task task, void *arg) { run(pool, task, arg, 1); }

void gk_pool_barrier(gk_pool *pool) {
  if (pool->threads == 1) return;
  unsigned before = atomic_load(&pool->passed);
  if (atomic_fetch_add(&pool->arrived, 1) == pool->threads - 1) {
    atomic_store(&pool->arrived, 0);
    announce_change(pool, &pool->passed);
    return;
  }
  wait_change(pool, &pool->passed, before);
}

void *gk_pool_scratch(gk_pool *pool, int thread) {
  return pool->scratch + pool->scratch_bytes * (size_t)thread;
}

size_t gk_pool_scratch_bytes(const gk_pool *pool) { return pool->scratch_bytes; }
