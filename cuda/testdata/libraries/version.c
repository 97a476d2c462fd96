// Libraries of which only the version is asked: compiled with -DNCCL=22907, or with -DPROPERTY=name and
// -DMAJOR=13.
#ifdef NCCL
int ncclGetVersion(int *version) {
  *version = NCCL;
  return 0;
}
#else
int PROPERTY(int part, int *number) {
  if (part < 0 || part > 2) return 7;
  *number = part == 0 ? MAJOR : part;
  return 0;
}
#endif
