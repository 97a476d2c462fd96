// A stress test of the pool, built and run by pool_test.go, where possible under ThreadSanitizer.
// Every task counts in plain variables that only barriers and the ends of tasks order.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../pool.h"

enum { MAX_THREADS = 64, BARRIERS = 5, SHARED = 3 };

typedef struct {
  gk_pool *pool;
  int count[MAX_THREADS], shared[MAX_THREADS];
  pthread_t ran[MAX_THREADS]; // who ran a part of the shared task
  long wrong, taken;          // taken: parts of others that the caller ran
} state;

static void task(void *arg, int thread, int threads) {
  state *s = arg;
  if (thread > 0) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (!sigismember(&blocked, SIGPROF) || !sigismember(&blocked, SIGURG)) abort();
  }
  for (int b = 0; b < BARRIERS; b++) {
    s->count[thread]++;
    gk_pool_barrier(s->pool);
    long sum = 0;
    for (int t = 0; t < threads; t++) sum += s->count[t];
    long want = (long)threads * s->count[thread];
    gk_pool_barrier(s->pool); // nobody counts on before all have read
    if (thread == 0 && sum != want) s->wrong++;
  }
}

// shared has no barrier, so that one thread may run several parts.
static void shared(void *arg, int part, int parts) {
  state *s = arg;
  if (part >= parts) abort();
  s->shared[part]++;
  s->ran[part] = pthread_self();
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 2, tasks = argc > 2 ? atoi(argv[2]) : 1000;
  for (int round = 0; round < 3; round++) {
    state s = {.pool = gk_pool_new(threads, 1 << 20)};
    if (s.pool == NULL) return 3;
    for (int i = 0; i < tasks; i++) {
      gk_pool_run(s.pool, task, &s);
      if (i % 10 == 0) usleep(2000); // long enough for the workers to fall asleep
      for (int again = 0; again < SHARED; again++) {
        gk_pool_share(s.pool, shared, &s);
        for (int t = 0; t < threads; t++) {
          if (s.shared[t] != i * SHARED + again + 1) s.wrong++;
          if (t > 0 && pthread_equal(s.ran[t], pthread_self())) s.taken++;
        }
      }
      for (int t = 0; t < threads; t++)
        if (s.count[t] != (i + 1) * BARRIERS) s.wrong++;
    }
    for (int t = 0; t < threads; t++) {
      char *mine = gk_pool_scratch(s.pool, t);
      if ((uintptr_t)mine % (2 << 20) != 0) s.wrong++;
      mine[0] = mine[gk_pool_scratch_bytes(s.pool) - 1] = 1;
    }
    gk_pool_free(s.pool);
    if (s.wrong != 0) {
      printf("%ld wrong counts with %d threads\n", s.wrong, threads);
      return 1;
    }
    if (threads > 1 && s.taken == 0) {
      printf("in %d tasks of %d threads the caller ran no part of a sleeping worker\n", tasks, threads);
      return 1;
    }
  }
  return 0;
}
