#ifndef GOFSDP_NVML_FORWARD_H
#define GOFSDP_NVML_FORWARD_H

// Opens the library, to the end of the process, and lets NVML's functions be its own. It returns why it cannot,
// NULL where it has.
const char *gofsdp_nvml_open(const char *file);

#endif
