// A stress test of the pool, built and run by pool_test.go, where possible under ThreadSanitizer.
// Every task counts in plain variables that only barriers and the ends of tasks order.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../pool.h"

enum { MAX_THREADS = 64, BARRIERS = 5 };

typedef struct {
  gk_pool *pool;
  int count[MAX_THREADS], signals_open;
  long wrong;
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

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 2, tasks = argc > 2 ? atoi(argv[2]) : 1000;
  for (int round = 0; round < 3; round++) {
    state s = {.pool = gk_pool_new(threads, 1 << 20)};
    if (s.pool == NULL) return 3;
    for (int i = 0; i < tasks; i++) {
      gk_pool_run(s.pool, task, &s);
      if (i % 100 == 0) usleep(2000); // long enough for the workers to fall asleep
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
  }
  return 0;
}
