// An NVML for tests: a machine with two GPUs of which the second gives little, as in a container with few
// rights. Signatures are those of nvml.h; what is not here, an older driver has not.
#include <stdio.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7 };
typedef struct {
  int index;
} *device_t;
static struct {
  int index;
} devices[2] = {{0}, {1}};

static int text(char *to, unsigned size, const char *s) {
  if (strlen(s) >= size) return TOO_SMALL;
  strcpy(to, s);
  return OK;
}

#ifdef FAILS
int nvmlInit_v2(void) { return 9; } // NVML_ERROR_DRIVER_NOT_LOADED
#else
int nvmlInit_v2(void) { return OK; }
#endif
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int r) {
  switch (r) {
  case OK: return "Success";
  case NOT_SUPPORTED: return "Not Supported";
  case NO_PERMISSION: return "Insufficient Permissions";
  case NOT_FOUND: return "Not Found";
  case 9: return "Driver Not Loaded";
  default: return "Unknown Error";
  }
}
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return text(to, size, "580.95.05"); }
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = 2, OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device_t *d) { return i < 2 ? *d = (device_t)&devices[i], OK : NOT_FOUND; }
static const char *uuids[2] = {"GPU-00000000-1111-2222-3333-444444444444", "GPU-55555555-6666-7777-8888-999999999999"};
int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *d) {
  for (int i = 0; i < 2; i++)
    if (strcmp(uuid, uuids[i]) == 0) return *d = (device_t)&devices[i], OK;
  return NOT_FOUND;
}
int nvmlDeviceGetUUID(device_t d, char *to, unsigned size) { return text(to, size, uuids[d->index]); }
int nvmlDeviceGetName(device_t d, char *to, unsigned size) { return text(to, size, "NVIDIA L4"); }
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
} pci_t;
int nvmlDeviceGetPciInfo_v3(device_t d, pci_t *p) {
  memset(p, 0, sizeof *p);
  p->bus = 0x38 + 2 * d->index;
  return OK;
}
typedef struct {
  unsigned long long total, unused, used;
} memory_t;
int nvmlDeviceGetMemoryInfo(device_t d, memory_t *m) {
  m->total = 24000ull << 20;
  m->used = (500ull + 100 * d->index) << 20;
  m->unused = m->total - m->used;
  return OK;
}
int nvmlDeviceGetClockInfo(device_t d, int type, unsigned *mhz) { return *mhz = type == 1 ? 210 : 405, OK; } // SM 1, memory 2
int nvmlDeviceGetMaxClockInfo(device_t d, int type, unsigned *mhz) { return *mhz = type == 1 ? 2040 : 6251, OK; }
int nvmlDeviceGetPowerUsage(device_t d, unsigned *mw) { return d->index ? NO_PERMISSION : (*mw = 16500, OK); }
int nvmlDeviceGetEnforcedPowerLimit(device_t d, unsigned *mw) { return *mw = 72000, OK; }
int nvmlDeviceGetTemperature(device_t d, int sensor, unsigned *c) { return sensor ? NOT_SUPPORTED : (*c = 34, OK); }
#ifndef OLD
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t d, unsigned long long *bits) {
  return *bits = d->index ? 0x1ull | 0x40 | 0x1000 : 0x1, OK;
}
#endif
int nvmlDeviceGetEccMode(device_t d, int *now, int *pending) { return *now = *pending = 1, OK; }
int nvmlDeviceGetTotalEccErrors(device_t d, int kind, int counter, unsigned long long *n) {
  return *n = d->index ? (kind == 1 ? 2 : 7) : 0, OK; // uncorrected 1, corrected 0
}
int nvmlDeviceGetCurrPcieLinkGeneration(device_t d, unsigned *n) { return *n = 1, OK; }
int nvmlDeviceGetCurrPcieLinkWidth(device_t d, unsigned *n) { return *n = 8, OK; }
int nvmlDeviceGetMaxPcieLinkGeneration(device_t d, unsigned *n) { return *n = 4, OK; }
int nvmlDeviceGetMaxPcieLinkWidth(device_t d, unsigned *n) { return *n = 16, OK; }
#ifndef OLD
int nvmlDeviceGetMigMode(device_t d, unsigned *now, unsigned *pending) { return NOT_SUPPORTED; }
typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
} process_t;
int nvmlDeviceGetComputeRunningProcesses_v3(device_t d, unsigned *n, process_t *list) {
  unsigned have = d->index ? 1 : 0;
  if (*n < have) return *n = have, TOO_SMALL;
  *n = have;
  if (have) list[0] = (process_t){4242, 300ull << 20, -1u, -1u};
  return OK;
}
#endif
