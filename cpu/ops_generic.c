//go:build cgo && amd64

// The operations in portable C.
#pragma GCC optimize("O2,fp-contract=off")
#define GK_LEVEL 0
#define GK_TASKS gk_tasks_generic
#include "level.h"
